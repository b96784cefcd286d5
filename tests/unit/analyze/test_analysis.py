"""What an analysis says of captures in which it is known what happened."""

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator.wire.packet import REPAIR_PORT, RESULT_PORT, Kind
from testbed.analyze.results import Recovery
from tests.unit.analyze.network import (
    MS,
    STREAM,
    TO_FRA,
    TO_LON,
    UP,
    Network,
    edge,
    hop_of,
    host,
    place,
    stream_to,
)
from tests.unit.capture.frames import frame, header

HOPS = [place(hop) for hop in (*UP, *TO_LON, *TO_FRA)]


def test_without_loss_everything_is_delivered(tmp_path: Path) -> None:
    network = Network()
    network.round(20, {})
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert analysis.complete
    assert not analysis.lost
    for receiver in ("lon", "fra"):
        stream = stream_to(analysis, receiver)
        assert (stream.source, stream.sent, stream.arrived, stream.delivered) == ("nyc", 20, 20, 20)
        assert (stream.repaired, stream.unrepaired, stream.lost.total()) == (0, 0, 0)
    assert analysis.packets["contribution"] == 20 * 2 * len(HOPS)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(0, 39), st.sampled_from([*HOPS, "lon"])))
def test_every_loss_has_its_place(tmp_path: Path, lost: dict[int, str]) -> None:
    network = Network()
    network.round(40, lost)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    on_links = Counter(where for where in lost.values() if where != "lon")
    assert Counter(packet.place for packet in analysis.lost) == on_links
    assert {(packet.chunk, packet.place) for packet in analysis.lost} == {
        (chunk, where) for chunk, where in lost.items() if where != "lon"
    }
    for name in HOPS:
        assert hop_of(analysis, name).lost == on_links[name]
    # What is lost before the tree branches is lost to both; what a router loses, it loses to all.
    for receiver, own in (("lon", TO_LON), ("fra", TO_FRA)):
        places = {place(hop) for hop in (*UP, *own)} | {"lon"}
        stream = stream_to(analysis, receiver)
        assert stream.lost == Counter(where for where in lost.values() if where in places)
        assert stream.sent == 40 == (stream.delivered or 0) + stream.lost.total()


def test_a_lost_result_is_repaired(tmp_path: Path) -> None:
    network = Network()
    for chunk in range(10):
        network.contribute(chunk)
        network.result("fra", chunk)
        number = network.result("lon", chunk, lost=chunk in {3, 5})
        if chunk == 7:
            network.nack("lon", 3, bitmap=0b101)
            network.now_ns += 4 * MS
            network.repair("lon", 3, 3)
            network.repair("lon", 5, 5, lost=True)
            network.now_ns += 5 * MS
            network.nack("lon", 5)
            network.repair("lon", 5, 5)
    assert number == 9
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    stream = stream_to(analysis, "lon")
    assert (stream.sent, stream.delivered, stream.repaired, stream.unrepaired) == (10, 8, 2, 0)
    assert stream.lost == {"lon-e>lon-h1": 2}
    assert hop_of(analysis, "lon-e>lon-h1").lost == 3  # a repair as well
    repair = analysis.repair
    assert (analysis.nacks, repair.wanted, repair.repaired, repair.repairs) == (2, 2, 2, 2)
    assert repair.latencies_ms == pytest.approx([4.2, 9.5])
    assert (repair.requests, repair.requests_received, repair.repairs_sent) == (2, 2, 3)
    last_hop = hop_of(analysis, "lon-e>lon-h1")
    assert last_hop.recovery == repair
    assert last_hop.redundant == 0
    assert hop_of(analysis, "fra-e>fra-h1").recovery == Recovery()
    assert hop_of(analysis, "lon-h1>lon-e").recovery is None


