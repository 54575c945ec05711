"""What the MoE layers of the target model and of a speculative draft really get.

`facts(launch, "target")` and `facts(launch, "draft")` derive, as facts with a reason in `where`:

- ``exists``: whether that model has MoE layers at all;
- ``runner``: the MoE runner (``triton``, ``flashinfer_trtllm``, …; ``none`` without MoE layers);
- ``runner_why``: the fact that decides it, one clause;
- ``kind``: the experts' quantization, as in `checkpoint.quant_kind`;
- ``weight_only``: int4/int8 weight-only experts (the gate of the fused sum excludes them);
- ``top_k``: experts per token, including fused shared experts;
- ``reaches_gate``: the Triton runner with weights that the gate of the fused sum lets pass;
- ``experts_filtered``: some expert ids are -1 on this rank (expert parallelism, KTransformers);
- ``lora_wrapped``: a LoRA runner wraps the layers;
- ``dtype``: the activations' dtype.

What cannot be told is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_guards.launch.checkpoint import is_ignored, text_config
from sglang_guards.launch.environment import env_bool
from sglang_guards.launch.fact import Fact, Facts
from sglang_guards.launch.moe_runner import Query, Runner, runner_of
from sglang_guards.launch.parallel import experts_tp
from sglang_guards.source.probes.quant_method import CONFIGS


def facts(launch: Facts, which: str) -> Mapping[str, Fact]:
    """Facts of the `target` or `draft` layers, keyed ``<which>.<name>``."""
    made = _Layers(launch, which).facts()
    return {f"{which}.{name}": Fact(value, "derived", where) for name, (value, where) in made.items()}


class _Layers:
    def __init__(self, launch: Facts, which: str) -> None:
        self.launch = launch
        self.draft = which == "draft"
        self.model = "draft_model" if self.draft else "model"

    def get(self, name: str, default: Any = None) -> Any:
        return self.launch.get(f"{self.model}.{name}", default)

    def arg(self, name: str) -> Any:
        return self.launch.get(f"args.{name}")

    def facts(self) -> dict[str, tuple[Any, str]]:
        """Value and reason by name; unknown ones are left out."""
        exists, why = self.exists()
        if exists is None:
            return {}
        if not exists:
            off = ("exists", "weight_only", "reaches_gate", "experts_filtered", "lora_wrapped")
            none: dict[str, tuple[Any, str]] = dict.fromkeys(off, (False, why))
            return none | {"runner": ("none", why), "runner_why": (why, "")}
        found: dict[str, tuple[Any, str]] = {"exists": (True, why)}
        runner = self.runner()
        if runner.name is not None:
            found |= {
                "runner": (runner.name, runner.why),
                "runner_why": (runner.why, ""),
                "weight_only": (runner.weight_only, runner.why),
                "reaches_gate": (runner.name == "triton" and not runner.weight_only, runner.why),
            }
        for name, answer in (
            ("kind", (self.kind(), "")),
            ("top_k", self.top_k()),
            ("experts_filtered", self.experts_filtered()),
            ("lora_wrapped", self.lora_wrapped()),
            ("dtype", (self.dtype(), "")),
        ):
            if answer[0] is not None:
                found[name] = answer
        return found

    def exists(self) -> tuple[bool | None, str]:
        if self.draft and self.launch.get("draft_model.exists") is False:
            return False, "no draft model"
        moe = self.get("is_moe")
        if moe is None:
            return None, ""
        if not moe:
            who = "the draft model" if self.draft else "the model"
            return False, f"{who} ({self.get('architecture', 'unknown architecture')}) has no MoE layers"
        return True, f"{self.get('num_experts')} experts"

    def runner(self) -> Runner:
        """What SGLang itself built outranks what the tables reckon."""
        which = "draft" if self.draft else "target"
        built = self.launch.get(f"build.{which}.runner")
        reckoned = self._reckoned()
        if not built or built == reckoned.name:
            return reckoned
        method = self.launch.get(f"build.{which}.method") or "its method"
        return Runner(str(built), f"SGLang builds its experts so ({method})", reckoned.weight_only)

    def _reckoned(self) -> Runner:
        query = Query(
            backend=str(self.backend() or "auto"),
            kind=self.kind(),
            a2a=str(self.a2a() or "none"),
            platform=str(self.launch.get("gpu.platform") or ""),
            sm=self.launch.get("gpu.sm"),
            aiter=env_bool(self.launch.env, "SGLANG_USE_AITER", self.launch.source),
            width=self.width(),
            config=text_config(self.get("config") or {}),
            group=_group(self.get("quant_config") or {}),
        )
        if not query.platform:
            return Runner(None, "the GPU")
        if query.platform == "xpu" and env_bool(self.launch.env, "SGLANG_USE_SGL_XPU", self.launch.source):
            return Runner("sgl_xpu", "SGLANG_USE_SGL_XPU runs the experts in sgl-kernel-xpu")
        if self.draft and query.backend in ("auto", "triton"):
            # ModelRunner of a draft reads the speculative backend inside a context that DFLASH-style workers skip.
            algorithm = str(self.arg("speculative_algorithm") or "").upper()
            if "FLASH" in algorithm and str(self.arg("moe_runner_backend")) not in ("auto", "triton"):
                return Runner(None, f"which backend a {algorithm} draft reads")
        if doubt := self.another_way(query):
            return Runner(None, doubt)
        return runner_of(query, lambda probe: self.launch.get(f"source.{probe}"))

    def another_way(self, query: Query) -> str:
        """What may run the experts in place of the runner that stands in the table; empty where nothing does."""
        if self.launch.env.get("SGLANG_EXTERNAL_MODEL_PACKAGE"):
            return "which experts a model class of SGLANG_EXTERNAL_MODEL_PACKAGE has"
        if owner := self.get("implementation"):
            return f"which experts {owner} has, which a plugin put in the place of SGLang's model class"
        if self.launch.source is None:
            return ""
        if self.launch.get("source.layer_runs_quant_method") is not True:
            return "what FusedMoE.run_moe_core of this SGLang runs"
        if self.launch.get("source.layer_takes_configured_method") is not True:
            return "which quantization method an expert layer of this SGLang takes"
        if self.arg("enable_paged_experts"):
            return "what runs experts that are paged in"
        if query.kind and query.kind in CONFIGS and not self.method_is_known(query.kind):
            return f"which method the quantization config of this SGLang gives {query.kind} experts"
        probes = {"unquantized": "unquant_auto_is_triton", "fp8": "fp8_auto_is_triton"}
        asked = probes.get(query.kind or "")
        plain = query.platform == "cuda" and query.backend == "auto" and query.a2a == "none"
        if asked and plain and self.launch.get(f"source.{asked}") is not True:
            return f"the runner that create_moe_runner of this SGLang makes for {query.kind} experts"
        return ""

    def method_is_known(self, kind: str) -> bool:
        """Whether the quantization config gives experts SGLang's own method, as the table of runners takes it."""
        source = self.launch.source
        return source is not None and source.ask("config_gives_its_method", kind=kind).value is True

    def backend(self) -> Any:
        own = self.arg("speculative_moe_runner_backend") if self.draft else None
        return own or self.arg("moe_runner_backend")

    def a2a(self) -> Any:
        own = self.arg("speculative_moe_a2a_backend") if self.draft else None
        return own or self.arg("moe_a2a_backend")

    def kind(self) -> str | None:
        """The experts' quantization; a built-in draft may be left unquantized by the checkpoint or by SGLang."""
        kind = self.get("quant_kind")
        if not self.draft or not self.launch.get("draft_model.built_in") or kind == "unquantized":
            return None if kind is None else str(kind)
        layers = self.get("num_layers")
        patterns = self.get("quant_ignored") or ()
        names = ["mtp.layers.0.mlp.experts.0.down_proj", "model.mtp.layers.0.mlp.experts.0.down_proj"]
        if isinstance(layers, int):
            names += [
                f"model.layers.{layers}.mlp.experts.0.down_proj",
                f"layers.{layers}.mlp.experts.0.down_proj",
            ]
        if any(is_ignored(name, patterns) for name in names):
            return "unquantized"
        if kind == "modelopt_fp4":
            # The NextN models drop ModelOpt's FP4 for their own layer; Qwen3.5's does so only when the list says so.
            return None if str(self.get("architecture", "")).startswith("Qwen3_5") else "unquantized"
        return None if kind is None else str(kind)

    def width(self) -> int | None:
        size, tp, ep = self.get("moe_intermediate_size"), self.arg("tp_size"), self.arg("ep_size")
        if not (isinstance(size, int) and isinstance(tp, int) and isinstance(ep, int)) or tp < 1 or ep < 1:
            return None
        return size // experts_tp(tp, ep, self.arg("moe_dp_size"))

    def top_k(self) -> tuple[int | None, str]:
        routed = self.get("top_k")
        if not isinstance(routed, int):
            return None, ""
        shared = self.get("num_shared_experts") or 0
        if routed > 2 or not shared or self.arg("disable_shared_experts_fusion"):
            return routed, f"num_experts_per_tok = {routed}"
        return None, ""  # whether the shared expert is fused is decided while the model is built

    def experts_filtered(self) -> tuple[bool | None, str]:
        if self.arg("kt_weight_path"):
            return True, "KTransformers masks the experts that live on the CPU"
        ep = self.arg("ep_size")
        if not isinstance(ep, int):
            return None, ""
        if ep <= 1:
            return False, "every rank holds all experts"
        experts = self.get("num_experts")
        share = f"{experts // ep} of {experts}" if isinstance(experts, int) else f"1/{ep} of the"
        return True, f"each rank holds {share} experts"

    def lora_wrapped(self) -> tuple[bool | None, str]:
        enabled = self.launch.get("lora.enabled")
        if enabled is None or (not enabled) or self.draft:
            return (None, "") if enabled is None else (False, "no LoRA on these layers")
        targets = self.launch.get("lora.target_modules")
        if targets is None:
            return None, ""
        both = "all" in targets or {"gate_up_proj", "down_proj"} <= set(targets)
        return (
            both,
            "the adapters target the experts' gate_up_proj and down_proj" if both else "not both projections",
        )

    def dtype(self) -> str | None:
        asked = self.arg("dtype")
        if asked in ("half", "float16"):
            return "float16"
        if asked in ("bfloat16", "float", "float32"):
            return "float32" if asked != "bfloat16" else "bfloat16"
        dtype = self.get("dtype")
        return None if dtype is None else str(dtype)


def _group(quant_config: Mapping[str, Any]) -> int | None:
    """The group size of compressed-tensors' weights, where it has one."""
    groups = quant_config.get("config_groups")
    sizes = {
        part["weights"].get("group_size")
        for part in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(part, Mapping) and isinstance(part.get("weights"), Mapping)
    }
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
