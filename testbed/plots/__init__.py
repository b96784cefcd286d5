"""Pictures. One module per subject; matplotlib is loaded by them only."""
