"""Recording frames of the emulated network, and reading our headers in other tools (docs/capture.md)."""
