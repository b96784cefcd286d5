"""Engines by name: those built in, and those that other packages register as entry points `testbed.engines`."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from aggregator.engine import Engine, EngineError, EngineFactory
from aggregator.engines.numpy_engine import NumpyEngine

ENTRY_POINT_GROUP = "testbed.engines"
_BUILT_IN: Mapping[str, EngineFactory] = {"numpy": NumpyEngine}


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def engine_names() -> list[str]:
    """Names that `make_engine` knows, sorted."""
    return sorted({*_BUILT_IN, *_registered()})


def make_engine(name: str) -> Engine:
    """A new engine, not yet open. Raises EngineError for an unknown name, naming the known ones."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    point = _registered().get(name)
    if point is None:
        raise EngineError(f"engine {name!r} is unknown; there are: {', '.join(engine_names())}")
    factory: EngineFactory = point.load()
    return factory()
