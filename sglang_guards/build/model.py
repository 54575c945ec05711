"""What a build says, as data that can go over a pipe and into a JSON report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BUILT, REFUSED, NOT_BUILT = "built", "refused", "not built"


@dataclass(frozen=True)
class Rank:
    """One rank of the launch: where it stands, and which of its two models is meant."""

    rank: int
    tp_rank: int = 0
    pp_rank: int = 0
    model: str = "target"

    def label(self, tp_size: int, pp_size: int) -> str:
        """``rank 5 (PP 1, TP 1)``; for one GPU only ``rank 0``."""
        parts = [f"PP {self.pp_rank}"] if pp_size > 1 else []
        parts += [f"TP {self.tp_rank}"] if tp_size > 1 else []
        return f"rank {self.rank}" + (f" ({', '.join(parts)})" if parts else "")


@dataclass(frozen=True)
class Refusal:
    """What SGLang itself raised: its words, its file and line, and what it was building."""

    type: str
    message: str
    where: str
    layer: str = ""
    #: build (while the model is made), weights (while they are loaded), load (after them), memory (when the KV cache
    #: is made), forward (at the first batch).
    when: str = "build"


@dataclass(frozen=True)
class Layers:
    """MoE layers of one kind on a rank. `runner` is SGLang's own name, or "" where the method has none."""

    kind: str
    method: str
    runner: str
    count: int
    #: Where the first forward must use a runner that is not there; "" where it need not, or has one.
    runner_read_at: str = ""
    #: False where the method's forward may call a kernel of its own in place of the runner that it made.
    runner_certain: bool = True
    first: str = ""
    experts: int | None = None
    fused_shared_experts: int | None = None
    top_k: int | None = None


@dataclass(frozen=True)
class RankBuild:
    """One model as one rank would build it."""

    rank: Rank
    status: str
    reason: str = ""
    refusal: Refusal | None = None
    model_class: str = ""
    weights_bytes: int | None = None
    #: experts, attention, embeddings, other -> bytes.
    bytes_by_kind: Mapping[str, int] = field(default_factory=dict)
    layers: tuple[Layers, ...] = ()
    #: Parameters that no tensor of the checkpoint writes; None where its headers are not known.
    unwritten: tuple[str, ...] | None = None
    #: False where the weights change size when they are loaded, or do not stay on the GPU.
    weights_final: bool = True
    #: What SGLang's arithmetic leaves for the KV cache of this rank, on the GPU of the check.
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    context_length: int | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankBuild:
        values = dict(data)
        values["rank"] = Rank(**values["rank"])
        values["refusal"] = None if values.get("refusal") is None else Refusal(**values["refusal"])
        values["layers"] = tuple(Layers(**one) for one in values.get("layers") or ())
        values["notes"] = tuple(values.get("notes") or ())
        if values.get("unwritten") is not None:
            values["unwritten"] = tuple(values["unwritten"])
        return cls(**values)


@dataclass(frozen=True)
class BuildResult:
    """Every rank that was built. The launch is refused where one rank is; not built where none could be."""

    ranks: tuple[RankBuild, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    peak_mib: int = 0

    @property
    def status(self) -> str:
        states = {one.status for one in self.ranks}
        if REFUSED in states:
            return REFUSED
        return BUILT if states == {BUILT} else NOT_BUILT

    @property
    def why(self) -> str:
        """Why (some of) it was not built; empty when all was."""
        return self.reason or next((one.reason for one in self.ranks if one.status == NOT_BUILT), "")

    def of(self, model: str) -> Sequence[RankBuild]:
        """The builds of the target or the draft."""
        return [one for one in self.ranks if one.rank.model == model]

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reason": self.why,
            "ranks": [one.to_dict() for one in self.ranks],
            "seconds": round(self.seconds, 2),
            "peak_mib": self.peak_mib,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BuildResult:
        return cls(
            ranks=tuple(RankBuild.from_dict(one) for one in data.get("ranks") or ()),
            reason=str(data.get("reason") or ""),
            seconds=float(data.get("seconds") or 0.0),
            peak_mib=int(data.get("peak_mib") or 0),
        )
