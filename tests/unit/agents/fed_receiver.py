"""Gives datagrams to a receiver without a socket, at any time."""

import ctypes
from collections.abc import Sequence

from agents.receiving import Receiver
from aggregator.receiver import network_order


def feed(receiver: Receiver, batch: Sequence[tuple[bytes, str]], now_ns: int = 0, tell: int = 0) -> None:
    """A batch of (datagram, sender's address) has come and is taken in, all at `now_ns`."""
    library, host = receiver._library, receiver._host
    library.tb_host_take.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int64]
    library.tb_host_begin_batch.argtypes = [ctypes.c_void_p]
    host.now_ns, host.tell = now_ns, tell
    library.tb_host_begin_batch(ctypes.addressof(host))
    for datagram, sender in batch:
        library.tb_host_take(ctypes.addressof(host), datagram, len(datagram), network_order(sender), now_ns)
