"""The subcommands, one module each: `add_parser` declares it, `execute` does it and returns the exit code."""
