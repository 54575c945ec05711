"""What SGLang's MoE code expects of its process: published server arguments, process groups, MoE configuration.

Up to 0.5.15 a kernel call reads the arguments alone; from 0.5.16 its default path asks for the TP group as well, and
SGLang's own layers ask for all of it in every release. So all three are set up, in SGLang's own order.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def set_up(*, ranks: int = 1, ep: int = 1, **values: Any) -> Any:
    """Make this process rank 0 of `ranks` (tensor parallel, `ep` of it expert parallel); returns the server args.

    One rank has a group of its own. More are imagined: collectives do nothing, so only what happens before them can
    be measured. The model path «dummy» resolves nothing. To be called once, before SGLang's layers are imported.
    """
    args = publish_args(tp_size=ranks, ep_size=ep, **values)
    make_groups(ranks, ep)
    configure_moe(args)
    return args


def publish_args(**values: Any) -> Any:
    """Publish ServerArgs as a scheduler of this release does."""
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", **values)
    try:
        from sglang.srt import runtime_context
    except ImportError:
        runtime_context = None
    if runtime_context is None or not hasattr(runtime_context, "publish"):
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(args)
        return args
    extra: dict[str, Any] = {}
    if hasattr(runtime_context, "SpawnRanks"):
        extra["ranks"] = runtime_context.SpawnRanks(world_rank=0)
    try:
        runtime_context.publish(args, role="scheduler", **extra)
    except TypeError:
        runtime_context.publish(args, role="scheduler")
    return args


def make_groups(ranks: int, ep: int) -> None:
    """SGLang's world and model-parallel groups. Sizes are arguments until 0.5.2x reads them from what was published."""
    import torch.distributed as dist
    from sglang.srt.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    if ranks == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    backend = "gloo" if ranks == 1 else "fake"
    with _plain_groups(parallel_state, backend):
        parallel_state.init_distributed_environment(
            world_size=ranks, rank=0, local_rank=0, backend=backend, distributed_init_method="unused://"
        )
        make = parallel_state.initialize_model_parallel
        known = inspect.signature(make).parameters
        sizes = {"tensor_model_parallel_size": ranks, "expert_model_parallel_size": ep}
        make(**{name: value for name, value in sizes.items() if name in known})


@contextmanager
def _plain_groups(parallel_state: Any, backend: str) -> Iterator[None]:
    """Groups without communicators of their own (they would wait for other ranks), every one of `backend`."""
    import torch.distributed as dist

    init, new_group = parallel_state.GroupCoordinator.__init__, dist.new_group
    signature = inspect.signature(init)

    def plain(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        for name in bound.arguments:
            if name.startswith("use_"):
                bound.arguments[name] = False
        init(*bound.args, **bound.kwargs)

    def same_backend(group_ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(group_ranks, backend=backend)

    parallel_state.GroupCoordinator.__init__ = plain
    dist.new_group = same_backend
    try:
        yield
    finally:
        parallel_state.GroupCoordinator.__init__ = init
        dist.new_group = new_group


def configure_moe(args: Any) -> None:
    """The MoE layers' module-wide settings (runner, all-to-all backend)."""
    from sglang.srt.layers.moe import initialize_moe_config

    if inspect.signature(initialize_moe_config).parameters:
        initialize_moe_config(args)
    else:
        initialize_moe_config()
