"""No connection leaves this machine from the process that resolves a launch."""

from __future__ import annotations

import socket
from typing import Any


def no_network() -> None:
    """Refuse every connection that would leave this machine, whatever asks for it."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        local = self.family == socket.AF_UNIX or (isinstance(address, tuple) and address[0] in _LOOPBACK)
        if self.type & socket.SOCK_STREAM and not local:
            raise OSError("sglang-guards check stays offline")
        connect(self, address)

    lookup = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is None or name in _LOOPBACK or name == socket.gethostname() or _is_number(name):
            return lookup(host, *args, **kwargs)
        raise socket.gaierror(socket.EAI_NONAME, "sglang-guards check stays offline")

    socket.socket.connect = guarded  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = getaddrinfo


_LOOPBACK = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def _is_number(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
