"""What the policy `search` is made of. `policies/search.py` puts it together.

`round_times` scores many rounds at once, `partitions` enumerates rounds, `lifetimes` scores many schedules at once,
`exhaustive` and `sequences` search, `designs` and `labels` build large schedules, `bounds` says what cannot be beaten.
"""
