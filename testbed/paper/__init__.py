"""The published comparison: planned and measured side by side, and what was fitted."""
