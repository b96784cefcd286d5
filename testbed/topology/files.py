"""Topology files in the native format: JSON in networkx's node-link form, with the unit in every key.

    {"directed": false, "multigraph": false, "graph": {"name": "two-sites"},
     "nodes": [{"id": "a", "region": "here"}, {"id": "b", "access_up_gbps": 25}, {"id": "x", "transit": true}],
     "edges": [{"source": "a", "target": "x", "one_way_delay_ms": 10, "rate_gbps": 100}, …]}

`directed: false` means links that are alike in both directions, `directed: true` one entry per direction. Unknown keys
are errors. Ids become node names: those that are not short and plain are renamed (see `names`).
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from scheduler.errors import TopologyError
from scheduler.topology import CoreLink, Island, LinkId, Topology
from testbed.topology.names import clean_names

_ISLAND_NUMBERS = ("latitude", "longitude", "access_up_gbps", "access_down_gbps", "access_one_way_delay_ms")
_ACCESS = tuple(key for key in _ISLAND_NUMBERS if key.startswith("access"))
_NODE_KEYS = ("id", "region", "transit", *_ISLAND_NUMBERS)
_LINK_NUMBERS = ("one_way_delay_ms", "rate_gbps", "loss", "jitter_ms", "queue_mb")
_LINK_KEYS = ("source", "target", *_LINK_NUMBERS)
_FILE_KEYS = ("directed", "multigraph", "graph", "nodes", "edges")


def read_topology(path: Path) -> Topology:
    """Read a topology file. Raises TopologyError, in one line naming the file and the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise TopologyError(f"topology file {path}: cannot be read: {reason}") from None
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TopologyError(f"topology file {path}: not JSON: {error}") from None
    try:
        return topology_from_json(document, path.stem)
    except TopologyError as error:
        raise TopologyError(f"topology file {path}: {error}") from None


def topology_from_json(document: Any, name: str) -> Topology:
    """Build a topology from parsed JSON; `name` is used where the document gives none. Raises TopologyError."""
    content = _object(document, "the file", _FILE_KEYS)
    directed = _flag(content, "directed", "the file")
    if _flag(content, "multigraph", "the file"):
        raise TopologyError("multigraph is true: merge parallel links into one and set it to false")
    graph = _object(content.get("graph", {}), "graph", ("name",))
    nodes = [_object(node, f"nodes[{k}]", _NODE_KEYS, needed=("id",)) for k, node in enumerate(_list(content, "nodes"))]
    ids = [_id(node["id"], f"nodes[{k}].id") for k, node in enumerate(nodes)]
    names = clean_names(ids)
    islands: list[Island] = []
    transits: list[str] = []
    for original, node in zip(ids, nodes, strict=True):
        island = _island(names[original], node, f"node {original!r}")
        if _flag(node, "transit", f"node {original!r}"):
            surplus = next((key for key in _ACCESS if key in node), None)
            if surplus is not None:
                raise TopologyError(f"node {original!r}: a transit router has no access link; remove {surplus}")
            transits.append(island.id)
        else:
            islands.append(island)
    links = [
        link for k, edge in enumerate(_list(content, "edges")) for link in _links(edge, f"edges[{k}]", names, directed)
    ]
    given = graph.get("name", name)
    return Topology(_text(given, "graph.name"), tuple(islands), tuple(transits), tuple(links))


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """The topology in the native format. What has its default is left out; coordinates of transits are not kept."""
    links = {link.id: link for link in topology.links}
    directed = any(links.get((link.target, link.source)) != _reversed(link) for link in topology.links)
    kept = list(topology.links) if directed else _one_of_both(topology.links)
    return {
        "directed": directed,
        "multigraph": False,
        "graph": {"name": topology.name},
        "nodes": [_without_defaults(island) for island in topology.islands]
        + [{"id": transit, "transit": True} for transit in topology.transits],
        "edges": [_without_defaults(link) for link in kept],
    }


def write_topology(topology: Topology, path: Path) -> None:
    """Write a topology file in the native format. Raises OSError if it cannot be written."""
    path.write_text(json.dumps(topology_to_json(topology), indent=1) + "\n", encoding="utf-8")


def _island(name: str, node: Mapping[str, Any], where: str) -> Island:
    region = _text(node["region"], f"{where}: region") if node.get("region") is not None else None
    numbers = {key: _number(node[key], f"{where}: {key}") for key in _ISLAND_NUMBERS if node.get(key) is not None}
    return Island(name, region, **numbers)


def _links(edge: Any, position: str, names: Mapping[str, str], directed: bool) -> list[CoreLink]:
    content = _object(edge, position, _LINK_KEYS, needed=("source", "target", "one_way_delay_ms", "rate_gbps"))
    ends = [_id(content[end], f"{position}.{end}") for end in ("source", "target")]
    where = f"link {ends[0]}-{ends[1]}"
    for end in ends:
        if end not in names:
            raise TopologyError(f"{where}: no node has the id {end!r}")
    numbers = {key: _number(content[key], f"{where}: {key}") for key in _LINK_NUMBERS if content.get(key) is not None}
    for key in ("one_way_delay_ms", "rate_gbps"):
        if key not in numbers:
            raise TopologyError(f"{where}: {key} is missing")
    link = CoreLink(names[ends[0]], names[ends[1]], **numbers)
    return [link] if directed else [link, _reversed(link)]


def _reversed(link: CoreLink) -> CoreLink:
    return replace(link, source=link.target, target=link.source)


def _one_of_both(links: tuple[CoreLink, ...]) -> list[CoreLink]:
    seen: set[LinkId] = set()
    kept: list[CoreLink] = []
    for link in links:
        if (link.target, link.source) not in seen:
            seen.add(link.id)
            kept.append(link)
    return kept


def _without_defaults(item: Island | CoreLink) -> dict[str, Any]:
    return {
        field.name: getattr(item, field.name) for field in fields(item) if getattr(item, field.name) != field.default
    }


def _object(value: Any, where: str, known: tuple[str, ...], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError(f"{where} must be a JSON object")
    unknown = [key for key in value if key not in known]
    if unknown:
        raise TopologyError(f"{where} has unknown keys {', '.join(map(repr, unknown))}: known are {', '.join(known)}")
    missing = [key for key in needed if key not in value]
    if missing:
        raise TopologyError(f"{where}: {', '.join(missing)} is missing")
    return value


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if not isinstance(value, list):
        raise TopologyError(f"{key} must be a list")
    return value


def _flag(content: Mapping[str, Any], key: str, where: str) -> bool:
    value = content.get(key, False)
    if not isinstance(value, bool):
        raise TopologyError(f"{where}: {key} must be true or false, not {value!r}")
    return value


def _id(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TopologyError(f"{where} must be a name or a whole number, not {value!r}")
    return str(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise TopologyError(f"{where} must be a name, not {value!r}")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TopologyError(f"{where} must be a number, not {value!r}")
    return float(value)
