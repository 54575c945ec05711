"""Construct the models of a resolved launch as its ranks would, each rank in a process of its own.

The process must have been prepared before it imported SGLang (`prepare`), so that what SGLang computes at import is
computed for the simulated GPU. SGLang's own registry, group, MoE and DP-attention initialisation and loader run.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sglang_guards.build import blame, classes, layers, process_group, ranks, stand_ins, torch_on_meta
from sglang_guards.build.model import BUILT, NOT_BUILT, REFUSED, BuildResult, Rank, RankBuild

if TYPE_CHECKING:
    from sglang_guards.gpus import Gpu

#: SGLang's class for architectures that it has no class of its own for; what it builds says nothing about a launch.
_FALLBACK = "Transformers"


class NotBuilt(Exception):
    """A reason of ours why nothing can be said."""


@dataclass(frozen=True)
class Subject:
    """One model of a launch, ready to be built."""

    name: str
    config: Any
    server_args: Any
    view: Any


def prepare(gpu: Gpu) -> None:
    """Make this process one of the simulated GPU's, before SGLang is imported; after `simulated_gpu.install`."""
    torch_on_meta.prepare_libraries()
    stand_ins.install(known=stand_ins.known_values(gpu.units))
    torch_on_meta.prepare_torch(gpu)


def build(server_args: Any, view: Any, *, seconds: float = 60.0) -> BuildResult:
    """Every distinct rank of the launch, target and draft. Never raises for what a launch can get wrong."""
    started = time.monotonic()
    deadline = started + seconds
    try:
        subjects = list(_subjects(server_args, view))
        classes.prepare([name for one in subjects for name in _architectures(one.config)])
    except (Exception, stand_ins.CannotTell) as error:
        return BuildResult(reason=_reason(error), seconds=time.monotonic() - started)
    built: list[RankBuild] = []
    for subject in subjects:
        for rank in ranks.distinct(view):
            built.append(_in_child(subject, replace(rank, model=subject.name), deadline, seconds))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    return BuildResult(tuple(built), "", time.monotonic() - started, peak)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, NotBuilt) else blame.trouble(error)


def _subjects(server_args: Any, view: Any) -> Iterator[Subject]:
    from sglang.srt.configs.model_config import ModelConfig

    yield Subject("target", ModelConfig.from_server_args(server_args), server_args, view)


def _architectures(config: Any) -> list[str]:
    names = getattr(config.hf_config, "architectures", None) or []
    if not names:
        raise NotBuilt("the checkpoint's config names no architecture")
    return [str(name) for name in names]


def _in_child(subject: Subject, rank: Rank, deadline: float, limit: float) -> RankBuild:
    """One rank in a forked process: groups and settings of SGLang are global, and there is no way back."""
    left = deadline - time.monotonic()
    if left <= 0:
        return RankBuild(rank, NOT_BUILT, f"not reached within {limit:g} s")
    read_fd, write_fd = os.pipe()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _child(subject, rank, write_fd)
    os.close(write_fd)
    data, ended = b"", False
    try:
        while not ended:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([read_fd], [], [], left)[0]:
                return RankBuild(rank, NOT_BUILT, f"not built within {limit:g} s")
            chunk = os.read(read_fd, 1 << 20)
            data += chunk
            ended = not chunk
    finally:
        os.close(read_fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not data:
        return RankBuild(rank, NOT_BUILT, "the process that builds it ended without an answer")
    return RankBuild.from_dict(json.loads(data))


def _child(subject: Subject, rank: Rank, write_fd: int) -> None:
    try:
        made = build_rank(subject, rank)
    except BaseException as error:
        made = RankBuild(rank, NOT_BUILT, blame.trouble(error))
    with contextlib.suppress(BaseException):
        data = json.dumps(made.to_dict()).encode()
        while data:
            data = data[os.write(write_fd, data) :]
    os._exit(0)


def build_rank(subject: Subject, rank: Rank) -> RankBuild:
    """Groups, settings, model, and what follows; in a process that does nothing else."""
    started = time.monotonic()
    stand_ins.forget()
    made: list[Any] = []
    blamed = _attempt(lambda: made.append(_construct(subject, rank)), "build")
    result = RankBuild(rank, BUILT, seconds=time.monotonic() - started)
    if blamed is not None:
        return replace(result, **blamed)
    model = made[0]
    total, kinds = layers.weight_bytes(model)
    return replace(
        result,
        model_class=type(model).__name__,
        weights_bytes=total,
        bytes_by_kind=kinds,
        layers=layers.moe_layers(model),
        seconds=time.monotonic() - started,
    )


def _attempt(step: Callable[[], Any], when: str) -> dict[str, Any] | None:
    """None when the step went through; else what to put into the result: a refusal, or a reason of ours."""
    try:
        step()
    except (Exception, SystemExit, stand_ins.CannotTell) as error:
        no = blame.refusal(error, when)
        if no is not None:
            return {"status": REFUSED, "refusal": no}
        return {"status": NOT_BUILT, "reason": _reason(error)}
    if stand_ins.asked:  # a bare except swallowed it
        return {"status": NOT_BUILT, "reason": f"SGLang asked a kernel package that is not here: {stand_ins.asked[0]}"}
    return None


def _construct(subject: Subject, rank: Rank) -> Any:
    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import get_model_architecture

    process_group.publish(subject.server_args, rank)
    model_class, _ = get_model_architecture(subject.config)
    if model_class.__name__.startswith(_FALLBACK):
        names = ", ".join(_architectures(subject.config))
        raise NotBuilt(f"this SGLang has no model class {names}, or it cannot be imported here")
    with torch_on_meta.on_meta(), torch.no_grad():
        process_group.open_world(subject.server_args, subject.view, rank)
        process_group.initialize(subject.server_args, subject.config)
        load_config = LoadConfig(load_format="dummy")
        quantization = loader._get_quantization_config(*_known(loader._get_quantization_config, subject, load_config))
        with loader.set_default_torch_dtype(subject.config.dtype):
            return loader._initialize_model(subject.config, load_config, quantization)


def _known(function: Any, subject: Subject, load_config: Any) -> list[Any]:
    return [subject.config, load_config][: len(inspect.signature(function).parameters)]
