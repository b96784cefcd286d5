"""Scapy knows our packets: its layer agrees with the golden vectors and with both parsers."""

import ctypes
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from aggregator.admission import Shape
from aggregator.receiver import REASONS, NativeShape, native_library, network_order
from aggregator.wire.packet import REPAIR_PORT, RESULT_PORT, Header, Kind, parse_packet
from testbed.capture.layers import TB
from tests.unit.aggregator.test_wire_packet import (
    CONTRIBUTION,
    CONTRIBUTION_BYTES,
    FETCH,
    FETCH_BYTES,
    GONE,
    GONE_BYTES,
    HEARTBEAT,
    HEARTBEAT_BYTES,
    NACK,
    NACK_BYTES,
    RESULT,
    RESULT_BYTES,
    sealed,
)
from tests.unit.capture.frames import frame

VECTORS = [
    (CONTRIBUTION, CONTRIBUTION_BYTES),
    (RESULT, sealed(RESULT_BYTES)),
    (NACK, sealed(NACK_BYTES)),
    (HEARTBEAT, sealed(HEARTBEAT_BYTES)),
    (GONE, sealed(GONE_BYTES)),
    (FETCH, sealed(FETCH_BYTES)),
]
NAMES = [field.name for field in dataclasses.fields(Header)]
LIBRARY = native_library()


def fields_of(layer: TB) -> dict[str, int]:
    return {name: int(getattr(layer, name)) for name in NAMES}


@pytest.mark.parametrize(("header", "datagram"), VECTORS)
def test_golden_vectors(header: Header, datagram: bytes) -> None:
    layer = TB(datagram)
    assert fields_of(layer) == {name: int(getattr(header, name)) for name in NAMES}
    assert layer.checksum_is_good()
    assert bytes(layer.payload) == datagram[64:]
    built = TB(**fields_of(layer)) / datagram[64:]
    assert bytes(built) == datagram


@given(st.builds(dict, **{name: st.integers(0, 255) for name in ("source", "contributors", "flags", "number_format")}))
def test_what_scapy_builds_our_parser_reads(fields: dict[str, int]) -> None:
    datagram = bytes(TB(kind=Kind.RESULT, **fields) / b"12345678")
    parsed = parse_packet(memoryview(datagram))
    assert parsed.value_count == 2
    assert {name: getattr(parsed, name) for name in fields} == fields


def test_what_is_left_out_is_filled_in() -> None:
    parsed = parse_packet(memoryview(bytes(TB(kind=Kind.RESULT, bitmap=0b110) / bytes(12))))
    assert (parsed.contributors, parsed.value_count) == (2, 3)


@pytest.mark.skipif(LIBRARY is None, reason="the C receiver is not built here")
@settings(deadline=None)
@given(st.integers(0, 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_what_scapy_builds_the_c_parser_admits(chunk: int, number: int, epoch: int, round_number: int) -> None:
    assert LIBRARY is not None
    shape = NativeShape(Shape(job=77, contributors={"10.0.0.1": 1}, shard_values=[20], values_per_chunk=10))
    shape.allow([("232.1.0.1", "10.0.0.1")])
    fields = {"job": 77, "epoch": epoch, "round": round_number, "source": 1, "bitmap": 2, "chunk": chunk}
    datagram = bytes(TB(**fields, number=number) / bytes(40))
    ends = network_order("232.1.0.1"), network_order("10.0.0.1")
    address = ctypes.addressof(shape.structure)
    assert REASONS[LIBRARY.tb_check(address, datagram, len(datagram), *ends)] == "admitted"
    broken = datagram[:-1] + b"\1"
    assert REASONS[LIBRARY.tb_check(address, broken, len(broken), *ends)] == "checksum"
    assert not TB(broken).checksum_is_good()


@pytest.mark.parametrize("port", [47000, RESULT_PORT, REPAIR_PORT])
def test_scapy_finds_the_layer_by_its_port(port: int) -> None:
    packet = Ether(frame(CONTRIBUTION, "10.1.0.10", "232.1.0.1", port))
    assert packet[TB].chunk == CONTRIBUTION.chunk


def test_a_packet_is_sent_to_where_contributions_go() -> None:
    assert (IP() / UDP() / TB())[UDP].dport == 47000
