"""The hosts of an island give each other their shards."""

import threading

import numpy as np
import pytest

from agents.exchange_area import ExchangeArea
from agents.island_memory import IslandMemory
from agents.lan import Gathered, Lan
from agents.shard import make_shard

SHARD_VALUES = [20, 17]
ADDRESSES = ["127.0.0.11", "127.0.0.12", "127.0.0.13"]


def _memory(own: int) -> IslandMemory:
    shards = [make_shard(1, 0, number, SHARD_VALUES, 10) for number in range(2)]
    shape = (2, sum(SHARD_VALUES))
    return IslandMemory(
        shards, own, ExchangeArea(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros((2, 4), np.uint64), 10)
    )


def test_after_the_exchange_all_hosts_hold_the_same() -> None:
    hosts = [_memory(0), _memory(1)]
    for number, host in enumerate(hosts):
        host.begin(5)
        host.summed[host.shard.value_slice] = 100 * (number + 1) + np.arange(SHARD_VALUES[number])
        host.bitmaps[host.shard.chunk_slice] = number + 1
        assert not host.complete
    parts = [host.own_part() for host in hosts]
    hosts[0].take(Gathered(5, 1, parts[1]))
    hosts[1].take(Gathered(5, 0, parts[0]))
    assert all(host.complete for host in hosts)
    assert hosts[0].digest() == hosts[1].digest()
    assert hosts[0].summed.tolist() == [*range(100, 120), *range(200, 217)]
    assert hosts[0].bitmaps.tolist() == [1, 1, 2, 2]


def test_what_is_of_another_round_or_size_is_not_taken_in() -> None:
    host = _memory(0)
    host.begin(5)
    host.take(Gathered(4, 1, b""))
    assert not host.complete
    with pytest.raises(ValueError, match="shard 1 of round 5"):
        host.take(Gathered(5, 1, b"short"))


def test_three_hosts_send_more_than_their_sockets_hold() -> None:
    content = [bytes([number]) * 20_000_000 for number in range(3)]
    received: dict[int, dict[int, bytes]] = {}

    def host(number: int) -> None:
        lan = Lan(7, number, ADDRESSES)
        lan.offer(3, content[number])
        mine: dict[int, bytes] = {}
        while len(mine) < 2:
            for part in lan.serve():
                assert part.round == 3
                mine[part.shard] = part.content
        received[number] = mine
        while any(events & 4 for events in lan.interests().values()):
            lan.serve()
        done.wait(20)
        lan.close()

    done = threading.Barrier(3)
    threads = [threading.Thread(target=host, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {number: set(mine) for number, mine in received.items()} == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
    assert all(part == content[shard] for mine in received.values() for shard, part in mine.items())
