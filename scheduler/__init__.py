"""The scheduler: who exchanges with whom in which round, when each island starts sending, and how fast.

Pure computation: no I/O, no clock, no root, and no import from the other packages. Start with `planner.plan`.
"""
