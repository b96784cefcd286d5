"""Acting on a running experiment: link changes, the control socket, and scenarios."""
