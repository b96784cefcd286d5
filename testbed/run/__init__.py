"""One experiment, from its settings to its results."""