def test_what_hosts_have_already_is_redundant(tmp_path: Path) -> None:
    network = Network()
    network.round(3, {})
    number = network.result("lon", 1)  # as if its edge had not known
    network.repair("lon", 1, number)
    network.result("lon", 2, bitmap=0b11)  # with something new, and something that is there: it is dropped whole
    analysis = network.analysed(tmp_path)
    assert hop_of(analysis, "lon-e>lon-h1").redundant == 3
    assert hop_of(analysis, "fra-e>fra-h1").redundant == 0
    assert stream_to(analysis, "lon").repaired == 0


def test_what_a_lan_floods_to_other_hosts_did_not_come_to_them(tmp_path: Path) -> None:
    network = Network()
    own, another = (bytes([2, 0, 0, 0, 0, number]) for number in (1, 2))

    def result(chunk: int, number: int, link: bytes) -> None:
        packet = header(Kind.RESULT, 1, chunk, bitmap=1, stream=STREAM, reason=1, number=number)
        data = frame(packet, edge("lon"), host("lon"), RESULT_PORT)
        network.cross(("lon-e:h0", "lon-h1:e0"), link + data[6:])

    fetch = frame(header(Kind.FETCH, 1, value_count=0, bitmap=1), host("lon"), host("nyc"), REPAIR_PORT)
    network.cross(("lon-h1:e0", "lon-e:h0"), bytes(6) + own + fetch[12:])
    for chunk in range(2):
        network.contribute(chunk)
        network.result("fra", chunk)
        result(chunk, chunk, own)
    result(0, 2, another)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert hop_of(analysis, "lon-e>lon-h1").redundant == 0
    assert stream_to(analysis, "lon").delivered == 2


def test_frames_that_are_sent_again_as_they_were_are_each_lost(tmp_path: Path) -> None:
    network = Network()
    network.round(2, {})
    beat = header(Kind.HEARTBEAT, 1, value_count=0, bitmap=0, stream=STREAM, number=1)
    data = frame(beat, edge("lon"), host("lon"), RESULT_PORT)
    for copies in (1, 0, 1, 0, 0):
        network.cross(("lon-e:h0", "lon-h1:e0"), data, copies=copies)
    network.cross(("lon:c-fra", "fra:c-lon"), bytes(12) + b"\x88\xb5" + bytes(50), copies=0)
    network.now_ns += 500 * MS
    network.round(1, {}, round_number=1)
    analysis = network.analysed(tmp_path)
    assert hop_of(analysis, "lon-e>lon-h1").lost == 3
    lost = [(packet.kind, packet.place, packet.island) for packet in analysis.lost]
    assert lost == [("heartbeat", "lon-e>lon-h1", None)] * 3 + [("other", "lon>fra", None)]


def test_what_is_altered_before_our_header_is_seen(tmp_path: Path) -> None:
    network = Network()
    network.round(3, {})
    data = bytearray(frame(header(chunk=3), host("nyc"), "232.1.0.1"))
    words = struct.unpack("!10H", data[14:34])
    data[24:26] = (0xFFFF - sum(words) % 0xFFFF).to_bytes(2, "big")
    for place_of in (22, 35):  # time to live, port
        flipped = bytearray(data)
        flipped[place_of] ^= 8
        network.cross(UP[0], bytes(data), arriving=bytes(flipped))
    hop = hop_of(network.analysed(tmp_path), place(UP[0]))
    assert (hop.altered, hop.lost, hop.unexplained) == (2, 0, 0)


def test_a_result_that_is_never_repaired(tmp_path: Path) -> None:
    network = Network()
    network.contribute(0)
    network.result("fra", 0)
    network.result("lon", 0, lost=True)
    network.nack("lon", 0)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert stream_to(analysis, "lon").unrepaired == 1
    assert (analysis.repair.wanted, analysis.repair.unrepaired) == (1, 1)


def test_what_an_edge_does_not_send_on_is_lost_there(tmp_path: Path) -> None:
    network = Network()
    for chunk in range(4):
        network.contribute(chunk)
        network.result("fra", chunk)
        if chunk == 1:
            network.bypass("lon", chunk)
        elif chunk != 2:
            network.result("lon", chunk)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert stream_to(analysis, "lon").lost == {"lon-e": 1}
    assert stream_to(analysis, "lon").delivered == 3


