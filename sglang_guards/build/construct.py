"""Construct the models of a resolved launch as its ranks would, each rank in a process of its own.

The process must have been prepared before it imported SGLang (`prepare`), so that what SGLang computes at import is
computed for the simulated GPU. SGLang's own registry, group, MoE and DP-attention initialisation and loader run.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sglang_guards.build import (
    after,
    ahead,
    blame,
    classes,
    draft,
    dry_load,
    layers,
    memory,
    process_group,
    ranks,
    stand_ins,
    torch_on_meta,
)
from sglang_guards.build.headers import Tensors
from sglang_guards.build.model import BUILT, NOT_BUILT, REFUSED, BuildResult, Rank, RankBuild, Refusal

if TYPE_CHECKING:
    from sglang_guards.launch.gpus import Gpu

#: SGLang's class for architectures that it has no class of its own for; what it builds says nothing about a launch.
_FALLBACK = "Transformers"


class NotBuilt(Exception):
    """A reason of ours why nothing can be said."""


@dataclass(frozen=True)
class Subject:
    """One model of a launch, ready to be built: the target or the draft."""

    name: str
    config: Any
    view: Any


@dataclass(frozen=True)
class Plan:
    """What every rank of a launch builds."""

    server_args: Any
    view: Any
    subjects: tuple[Subject, ...]
    #: What cannot be built at all, with the reason.
    left_out: tuple[tuple[str, str], ...] = ()
    #: Memory of one GPU.
    gpu_bytes: int | None = None
    #: Tensors of the target's checkpoint, where they are known.
    tensors: Tensors | None = None


def prepare(gpu: Gpu) -> None:
    """Make this process one of the simulated GPU's, before SGLang is imported; after `simulated_gpu.install`."""
    torch_on_meta.prepare_libraries()
    stand_ins.install(known=stand_ins.known_values(gpu.units))
    torch_on_meta.prepare_torch(gpu)


def build(
    server_args: Any,
    view: Any,
    *,
    gpu: Gpu | None = None,
    seconds: float = 60.0,
    draft_known: bool = True,
    tensors: Tensors | None = None,
    first_rank_only: bool = False,
) -> BuildResult:
    """Every distinct rank of the launch, target and draft. Never raises for what a launch can get wrong."""
    started = time.monotonic()
    try:
        plan = _plan(server_args, view, draft_known, int(gpu.memory_gib * memory.GIB) if gpu else None)
        plan = replace(plan, tensors=tensors)
        classes.prepare([name for one in plan.subjects for name in _architectures(one.config)])
        ahead.import_modules(draft=len(plan.subjects) > 1)
    except (Exception, stand_ins.CannotTell) as error:
        return BuildResult(reason=_reason(error), seconds=time.monotonic() - started)
    built: list[RankBuild] = []
    for rank in ranks.distinct(view)[: 1 if first_rank_only else None]:
        built += _in_child(plan, rank, started + seconds, seconds)
    built += [RankBuild(Rank(0, model=name), NOT_BUILT, reason) for name, reason in plan.left_out]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    return BuildResult(tuple(built), "", time.monotonic() - started, peak)


def _reason(error: BaseException) -> str:
    if isinstance(error, NotBuilt):
        return str(error)
    if blame.in_config(error):
        return (
            f"the quantization settings of this config.json are not whole ({blame.words(error)}); "
            "give the checkpoint's own with --model-config"
        )
    return blame.trouble(error)


def _plan(server_args: Any, view: Any, draft_known: bool, gpu_bytes: int | None) -> Plan:
    from sglang.srt.configs.model_config import ModelConfig

    target = ModelConfig.from_server_args(server_args)
    # Up to 0.5.11 target and draft share one cached config, and the draft's ModelConfig renames its architecture.
    subjects = [Subject("target", copy.deepcopy(target), view)]
    left_out = []
    if draft.exists(view):
        if not draft_known:
            left_out.append(("draft", "the draft model's config is not on this machine"))
        else:
            try:
                subjects.append(Subject("draft", draft.config(server_args, view), view))
            except (Exception, stand_ins.CannotTell) as error:
                left_out.append(("draft", _reason(error)))
    return Plan(server_args, view, tuple(subjects), tuple(left_out), gpu_bytes)


def _architectures(config: Any) -> list[str]:
    names = getattr(config.hf_config, "architectures", None) or []
    if not names:
        raise NotBuilt("the checkpoint's config names no architecture")
    return [str(name) for name in names]


