"""Plug-ins from a user's file, named as `path/file.py:Name`."""

import sys
import types
from pathlib import Path
from typing import Any


def split_name(name: str) -> tuple[Path, str] | None:
    """The file and the attribute of `path/file.py:Name`; None for a name that is not of that form."""
    path, separator, attribute = name.rpartition(":")
    return (Path(path), attribute) if separator and path.endswith(".py") else None


def load_from_file(path: Path, attribute: str) -> Any:
    """What the file calls `attribute`. Raises ValueError in one line, whatever is wrong with the file."""
    if not path.is_file():
        raise ValueError(f"file {path}: there is no such file")
    module = types.ModuleType(f"plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses, for one, look their module up
    try:
        # Read as it is now: what Python keeps compiled would be told from a new text by the second of its time only.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except Exception as error:  # whatever the user's file raises is the user's to see, in one line
        raise ValueError(f"file {path}: {type(error).__name__}: {error}") from None
    if not hasattr(module, attribute):
        raise ValueError(f"file {path}: it has no {attribute!r}")
    return getattr(module, attribute)
