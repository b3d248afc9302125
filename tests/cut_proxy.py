"""A TCP proxy to PostgreSQL that cuts a connection where a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["CutProxy"]


class CutProxy:
    """Passes bytes both ways. Use as a context manager.

    `cut_before` drops the connection instead of passing on the next message with these bytes; `cut_after` passes it on and drops
    the answer. Each happens once.
    """

    def __init__(self, port: int) -> None:
        """Stand before the server at this port."""
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_before = b""
        self.cut_after = b""
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> CutProxy:
        """Begin to listen."""
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Drop everything."""
        for one in (self._listener, *self._sockets):
            _close(one)
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets += [client, server]
            self._start(self._requests, client, server)
            self._start(self._answers, client, server)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut_before and self.cut_before in data:
                    self.cut_before = b""
                    self.cuts += 1
                    break
                if self.cut_after and self.cut_after in data:
                    self.cut_after = b""
                    self.cuts += 1
                    _close(client)
                server.sendall(data)
        _close(client)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        _close(client)
        _close(server)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
