"""Engines by name: those built in, and those that other packages register as entry points `testbed.engines`.

A name with a slash in it is the path of a shared library (docs/write-an-engine.md).
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from aggregator.engine import Engine, EngineError, EngineFactory
from aggregator.engines.library_engine import LibraryEngine, native_engine, native_library
from aggregator.engines.numpy_engine import NumpyEngine
from aggregator.engines.passthrough import PassthroughEngine

ENTRY_POINT_GROUP = "testbed.engines"
_BUILT_IN: Mapping[str, EngineFactory] = {
    "native": native_engine,
    "numpy": NumpyEngine,
    "passthrough": PassthroughEngine,
}


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def engine_names() -> list[str]:
    """Names that `make_engine` can make an engine of here, sorted."""
    built_in = set(_BUILT_IN) if native_library() else set(_BUILT_IN) - {"native"}
    return sorted(built_in | set(_registered()))


def default_engine() -> str:
    """`native` where it is built, else `numpy`."""
    return "native" if native_library() else "numpy"


def make_engine(name: str) -> Engine:
    """A new engine, not yet open.

    Raises EngineError for an unknown name, naming the known ones, for a bad library and for a package that cannot be
    loaded.
    """
    if "/" in name:
        return LibraryEngine(Path(name))
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    point = _registered().get(name)
    if point is None:
        known = ", ".join(engine_names())
        raise EngineError(f"engine {name!r} is unknown; there are: {known}, or a library's path with a / in it")
    try:
        factory: EngineFactory = point.load()
    except (ImportError, AttributeError) as error:
        raise EngineError(f"engine {name}: its package cannot be loaded: {error}") from error
    return factory()
