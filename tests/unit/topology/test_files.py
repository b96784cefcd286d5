"""Topology files: what is read and written, and what is refused in one line that names file and field."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from scheduler.errors import TopologyError
from scheduler.topology import CoreLink, Island, Topology
from testbed.topology.files import topology_from_json, topology_to_json, write_topology
from testbed.topology.load import load_topology
from testbed.topology.names import MAX_LENGTH, clean_names
from testbed.topology.nine_city import nine_city


def two_islands(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "directed": False,
        "multigraph": False,
        "graph": {"name": "two"},
        "nodes": [{"id": "a"}, {"id": "b"}],
        "edges": [{"source": "a", "target": "b", "one_way_delay_ms": 5, "rate_gbps": 100}],
    }
    document.update(changes)
    return document


def link(**changes: Any) -> dict[str, Any]:
    return {"source": "a", "target": "b", "one_way_delay_ms": 5, "rate_gbps": 100, **changes}


def test_nine_city_is_what_the_design_says() -> None:
    where = load_topology("nine-city")
    assert len(where.islands) == 9
    assert len(where.links) == 28
    assert {island.region for island in where.islands} == {"north-america", "europe", "asia"}
    assert all(island.access_one_way_delay_ms == 0.1 for island in where.islands)
    assert where.link("sin", "fra").one_way_delay_ms == 92


def test_written_files_read_the_same(tmp_path: Path) -> None:
    islands = (Island("a", "here", 1.0, -2.0, 25.0, 10.0, 0.5), Island("b"))
    links = (CoreLink("a", "x", 1, 40, 0.01, 0.2, 3.0), CoreLink("x", "a", 2, 30), CoreLink("x", "b", 3, 100))
    uneven = Topology("uneven", islands, ("x",), (*links, CoreLink("b", "x", 3, 100)))
    for where in (nine_city(), uneven):
        path = tmp_path / f"{where.name}.json"
        write_topology(where, path)
        read = load_topology(str(path))
        assert set(read.links) == set(where.links)
        assert (read.name, read.islands, read.transits) == (where.name, where.islands, where.transits)


def test_networkx_reads_what_is_written() -> None:
    graph = nx.node_link_graph(topology_to_json(nine_city()), edges="edges")
    assert graph.number_of_nodes() == 9
    assert graph.edges["nyc", "lon"]["one_way_delay_ms"] == 40


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (two_islands(nodes=[{"id": "a", "colour": 1}, {"id": "b"}]), "'colour'"),
        (two_islands(edges=[link(delay=5)]), "'delay'"),
        (two_islands(extra=1), "'extra'"),
        (two_islands(graph={"title": 1}), "'title'"),
        (two_islands(edges=[{"source": "a", "target": "b", "one_way_delay_ms": 5}]), "rate_gbps is missing"),
        (two_islands(edges=[link(rate_gbps="100")]), "rate_gbps must be a number"),
        (two_islands(edges=[link(rate_gbps=0)]), "rate_gbps"),
        (two_islands(edges=[link(one_way_delay_ms=-1)]), "one_way_delay_ms"),
        (two_islands(edges=[link(one_way_delay_ms=float("nan"))]), "one_way_delay_ms"),
        (two_islands(edges=[link(loss=1.5)]), "loss"),
        (two_islands(edges=[link(target="c")]), "'c'"),
        (two_islands(edges=[link(target="a")]), "different nodes"),
        (two_islands(edges=[link(), link(source="b", target="a")]), "twice"),
        (two_islands(nodes=[{"id": "a"}, {"id": "a"}]), "'a'"),
        (two_islands(nodes=[{"id": "a"}, {"id": "b"}, {"id": "c"}]), "'c' over the core links"),
        (two_islands(nodes=[{"id": "a"}, {"id": "b", "transit": True}]), "needs two"),
        (two_islands(nodes=[{"id": "a"}, {"id": "b", "access_up_gbps": float("inf")}]), "access_up_gbps"),
        (two_islands(nodes=[{"id": "a"}, {"id": "b"}, {"id": "x", "transit": True, "access_up_gbps": 1}]), "transit"),
        (two_islands(nodes=[{"id": "a"}, {"id": "b", "latitude": 91, "longitude": 0}]), "latitude"),
        (two_islands(directed="yes"), "directed"),
        (two_islands(directed=True), "cannot reach"),
        (two_islands(multigraph=True), "multigraph"),
        (two_islands(nodes=None), "nodes must be a list"),
        ([], "JSON object"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_files_that_do_not_parse(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=r"bad\.json"):
        load_topology(str(path))


def test_neither_a_name_nor_a_file(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="nine-city"):
        load_topology(str(tmp_path / "absent.json"))
    with pytest.raises(TopologyError, match="cannot be read"):
        load_topology(str(tmp_path))


def test_names_that_collide_after_cleaning_stay_apart() -> None:
    ids = ["São Paulo", "sao-paulo", "SAOPAULO", "saopaulo", "…", "nyc", "San Francisco", "San Fransisco"]
    names = clean_names(ids)
    assert names["nyc"] == "nyc"
    assert names["saopaulo"] == "saopaulo"
    assert len(set(names.values())) == len(ids)
    assert all(name.isascii() and name.isalnum() and name.islower() for name in names.values())
    assert max(map(len, names.values())) <= MAX_LENGTH


def test_files_with_such_names_are_read() -> None:
    nodes = [{"id": "New York"}, {"id": "new-york"}]
    where = topology_from_json(two_islands(nodes=nodes, edges=[link(source="New York", target="new-york")]), "two")
    assert where.island_ids == ("newyork", "newyork2")
