"""Measuring links against what was asked of them: `testbed verify`, and the quick check before a run."""