def test_a_sum_of_what_never_arrived_is_unexplained(tmp_path: Path) -> None:
    network = Network()
    network.round(3, {1: "nyc>lon"})
    network.result("lon", 1)
    analysis = network.analysed(tmp_path)
    assert not analysis.reconciled
    assert analysis.unexplained > 0


def test_duplicates_and_alterations_of_a_link(tmp_path: Path) -> None:
    network = Network(captured=200)
    network.round(5, {})
    data = frame(header(chunk=5), host("nyc"), "232.1.0.1")
    network.cross(UP[0], data, copies=2)
    flipped = data[:-1] + bytes([data[-1] ^ 4])
    network.cross(UP[1], data, arriving=flipped)
    network.cross(UP[2], flipped)
    for hop in (*TO_LON, *TO_FRA):
        network.cross(hop, flipped)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert hop_of(analysis, place(UP[0])).duplicated == 1
    altered = hop_of(analysis, place(UP[1]))
    assert (altered.altered, altered.lost, altered.sent, altered.received) == (1, 0, 6, 6)
    assert all(stream.lost == {place(UP[1]): 1} for stream in analysis.streams)


def test_a_frame_may_be_altered_and_then_duplicated(tmp_path: Path) -> None:
    network = Network(captured=200)
    network.round(5, {})
    for chunk in (5, 6):
        data = frame(header(chunk=chunk), host("nyc"), "232.1.0.1")
        flipped = data[:-1] + bytes([data[-1] ^ 4])
        network.cross(UP[0], data, arriving=flipped if chunk == 5 else None, copies=2 * (chunk == 5))
    hop = hop_of(network.analysed(tmp_path), place(UP[0]))
    assert (hop.sent, hop.received, hop.lost, hop.altered, hop.duplicated, hop.unexplained) == (7, 7, 1, 1, 1, 0)


