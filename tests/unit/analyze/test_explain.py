"""The life of a packet, told and drawn."""

import json
from pathlib import Path

import pytest

from aggregator.wire.packet import REPAIR_PORT, RESULT_PORT, Kind, Reason
from testbed.analyze.analysis import analyse
from testbed.analyze.captures import Captures
from testbed.analyze.explain import explain, narrate, parse_wanted
from testbed.cli import build_parser
from testbed.errors import TestbedError
from tests.unit.analyze.network import MS, Network, edge, host
from tests.unit.capture.frames import frame, header


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Chunk 1 is lost on nyc>lon; the result of chunk 2 is lost to lon, asked for and repaired."""
    network = Network()
    network.round(2, {1: "nyc>lon"})
    network.contribute(2)
    network.result("fra", 2)
    number = network.result("lon", 2, lost=True)
    network.nack("lon", number)
    network.now_ns += 3 * MS
    network.repair("lon", 2, number)
    network.capture.end()
    return network.capture.write(tmp_path / "all.pcapng")


def told(path: Path, wanted: str) -> list[str]:
    captures = Captures([path])
    parsed = parse_wanted(wanted)
    return narrate(captures, parsed, explain(captures, parsed))


def test_a_lost_contribution(path: Path) -> None:
    lines = told(path, "nyc/0/1")
    assert lines[0] == "contribution of nyc, round 0, chunk 1"
    assert [line for line in lines if "LOST" in line] == [lines[-2]]
    assert lines[-2].endswith("LOST on link nyc>lon")
    assert lines[-1] == "delivered to hosts of: no island that was captured"
    assert len(lines) == 2 + 5  # host, edge in, edge out, router in, router out


def test_a_sum_without_it_tells_why_it_was_fetched(tmp_path: Path) -> None:
    network = Network(source="10.1.0.50")
    network.nack("nyc", 0)  # from the address by which it is known
    network.round(1, {})
    network.contribute(1, "lon>fra")
    packet = header(Kind.RESULT, 2, 1, bitmap=2, number=1, stream=77, reason=Reason.TIMEOUT)
    network.cross(("fra-e:h0", "fra-h1:e0"), frame(packet, edge("fra"), host("fra"), RESULT_PORT))
    fetch = header(Kind.FETCH, 2, 0, value_count=0, bitmap=3)
    network.cross(("fra-h1:e0", "fra-e:h0"), frame(fetch, host("fra"), host("nyc"), REPAIR_PORT))
    network.capture.end()
    lines = told(network.capture.write(tmp_path / "all.pcapng"), "nyc/0/1")
    assert sum("result (timeout) of 1 without it" in line for line in lines) == 2
    assert sum("fetch by fra-h1, with 1 others" in line for line in lines) == 2
    assert lines[-1] == "delivered to hosts of: no island that was captured"


def test_a_repaired_result(path: Path) -> None:
    lines = told(path, "nyc/0/2")
    assert sum("LOST on link lon-e>lon-h1" in line for line in lines) == 1
    positions = [next(k for k, line in enumerate(lines) if word in line) for word in ("LOST", "NACK", "again")]
    assert positions == sorted(positions)
    assert "lon-h1:e0" in lines[-2]
    assert lines[-1] == "delivered to hosts of: fra, lon"
    assert lines[1].split()[0] == "0.000"


def test_what_a_router_passes_on_is_not_its_islands(path: Path) -> None:
    with pytest.raises(TestbedError, match="give a contributor id"):
        told(path, "lon/0/0")


def test_a_source_may_be_given_by_its_contributor_id(path: Path) -> None:
    assert told(path, "0/0/1")[1:] == told(path, "nyc/0/1")[1:]


def test_what_is_not_there(path: Path) -> None:
    with pytest.raises(TestbedError, match="have no contribution of lon, round 0, chunk 1"):
        told(path, "lon/0/1")
    with pytest.raises(TestbedError, match="not SOURCE/ROUND/CHUNK"):
        told(path, "17")


def run_command(*arguments: str) -> int:
    parsed = build_parser().parse_args(["analyze", *arguments])
    code: int = parsed.execute(parsed)
    return code


def test_the_command_prints_draws_and_writes_tables(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, picture = tmp_path / "tables", tmp_path / "recovery.png"
    assert run_command(str(path), "--json", "--csv", str(tables), "--plot", str(picture)) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["reconciled"], document["unexplained"], document["complete"]) == (True, 0, True)
    assert document["repair_latency_ms"] == {"median": 3.2, "p99": 3.2, "max": 3.2}
    assert {stream["receiver"]: stream["lost"] for stream in document["streams"]} == {
        "fra": {"nyc>lon": 1},
        "lon": {"nyc>lon": 1, "lon-e>lon-h1": 1},
    }
    assert picture.read_bytes().startswith(b"\x89PNG")
    lost = (tables / "lost.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[2] for line in lost] == ["place", "nyc>lon", "lon-e>lon-h1"]
    assert {path.name for path in tables.iterdir()} == {"streams.csv", "hops.csv", "lost.csv", "repairs.csv"}
    assert run_command(str(path)) == 0
    assert "every packet is accounted for" in capsys.readouterr().out


def test_a_life_is_told_drawn_and_tabled_at_once(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, picture = tmp_path / "tables", tmp_path / "life.svg"
    assert run_command(str(path), "--explain", "nyc/0/2", "--csv", str(tables), "--plot", str(picture)) == 0
    assert capsys.readouterr().out.splitlines() == told(path, "nyc/0/2")
    drawn = picture.read_text(encoding="utf-8")
    assert all(f"<!-- {words} -->" in drawn for words in ("contribution of nyc, round 0, chunk 2", "NACK", "lon-h1"))
    assert "<!-- fra-h1 -->" not in drawn  # nothing happened there
    streams = (tables / "streams.csv").read_text(encoding="utf-8").splitlines()
    assert streams[0].split(",")[-3:] == ["latency_median_ms", "latency_p99_ms", "latency_max_ms"]
    hops = [line.split(",") for line in (tables / "hops.csv").read_text(encoding="utf-8").splitlines()]
    [last_hop] = [dict(zip(hops[0], hop, strict=True)) for hop in hops if hop[2:4] == ["lon-e", "lon-h1"]]
    assert (last_hop["lost"], last_hop["requests"], last_hop["repaired"], last_hop["latency_max_ms"]) == (
        *("1", "1", "1"),
        "3.2",
    )
    assert run_command(str(path), "--explain", "nyc/0/2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"explained": told(path, "nyc/0/2")}


def test_what_an_edge_has_lost_is_drawn_as_it_was_fetched(tmp_path: Path) -> None:
    network = Network()
    network.round(2, {})
    network.contribute(2)
    network.result("lon", 2)
    fetch = header(Kind.FETCH, 2, 2, value_count=0, bitmap=1)
    network.cross(("fra-h1:e0", "fra-e:h0"), frame(fetch, host("fra"), host("nyc"), REPAIR_PORT))
    answer = frame(header(chunk=2, flags=2), host("nyc"), host("fra"), RESULT_PORT)
    network.cross(("fra-e:h0", "fra-h1:e0"), answer)
    network.capture.end()
    picture = tmp_path / "x.svg"
    assert run_command(str(network.capture.write(tmp_path / "x.pcapng")), "--plot", str(picture)) == 0
    assert "<!-- contribution of nyc, round 0, chunk 2 -->" in picture.read_text(encoding="utf-8")


def test_incomplete_captures_are_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = Network()
    network.round(1, {})
    network.capture.end(lost=2)
    assert run_command(str(network.capture.write(tmp_path / "x.pcapng"))) == 1
    assert "incomplete" in capsys.readouterr().out


def test_a_picture_of_nothing_lost(tmp_path: Path) -> None:
    network = Network()
    network.round(2, {})
    network.capture.end()
    path = network.capture.write(tmp_path / "x.pcapng")
    assert not analyse(Captures([path])).lost
    picture = tmp_path / "x.svg"
    assert run_command(str(path), "--plot", str(picture)) == 0
    assert picture.stat().st_size > 1000
