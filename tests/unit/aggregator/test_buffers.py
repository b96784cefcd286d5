import socket

from aggregator.wire.buffers import overflows


def test_drops_at_a_full_socket_are_counted_to_the_last() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        assert overflows(receiver) == 0
        for _ in range(100):
            sender.sendto(bytes(1000), receiver.getsockname())
        received = 0
        try:
            while receiver.recv(2000):
                received += 1
        except BlockingIOError:
            pass
        assert 0 < received < 100
        assert overflows(receiver) == 100 - received