def test_reordering_is_counted_on_its_link(tmp_path: Path) -> None:
    network = Network()
    frames = [frame(header(chunk=chunk), host("nyc"), "232.1.0.1") for chunk in range(6)]
    arrival = [0, 2, 1, 3, 5, 4]
    for number, chunk in enumerate(arrival):
        network.capture.add(network.interfaces["nyc:c-lon"], number * MS, frames[number], True)
        network.capture.add(network.interfaces["lon:c-nyc"], number * MS + MS // 2, frames[chunk], False)
    for number, chunk in enumerate(arrival):
        network.capture.add(network.interfaces["lon:c-fra"], 9 * MS + number * MS, frames[chunk], True)
        network.capture.add(network.interfaces["fra:c-lon"], 9 * MS + number * MS + 1, frames[chunk], False)
    analysis = network.analysed(tmp_path)
    assert hop_of(analysis, "nyc>lon").reordered == 2
    assert hop_of(analysis, "lon>fra").reordered == 0


def test_numbers_of_a_stream_may_wrap(tmp_path: Path) -> None:
    network = Network(numbers={"lon": 2**32 - 3, "fra": 0})
    for chunk in range(6):
        network.contribute(chunk)
        network.result("fra", chunk)
        network.numbers["lon"] %= 2**32
        network.result("lon", chunk)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert hop_of(analysis, "lon-e>lon-h1").reordered == 0


def test_frames_of_other_protocols_are_accounted_for(tmp_path: Path) -> None:
    network = Network()
    network.round(3, {})
    for number in range(8):
        network.cross(("nyc:c-lon", "lon:c-nyc"), bytes(12) + b"\x08\x06" + bytes(40 + number), copies=number % 2)
    analysis = network.analysed(tmp_path)
    hop = hop_of(analysis, "nyc>lon")
    assert (hop.sent, hop.received, hop.lost) == (3 + 8, 3 + 4, 4)
    assert analysis.reconciled


def test_packets_on_their_way_at_the_ends_are_not_lost(tmp_path: Path) -> None:
    network = Network()
    arriving = frame(header(round=1), host("nyc"), "232.1.0.1")
    network.capture.add(network.interfaces["lon:c-nyc"], 10_000, arriving, False)
    network.capture.add(network.interfaces["lon:e0"], 20_000, arriving, True)
    network.capture.add(network.interfaces["lon-e:r0"], 30_000, arriving, False)
    network.round(5, {}, round_number=2)
    leaving = frame(header(round=3), host("nyc"), "232.1.0.1")
    network.capture.add(network.interfaces["nyc-h1:e0"], network.now_ns, leaving, True)
    network.capture.end_ns = network.now_ns + 10_000
    analysis = network.analysed(tmp_path)
    assert hop_of(analysis, "nyc-h1>nyc-e").in_flight == 1
    assert hop_of(analysis, "nyc>lon").entering == 1
    assert all(hop.lost == hop.unexplained == 0 for hop in analysis.hops)
    assert analysis.reconciled
    assert analysis.partial_rounds == [1, 3]
    assert (stream_to(analysis, "fra").sent, stream_to(analysis, "fra").delivered) == (5, 5)


def test_a_recording_with_gaps_is_incomplete(tmp_path: Path) -> None:
    network = Network()
    network.round(2, {})
    analysis = network.analysed(tmp_path, lost_by_recorder=3)
    assert not analysis.complete
    assert "lacks" in analysis.warnings[0]


@pytest.mark.parametrize("source", ["10.1.0.10", "10.1.0.50"])
def test_fetched_contributions_are_repairs(tmp_path: Path, source: str) -> None:
    network = Network(source=source)
    network.round(4, {2: "lon>fra"})
    fetch = header(Kind.FETCH, 2, 2, value_count=0, number=0, bitmap=1)
    way = [("fra-h1:e0", "fra-e:h0"), ("fra-e:r0", "fra:e0"), ("fra:c-lon", "lon:c-fra"), ("lon:c-nyc", "nyc:c-lon")]
    way += [("nyc:e0", "nyc-e:r0"), ("nyc-e:h0", "nyc-h1:e0")]
    for hop in way:
        network.cross(hop, frame(fetch, host("fra"), host("nyc"), 47003))
    answer = frame(header(chunk=2, flags=2), host("nyc"), host("fra"), RESULT_PORT)
    for out, inward in reversed(way):
        network.cross((inward, out), answer)
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    stream = stream_to(analysis, "fra")
    assert (stream.sent, stream.delivered, stream.repaired, stream.unrepaired) == (4, 3, 1, 0)
    assert stream.lost == {"lon>fra": 1}
    assert (analysis.nacks, analysis.fetches, analysis.repair.repaired) == (0, 1, 1)
    fetched = stream.recovery
    assert (fetched.requests, fetched.requests_received, fetched.repairs_sent, fetched.repairs) == (1, 1, 1, 1)
    assert stream_to(analysis, "lon").recovery == Recovery()
    assert analysis.first_fetched == (0, 0, 2, 0)


def test_gone_is_no_repair(tmp_path: Path) -> None:
    network = Network()
    network.contribute(0)
    network.result("fra", 0)
    network.result("lon", 0, lost=True)
    network.nack("lon", 0)
    gone = header(Kind.GONE, 1, value_count=0, number=0, bitmap=1, stream=STREAM)
    network.cross(("lon-e:h0", "lon-h1:e0"), frame(gone, edge("lon"), host("lon"), RESULT_PORT))
    repair = network.analysed(tmp_path).repair
    assert (repair.wanted, repair.gone, repair.unrepaired) == (1, 1, 1)


def test_memory_stays_flat_over_rounds(tmp_path: Path) -> None:
    """Packets are summed up when they are done: hours of capture need no more than seconds of it."""
    network = Network()
    for round_number in range(4):
        network.round(10, {1: "nyc>lon"}, round_number)
        network.now_ns += 30_000 * MS
    analysis = network.analysed(tmp_path)
    assert analysis.reconciled
    assert hop_of(analysis, "nyc>lon").lost == 4
    assert stream_to(analysis, "fra").delivered == 36
