"""A relay on the loopback address that counts what really crosses, TLS and HTTP/2 included."""

import socket
import threading
from contextlib import suppress
from typing import Self

PIECE = 2**16


class Relay:
    """Takes connections and hands every byte on, to and from a port of this machine."""

    def __init__(self, port: int) -> None:
        self.up = 0
        """Bytes from whoever connects; `down`: those to them."""
        self.down = 0
        self._port = port
        self._ends: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"

    def __enter__(self) -> Self:
        """Begin to take connections."""
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening, and cut the connections that are still open."""
        for end in (self._door, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _take(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                for one, other, way in ((near, far, "up"), (far, near, "down")):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(one, other, way), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, way: str) -> None:
        with suppress(OSError):  # either side has gone
            while piece := one.recv(PIECE):
                setattr(self, way, getattr(self, way) + len(piece))  # one thread a way writes it
                other.sendall(piece)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