def _in_child(plan: Plan, rank: Rank, deadline: float, limit: float) -> list[RankBuild]:
    """One rank in a forked process: groups and settings of SGLang are global, and there is no way back."""
    read_fd, write_fd = os.pipe()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)  # or a write would wait for ever once the reader is gone
        _child(plan, rank, write_fd)
    os.close(write_fd)
    data, ended = b"", False
    try:
        while not ended:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([read_fd], [], [], left)[0]:
                return [RankBuild(rank, NOT_BUILT, f"not built within {limit:g} s")]
            chunk = os.read(read_fd, 1 << 20)
            data += chunk
            ended = not chunk
    finally:
        os.close(read_fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not data:
        return [RankBuild(rank, NOT_BUILT, "the process that builds it ended without an answer")]
    return [RankBuild.from_dict(one) for one in json.loads(data)]


def _child(plan: Plan, rank: Rank, write_fd: int) -> None:
    try:
        torch_on_meta.without_compilers()
        made = build_rank(plan, rank)
    except BaseException as error:
        made = [RankBuild(rank, NOT_BUILT, blame.trouble(error))]
    with contextlib.suppress(BaseException):
        data = json.dumps([one.to_dict() for one in made]).encode()
        while data:
            data = data[os.write(write_fd, data) :]
    os._exit(0)


def build_rank(plan: Plan, rank: Rank) -> list[RankBuild]:
    """Groups, settings, target and draft of one rank; in a process that does nothing else."""
    with torch_on_meta.on_meta():
        opened = _attempt(lambda: _open(plan, rank), "build")
        if opened is not None:
            return [RankBuild(rank, **opened)]
        stages = process_group.parallel_sizes(plan.view)["pipeline_model_parallel_size"]
        made: list[RankBuild] = []
        models: list[Any] = []
        for one in plan.subjects:
            if one.name == "target" or rank.pp_rank == stages - 1:
                build, model = _build_model(plan, one, replace(rank, model=one.name))
                made.append(build)
                models.append(model)
        if made[0].status == BUILT:
            made[0] = _with_room(plan, made, models[0])
        return made


def _with_room(plan: Plan, made: list[RankBuild], model: Any) -> RankBuild:
    """The target's build with what is left for the KV cache beside the weights of target and draft."""
    target, config = made[0], plan.subjects[0].config
    target = replace(target, context_length=getattr(config, "context_len", None))
    if not all(memory.weights_are_final(plan.view, one.config) for one in plan.subjects):
        return replace(target, weights_final=False)
    if any(one.weights_bytes is None for one in made) or plan.gpu_bytes is None:
        return target
    # An EAGLE-like draft uses the target's embeddings and head and drops its own.
    weights = sum(one.weights_bytes or 0 for one in made)
    weights -= sum(one.bytes_by_kind.get("embeddings", 0) for one in made[1:])
    room: list[memory.Room] = []

    def measure() -> None:
        runner = after.stand_in_runner(plan.server_args, plan.view, config, model, target.rank)
        if draft.is_eagle_like(plan.view) and len(plan.subjects) > 1:
            runner.eagle_draft_num_layers = memory.draft_layers(plan.view, plan.subjects[1].config)
        room.append(memory.room(runner, plan.view, plan.gpu_bytes or 0, weights))

    blamed = _attempt(measure, "memory")
    if blamed is None:
        return replace(target, kv_bytes=room[0].kv_bytes or None, kv_tokens=room[0].kv_tokens)
    if "refusal" in blamed:
        return replace(target, status=REFUSED, refusal=blamed["refusal"])
    return replace(target, notes=(*target.notes, f"the size of the KV cache: {blamed['reason']}"))


def _open(plan: Plan, rank: Rank) -> None:
    process_group.publish(plan.server_args, rank)
    process_group.open_world(plan.server_args, plan.view, rank)
    process_group.initialize(plan.server_args, plan.subjects[0].config)


def _build_model(plan: Plan, subject: Subject, rank: Rank) -> tuple[RankBuild, Any]:
    started = time.monotonic()
    made: list[Any] = []
    blamed = _attempt(lambda: made.append(_construct(subject)), "build")
    if blamed is not None:
        return RankBuild(rank, seconds=time.monotonic() - started, **blamed), None
    model = made[0]
    # Its buffers are counted with the weights, and it asks nothing; a model that it does not suit stays as it is.
    _attempt(lambda: after.reserve_positions(plan.server_args, subject.config, model), "load")
    total, kinds = layers.weight_bytes(model)
    found = layers.moe_layers(model)
    no, unwritten, notes = _dry_load(plan, subject, model, rank)
    if no is None:
        no, more = _after(plan, subject, model, rank)
        notes += more
    build = RankBuild(
        rank,
        BUILT if no is None else REFUSED,
        refusal=no,
        model_class=type(model).__name__,
        weights_bytes=total,
        bytes_by_kind=kinds,
        layers=found,
        unwritten=unwritten,
        seconds=time.monotonic() - started,
        notes=tuple(notes),
    )
    return build, model


#: Seconds for the dry load of one rank.
_LOAD_S = 20.0


def _dry_load(
    plan: Plan, subject: Subject, model: Any, rank: Rank
) -> tuple[Refusal | None, tuple[str, ...] | None, list[str]]:
    """SGLang's own loader over the checkpoint's tensors without data; of the target, on rank 0."""
    if plan.tensors is None or subject.name != "target" or rank.rank != 0:
        return None, None, []
    stand_ins.forget()
    try:
        return None, tuple(dry_load.load(model, plan.tensors, _LOAD_S)), []
    except dry_load.OutOfTime as error:
        return None, None, [f"the dry load: {error or f'not done within {_LOAD_S:g} s'}"]
    except (Exception, stand_ins.CannotTell) as error:
        no = dry_load.refusal(error)
        return no, None, [] if no is not None else [f"the dry load: {_reason(error)}"]


def _after(plan: Plan, subject: Subject, model: Any, rank: Rank) -> tuple[Refusal | None, list[str]]:
    """The first thing that SGLang refuses after the construction, and which steps could not be tried."""
    notes: list[str] = []
    inside = (
        draft.contexts(plan.view, subject.config) if subject.name == "draft" else contextlib.nullcontext()
    )
    with inside:
        for name, when, step in after.steps(plan.server_args, plan.view, subject.config, model, rank):
            blamed = _attempt(step, when)
            if blamed is not None and "refusal" in blamed:
                return blamed["refusal"], notes
            if blamed is not None:
                notes.append(f"{name}: {blamed['reason']}")
    return None, notes


def _attempt(step: Callable[[], Any], when: str) -> dict[str, Any] | None:
    """None when the step went through; else what to put into the result: a refusal, or a reason of ours."""
    stand_ins.forget()
    try:
        step()
    except (Exception, SystemExit, stand_ins.CannotTell) as error:
        no = blame.refusal(error, when)
        if no is not None:
            return {"status": REFUSED, "refusal": no}
        return {"status": NOT_BUILT, "reason": _reason(error)}
    if stand_ins.asked:  # a bare except swallowed it
        return {
            "status": NOT_BUILT,
            "reason": f"SGLang asked a kernel package that is not here: {stand_ins.asked[0]}",
        }
    return None


def _without_class(config: Any) -> NotBuilt:
    """An architecture without a class of this SGLang's own; code that a checkpoint brings is never run here."""
    architectures = _architectures(config)
    names = ", ".join(architectures)
    if (failed := classes.failed_import(architectures)) is not None:
        return NotBuilt(f"the model class {names} of this SGLang cannot be imported here: {failed}")
    kind = getattr(config.hf_config, "model_type", "unknown")
    return NotBuilt(
        f"this SGLang has no model class {names} (model type {kind}), and a "
        "checkpoint's own code is not run; check with a release that has the class"
    )


def _construct(subject: Subject) -> Any:
    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import get_model_architecture

    missing = [
        name for name in ("_get_quantization_config", "_initialize_model") if not hasattr(loader, name)
    ]
    if missing:
        raise NotBuilt(
            f"the model loader of this SGLang has no {missing[0]}; its launches are judged by the rules alone"
        )
    try:
        with torch.device("cpu"):  # model files make tensors while they are imported
            model_class, _ = get_model_architecture(subject.config)
    except Exception as error:
        if classes.registered(_architectures(subject.config)):
            raise
        raise _without_class(subject.config) from error
    if model_class.__name__.startswith(_FALLBACK):
        raise _without_class(subject.config)
    is_draft = subject.name == "draft"
    load_config = LoadConfig(load_format="dummy")
    if is_draft and hasattr(load_config, "draft_model_idx"):
        load_config.draft_model_idx = draft.index(subject.view)
    inside = draft.contexts(subject.view, subject.config) if is_draft else contextlib.nullcontext()
    with torch.no_grad(), inside, loader.set_default_torch_dtype(subject.config.dtype):
        quantization = loader._get_quantization_config(subject.config, load_config)
        return loader._initialize_model(subject.config, load_config, quantization)
