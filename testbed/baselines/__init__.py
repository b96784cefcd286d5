"""What the schedules are compared with: ring all-reduce over the same links, islands alone, one ideal machine."""
