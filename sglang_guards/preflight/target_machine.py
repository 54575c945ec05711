"""What only the machine that will serve has, taken for granted on the machine that checks.

Files, InfiniBand devices and hosts that the launch names are accepted as given: SGLang asks whether they are there,
and the answer of this machine would say nothing about the other one. Their contents are not made up: SGLang opening
a file that is not here is an error of the check, not of the launch.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Where Linux lists InfiniBand devices.
_INFINIBAND = "/sys/class/infiniband"
#: Fields of ServerArgs, and variables of the environment, that name such devices.
DEVICE_FIELDS = ("disaggregation_ib_device", "mooncake_ib_device")
_DEVICE_VARIABLES = ("MOONCAKE_DEVICE", "MC_IB_DEVICE")
#: Stands for the devices of a mapping whose file is not here.
_UNREAD_DEVICES = "devices-of-the-target-machine"
#: An address for documentation (RFC 5737), for hosts whose real one is not known here.
_SOME_ADDRESS = "192.0.2.1"
#: Model paths have rules of their own (see `resolve`).
_NOT_FILES = frozenset(
    {"model_path", "tokenizer_path", "speculative_draft_model_path", "speculative_draft_model", "config"}
)


def files_named(given: Mapping[str, Any], env: Mapping[str, str]) -> frozenset[str]:
    """Paths that server args or the environment name: anything that begins like one or has a slash."""
    words = [word for name, value in given.items() if name not in _NOT_FILES for word in _words(value)]
    words += [value for name, value in env.items() if name.startswith(("SGLANG_", "SGL_", "MOONCAKE_"))]
    return frozenset(word for word in words if _like_a_path(word))


def _words(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
        if value.startswith(("{", "[")):
            with suppress(ValueError):
                yield from _words(json.loads(value))
        elif "=" in value:  # a named LoRA adapter
            yield value.partition("=")[2]
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _words(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _words(inner)


def _like_a_path(word: str) -> bool:
    return bool(word) and "\n" not in word and ("/" in word or bool(re.search(r"\.[A-Za-z]\w{1,7}$", word)))


def devices_named(given: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    """InfiniBand devices that the launch names, by themselves or in a mapping from GPU to devices."""
    texts = [str(given[name]) for name in DEVICE_FIELDS if given.get(name)]
    texts += [env[name] for name in _DEVICE_VARIABLES if env.get(name)]
    names: list[str] = []
    for text in texts:
        mapped: Any = None
        with suppress(ValueError):
            mapped = json.loads(text)
        lists = map(str, mapped.values()) if isinstance(mapped, dict) else (text,)
        names += [name.strip() for one in lists for name in one.split(",") if name.strip()]
    return tuple(dict.fromkeys(names))


def stand_in_devices(values: dict[str, Any]) -> dict[str, str]:
    """Replace a device mapping whose file is not here, in place; the stand-in -> what was given."""
    stands_for = {}
    for name in DEVICE_FIELDS:
        text = values.get(name)
        if isinstance(text, str) and text.endswith(".json") and not Path(text).exists():
            values[name] = _UNREAD_DEVICES
            stands_for[_UNREAD_DEVICES] = text
    return stands_for


def take_for_granted(given: Mapping[str, Any], env: Mapping[str, str], words: Sequence[str]) -> None:
    """From now on this process finds the files, devices and hosts of the target machine. There is no way back."""
    _have_files({os.path.normpath(os.path.expanduser(name)) for name in files_named(given, env)})
    devices = devices_named(given, env)
    if devices:
        _have_devices(devices)
    _know_hosts(" ".join(words))


def _have_files(names: set[str]) -> None:
    """`exists` and `isfile` say yes for what was named; whether it is a folder nobody can tell."""
    if not names:
        return

    def named(path: Any) -> bool:
        try:
            text = os.fspath(path)
        except TypeError:
            return False
        return isinstance(text, str) and os.path.normpath(os.path.expanduser(text)) in names

    for owner, method in ((os.path, "exists"), (os.path, "isfile"), (Path, "exists"), (Path, "is_file")):
        setattr(owner, method, _or_named(getattr(owner, method), named))


def _or_named(original: Any, named: Any) -> Any:
    def ask(path: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(original(path, *args, **kwargs)) or named(path)

    return ask


def _have_devices(devices: tuple[str, ...]) -> None:
    isdir, listdir = os.path.isdir, os.listdir
    os.path.isdir = lambda path: _is_infiniband(path) or isdir(path)  # type: ignore[assignment]

    def listed(path: Any = ".") -> Any:
        return list(devices) if _is_infiniband(path) else listdir(path)

    os.listdir = listed


def _is_infiniband(path: Any) -> bool:
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).rstrip("/") == _INFINIBAND


def _know_hosts(words: str) -> None:
    """Names of hosts that the launch mentions have some address; others stay unknown here."""
    lookup = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return lookup(host, *args, **kwargs)
        except socket.gaierror:
            name = host.decode() if isinstance(host, bytes) else str(host)
            if name not in words:
                raise
            return lookup(_SOME_ADDRESS, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo
    socket.gethostbyname = lambda host: str(getaddrinfo(host, None, socket.AF_INET)[0][4][0])
