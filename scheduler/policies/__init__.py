"""Policies: `interface` says what one is, each has a module of its own, `named` lists them."""
