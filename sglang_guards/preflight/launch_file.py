"""The launch in a file: a shell script, a Slurm job, a compose file or Kubernetes YAML."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_guards import redact, shell, shell_expand
from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import command_line
from sglang_guards.preflight.command_line import Command

_LARGEST = 4 << 20
_KUBERNETES_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_COMPOSE_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-+?])((?:[^{}])*))?\})")
_SBATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:[=\s]\s*(\S+))?", re.MULTILINE)


def read(path: str | os.PathLike[str], env: Mapping[str, str], nth: int | None = None) -> Command:
    """The one launch in a file, or the `nth`; the notes say which, and show it."""
    name = os.fspath(path)
    if not os.path.exists(name):  # FILE:LINE
        name = re.sub(r":\d+$", "", name)
    text = _text(name)
    if name.endswith((".yaml", ".yml")):
        command, where = _of_yaml(text, name, env, nth)
    else:
        command, where = _of_script(text, env, nth)
    shown = shell.shown(redact.words(command.argv, redact.secrets_in(command.argv, env)))
    return replace(command, notes=(f"judged is the launch {where} of {name}: {shown}", *command.notes))


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read(_LARGEST + 1) if name == "-" else _bytes(Path(name).expanduser())
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise CouldNotCheck(f"the launch file {name} cannot be read: {error}") from None
    if len(data) > _LARGEST:
        raise CouldNotCheck(f"the launch file {name} is larger than {_LARGEST >> 20} MiB")
    if "\0" in text:
        raise CouldNotCheck(f"the launch file {name} is no text")
    return text


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST + 1)


def _of_script(text: str, env: Mapping[str, str], nth: int | None) -> tuple[Command, str]:
    job = dict(_SBATCH.findall(text))
    base = dict(env)
    if job:
        nodes = (job.get("--nodes") or job.get("-N") or "1").partition("-")[0]
        base |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes)
        base |= dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0")
    command = command_line.of_text(text, base, nth)
    added = {k for k, v in base.items() if env.get(k) != v}
    kept = tuple((k, v) for k, v in command.env if k not in added)
    command = replace(command, env=kept, unset=tuple(k for k in command.unset if k not in added))
    if job:
        count = _slurm_gpus(job)
        notes = (*command.notes, "a Slurm job is judged as its first task on the first node")
        devices = ",".join(map(str, range(count))) if count and command.devices is None else command.devices
        command = replace(command, devices=devices, notes=notes)
    return command, f"at line {command.line}"


def _slurm_gpus(job: Mapping[str, str]) -> int:
    asked = job.get("--gpus-per-node") or job.get("--gres", "").removeprefix("gpu:") or ""
    number = asked.split(":")[-1]
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True)
class _Container:
    """What YAML says of one container."""

    name: str
    image: str
    words: tuple[str, ...]
    env: Mapping[str, str | None]
    devices: int = 0
    mounts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def _of_yaml(text: str, name: str, env: Mapping[str, str], nth: int | None) -> tuple[Command, str]:
    try:
        import yaml
    except ImportError:
        raise CouldNotCheck(
            f"reading {name} takes PyYAML, which is not installed here",
            "pip install pyyaml (SGLang brings it)",
        ) from None
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
        containers = [c for d in documents for c in (*_compose(d, env), *_kubernetes(d))]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" at line {line + 1}" if line is not None else ""
        raise CouldNotCheck(f"the launch file {name} is no YAML{where}: {type(error).__name__}") from None
    found: list[tuple[_Container, Command]] = []
    why: CouldNotCheck | None = None
    for container in containers:
        try:
            found.append((container, _launch_of(container, env)))
        except CouldNotCheck as error:
            why = why or (error if "sglang" in " ".join(container.words) else None)
    if not found:
        raise why or CouldNotCheck(
            f"{name} holds no launch of SGLang", "a container's command and args are read, not its image"
        )
    if len(found) > 1 and nth is None:
        names = ", ".join(container.name for container, _ in found)
        raise CouldNotCheck(f"{name} holds {len(found)} launches: {names}", "choose one with --nth N")
    if nth is not None and not 1 <= nth <= len(found):
        raise CouldNotCheck(f"there is no launch number {nth}: {name} holds {len(found)}", "count from 1")
    container, command = found[(nth or 1) - 1]
    return command, f"of {container.name}"


def _launch_of(container: _Container, base: Mapping[str, str]) -> Command:
    if not container.words:
        raise CouldNotCheck(f"{container.name} leaves the command to its image")
    env = {k: v for k, v in container.env.items() if v is not None}
    unknown = sorted(k for k, v in container.env.items() if v is None)
    notes = (
        (f"the value of {', '.join(unknown)} is not in the file, and is judged as unset",) if unknown else ()
    )
    outer = Command((), (), (), False, env=tuple(env.items()), contained=True)
    inner = command_line.of_words(container.words, outer.environment(base))
    count = container.devices
    return replace(
        inner,
        env=tuple((env | dict(inner.env)).items()),
        contained=True,
        places=(*([f"that of the image {container.image}"] if container.image else []), *inner.places),
        devices=",".join(map(str, range(count))) if count else inner.devices,
        mounts=container.mounts,
        notes=(*container.notes, *notes, *inner.notes),
        cut=True,
    )


def _compose(document: Any, env: Mapping[str, str]) -> Iterator[_Container]:
    services = document.get("services") if isinstance(document, dict) else None
    for name, service in (services if isinstance(services, dict) else {}).items():
        if not isinstance(service, dict):
            continue
        missing: list[str] = []
        words = [
            w for key in ("entrypoint", "command") for w in _compose_words(service.get(key), env, missing)
        ]
        variables = {
            k: env.get(k) if v is None else _interpolated(v, env, missing)
            for k, v in _pairs(service.get("environment")).items()
        }
        notes = (
            [f"{', '.join(dict.fromkeys(missing))} is not set here and counts as empty, as compose does"]
            if missing
            else []
        )
        if service.get("env_file"):
            notes.append("env_file is not read; what it sets is not known")
        yield _Container(
            name=f"the service {name}",
            image=_interpolated(service.get("image") or "", env, []),
            words=tuple(words),
            env=variables,
            devices=_compose_gpus(service),
            mounts=tuple(_compose_mounts(service.get("volumes"), env)),
            notes=tuple(notes),
        )


def _compose_words(value: Any, env: Mapping[str, str], missing: list[str]) -> Sequence[str]:
    if isinstance(value, list):
        return [_interpolated(v, env, missing) for v in value]
    if not isinstance(value, str):
        return []
    text = _interpolated(value, env, missing)
    try:  # compose splits words, but expands nothing: a dollar that is left is text
        raws = shell.commands(text.replace("$", "\\$"))
    except shell.ShellError as error:
        raise CouldNotCheck(f"a command cannot be split into words: {error}") from None
    return [w for raw in raws for word in raw.words for w in shell_expand.plain_words(word)]


def _interpolated(value: Any, env: Mapping[str, str], missing: list[str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name, operator, default = found[2] or found[3], found[4] or "", found[5] or ""
        value = env.get(name)
        absent = value is None or (operator.startswith(":") and value == "")
        if operator.endswith("+"):
            return "" if absent else default
        if absent and operator.endswith("-"):
            return default
        if value is None:
            missing.append(name)
        return value or ""

    return _COMPOSE_VARIABLE.sub(replaced, _scalar(value))


def _scalar(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(value: Any) -> dict[str, Any]:
    """``environment`` as a list of ``A=b`` or as a mapping."""
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    split = (str(entry).partition("=") for entry in (value if isinstance(value, list) else ()))
    return {k: v if sign else None for k, sign, v in split}


def _compose_gpus(service: Mapping[str, Any]) -> int:
    devices = _at(service, "deploy", "resources", "reservations", "devices")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict):
            ids, count = device.get("device_ids"), device.get("count")
            if isinstance(ids, list) or isinstance(count, int):
                return len(ids) if isinstance(ids, list) else int(count or 0)
    return 0


def _compose_mounts(volumes: Any, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for volume in volumes if isinstance(volumes, list) else ():
        if isinstance(volume, dict):
            yield str(volume.get("target") or ""), _interpolated(volume.get("source") or "", env, [])
        else:
            outside, _, inside = _interpolated(volume, env, []).partition(":")
            yield inside.partition(":")[0], outside


def _kubernetes(document: Any) -> Iterator[_Container]:
    for container in _containers(document, set()):
        env: dict[str, str | None] = {}
        for entry in _list(container.get("env")):
            if isinstance(entry, dict) and "name" in entry:
                known = "value" in entry or "valueFrom" not in entry
                text = _kubernetes_text(entry.get("value"), env) if known else None
                env[str(entry["name"])] = text
        words = [_kubernetes_text(w, env) for key in ("command", "args") for w in _list(container.get(key))]
        limits = _at(container, "resources", "limits")
        counts = [v for k, v in limits.items() if str(k).endswith("/gpu")] if isinstance(limits, dict) else []
        number = str(counts[0]) if counts else ""
        notes = ("envFrom is not read; what it sets is not known",) if container.get("envFrom") else ()
        yield _Container(
            name=f"the container {container.get('name') or container.get('image')}",
            image=str(container.get("image") or ""),
            words=tuple(words),
            env=env,
            devices=int(number) if number.isdigit() else 0,
            notes=notes,
        )


def _kubernetes_text(value: Any, env: Mapping[str, str | None]) -> str:
    """``$(NAME)`` of a variable set above is its value; any other stays as it is."""

    def replaced(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1]) or found[0]

    return _KUBERNETES_VARIABLE.sub(replaced, _scalar(value))


def _containers(node: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """Every entry of a list named ``containers`` (or ``initContainers``), once, however often YAML repeats it."""
    if id(node) in seen or not isinstance(node, (dict, list)):
        return
    seen.add(id(node))
    if isinstance(node, list):
        for entry in node:
            yield from _containers(entry, seen)
        return
    for key, value in node.items():
        if key == "containers" and isinstance(value, list):
            for entry in value:
                if isinstance(entry, dict) and id(entry) not in seen:
                    seen.add(id(entry))
                    yield entry
        elif key != "services":
            yield from _containers(value, seen)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(node: Any, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node
