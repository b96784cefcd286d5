"""The number format f32: what is cleaned from contributions, and how sums of floats are taken in and averaged."""

import socket
from collections.abc import Mapping

import numpy as np
import pytest

from agents.exchange import ExchangeSettings, IslandExchange
from agents.exchange_area import ExchangeArea
from agents.float32 import NUMBER_FORMAT, clean
from agents.receiving import Receiver
from agents.sending import RoundPackets
from agents.shard import Shard
from agents.workloads.interface import Parameters, Tensor
from aggregator.wire.packet import HEADER_BYTES, Header, Kind, Reason, parse_packet, write_packet
from tests.unit.agents.fed_receiver import feed

EDGE = "10.0.0.1"


def test_what_is_no_number_too_large_or_denormal_is_counted_and_replaced() -> None:
    cleaned = clean(np.array([1.5, np.nan, -np.inf, 1e39, -1e39, 1e-40, 0.0, -(2.0**-126)]))
    largest = np.finfo(np.float32).max
    assert cleaned.floats.tolist() == [1.5, 0, 0, float(largest), -float(largest), 0, 0, -(2.0**-126)]
    assert cleaned.floats.dtype == np.float32
    assert (cleaned.saturated, cleaned.non_finite, cleaned.denormal) == (2, 2, 1)


class Still:
    """A trainer that does not train."""

    def __init__(self, values: list[float]):
        self._values = np.array(values, np.float32)

    def parameters(self) -> Parameters:
        return self._values

    def load_parameters(self, parameters: Parameters) -> None:
        self._values = parameters

    def train(self, step: int) -> None: ...

    def evaluate(self) -> Mapping[str, float]:
        return {}


def test_exchange_averages_floats() -> None:
    area = ExchangeArea(np.zeros((1, 4), np.int32), np.zeros((1, 4), np.int32), np.zeros((1, 2), np.uint64), 2)
    trainer = Still([1.5, 2.5, np.nan])
    exchange = IslandExchange(trainer, [Tensor("w", 3, 1.0)], 0, area, ExchangeSettings(NUMBER_FORMAT))
    counts = exchange.contribute(0, 2)
    assert (counts.saturated, counts.non_finite, counts.denormal) == (0, 1, 0)
    assert area.sent[0].view(np.float32).tolist() == [1.5, 2.5, 0, 0]
    area.summed[0] = np.array([0.5, 1.5, 8, 0], np.float32).view(np.int32)
    area.bitmaps[0] = 0b110, 0b010
    exchange.apply(0)
    assert trainer.parameters().tolist() == pytest.approx([2 / 3, 4 / 3, 4])


def test_packets_say_their_format_and_are_taken_in_as_floats() -> None:
    sender, receiver_shard = Shard(1, 3, 0, 3, 0, 2), Shard(1, 0, 0, 3, 0, 2)
    packets = RoundPackets(sender, NUMBER_FORMAT)
    packets.build(np.array([1.5, -2.25, 0.125], np.float32).view(np.int32), 0, 0)
    summed, bitmaps = np.zeros(3, np.int32), np.zeros(2, np.uint64)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        receiver = Receiver(unused, receiver_shard, EDGE, {}, NUMBER_FORMAT)
        integers = Receiver(unused, receiver_shard, EDGE, {})
    receiver.begin(0, 0, 0b1000, summed, bitmaps)
    integers.begin(0, 0, 0b1000, np.zeros(3, np.int32), np.zeros(2, np.uint64))
    for chunk, length in enumerate(packets.lengths.tolist()):
        start = chunk * packets.slot_bytes
        datagram = memoryview(packets.buffer)[start : start + length]
        sent = parse_packet(datagram)
        assert sent.number_format == NUMBER_FORMAT
        result = Header(Kind.RESULT, 0, 1, 0, 0, 0, chunk, sent.value_count, bitmap=0b1000, reason=Reason.COMPLETE)
        result.number_format = NUMBER_FORMAT
        out = bytearray(length)
        write_packet(memoryview(out), result, datagram[HEADER_BYTES:])
        for each in (receiver, integers):
            feed(each, [(bytes(out), EDGE)])
    assert summed.view(np.float32).tolist() == [1.5, -2.25, 0.125]
    assert (receiver.end().complete, integers.end().refused) == (2, 2)
