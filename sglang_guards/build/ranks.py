"""Which ranks of a launch are different enough to be built: every pipeline stage, its first and its last TP rank."""

from __future__ import annotations

from typing import Any

from sglang_guards.build.model import Rank
from sglang_guards.build.process_group import parallel_sizes

#: Stages beyond these are built at both ends only.
_MOST_STAGES = 8


def distinct(view: Any) -> list[Rank]:
    """Rank 0 first. The last TP rank stands for the uneven end of every split: TP, EP, attention's DP and TP."""
    sizes = parallel_sizes(view)
    tp, pp = sizes["tensor_model_parallel_size"], sizes["pipeline_model_parallel_size"]
    stages = range(pp) if pp <= _MOST_STAGES else [0, 1, pp // 2, pp - 2, pp - 1]
    ranks = [Rank(rank=stage * tp, tp_rank=0, pp_rank=stage) for stage in stages]
    if tp > 1:
        ranks.append(Rank(rank=pp * tp - 1, tp_rank=tp - 1, pp_rank=pp - 1))
    return ranks
