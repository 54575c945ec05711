"""On PYTHONPATH of the security tests: every process says that it was there, and no connection is made."""

import os
import socket

_RECORD = os.environ.get("SGLANG_GUARDS_TEST_SEAL")


def _note(line: str) -> None:
    if _RECORD:
        with open(_RECORD, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _sealed(name):
    def call(self, address, *args):
        _note(f"{name} {address!r}")
        raise OSError(f"the test allows no {name}")

    return call


_note(f"sealed {os.getpid()}")
for _name in ("connect", "connect_ex"):
    setattr(socket.socket, _name, _sealed(_name))
_lookup = socket.getaddrinfo


def _getaddrinfo(host, *args, **kwargs):
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()):
        _note(f"getaddrinfo {host!r}")
        raise socket.gaierror(socket.EAI_NONAME, "the test allows no lookup")
    return _lookup(host, *args, **kwargs)


socket.getaddrinfo = _getaddrinfo
