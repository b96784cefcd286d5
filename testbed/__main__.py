"""The `testbed` command: `testbed …` and `python -m testbed …` are the same."""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from testbed.cli import run_command_line  # noqa: PLC0415 (packages may be missing, which deserves one line)

        return run_command_line()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in {"testbed", "agents", "aggregator", "scheduler"}:
            raise
        print(
            f"testbed: {sys.executable} has no module {error.name}: run vagrant/provision.sh once as root, "
            "then use the command `testbed`",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
