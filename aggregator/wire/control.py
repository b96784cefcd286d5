"""The channel of run control: JSON messages over a Unix SOCK_SEQPACKET socket (docs/run-control.md)."""

import argparse
import json
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

MAX_MESSAGE_BYTES = 1 << 20
_BUFFER_BYTES = 4 * MAX_MESSAGE_BYTES


class Channel:
    """One end of a control channel. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        # A message must fit the sender's buffer whole, and the default holds only some 200 kB.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.socket = sock

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message. Raises OSError if the other end is gone, ValueError if the message is too long."""
        data = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode()
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"control message {kind!r} has {len(data)} bytes, at most {MAX_MESSAGE_BYTES} fit")
        self.socket.send(data)

    def receive(self) -> Message | None:
        """Wait for one message; None when the other end has closed the channel."""
        try:
            data = self.socket.recv(MAX_MESSAGE_BYTES)
        except ConnectionResetError:
            return None
        if not data:
            return None
        message: Message = json.loads(data)
        return message

    def close(self) -> None:
        self.socket.close()


def pair() -> tuple[Channel, Channel]:
    """Two connected ends: one for the run, one for a process to inherit."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), Channel(theirs)


def process_main(name: str, description: str, serve: Callable[[Channel], None]) -> int:
    """Serve the run that has started this process with its end of a channel (`--control-fd N`); the exit code.

    Whatever `serve` raises ends the process: the run gets one line of it, the log the rest.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--control-fd", type=int, required=True, metavar="N", help="inherited control socket")
    channel = Channel(socket.socket(fileno=parser.parse_args().control_fd))
    try:
        serve(channel)
    except Exception as error:
        traceback.print_exc()
        # The text of a KeyError is the key alone.
        text = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
        with suppress(OSError):
            channel.send("error", message=f"{name}: {text}")
        return 1
    finally:
        channel.close()
    return 0
