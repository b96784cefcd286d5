"""Errors that a user can mend: their text is one line that names the thing and the way out."""


class TestbedError(Exception):
    """Bad input, or a machine that cannot do what was asked: nothing was changed (exit code 2)."""

    __test__ = False  # the name is no test class


class RunFailed(Exception):
    """A run that started and could not go on (exit code 1)."""
