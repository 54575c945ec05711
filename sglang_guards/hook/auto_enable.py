"""The extended auto-enable list at start-up: `launch.fusion_auto_enable` decides, SGLang's own slot carries it out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_guards import sglang_compat, source
from sglang_guards.launch import allreduce_fusion
from sglang_guards.launch.collect import DUMMY_PATHS
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.launch.fusion_auto_enable import PREFILL_CP, RULE_ID, SAME_DECODER, Decision, decide
from sglang_guards.settings import Settings, from_env, ignore_reason

logger = logging.getLogger("sglang_guards")


def around_auto_enable(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND SGLang's automatic switch (0.5.15 and later): its own answer, or ours where it had none."""
    result = original(*args, **kwargs)
    if result or not args:
        return result
    decision = _at_start(args[0])
    return {decision.field: decision.value} if decision is not None else result


def after_model_adjustments(server_args: Any) -> None:
    """AFTER the method whose end switches the fusion on (up to 0.5.14): fields are plain and still open."""
    decision = _at_start(server_args)
    if decision is None or decision.field is None:
        return
    try:
        setattr(server_args, decision.field, decision.value)
    except Exception as error:
        logger.warning(
            "sglang-guards [%s]: could not be written: %s: %s", RULE_ID, type(error).__name__, error
        )


def _at_start(view: Any) -> Decision | None:
    """The decision to carry out, said in the log; None leaves SGLang's. Never raises."""
    try:
        settings = from_env(os.environ)
        if settings.mode == "off" or not settings.auto_enable or ignore_reason(settings.ignore, RULE_ID):
            return None
        launch = launch_of(view)
        if launch is None:
            return None
        decision = decide(launch)
        return _said(decision, launch, settings)
    except Exception as error:  # our fault must not become the server's
        text = "sglang-guards [%s]: fusion is left as SGLang decided: %s: %s"
        logger.warning(text, RULE_ID, type(error).__name__, error)
        return None


def _said(decision: Decision, launch: Launch, settings: Settings) -> Decision | None:
    if not decision.acts:
        if decision.listed:
            logger.debug("sglang-guards [%s]: fusion is left off: %s", RULE_ID, decision.reason)
        return None
    change = f"{decision.field} {launch.get(f'args.{decision.field}')!r} -> {decision.value!r}"
    if settings.mode == "warn":
        logger.warning("sglang-guards [%s]: would set %s (%s)", RULE_ID, change, decision.reason)
        return None
    text = "sglang-guards [%s]: %s (%s; SGLANG_GUARDS_AUTO=0 switches this off)"
    logger.info(text, RULE_ID, change, decision.reason)
    return decision


#: Server args that `decide` reads.
_FIELDS = (
    "model_path", allreduce_fusion.BACKEND, allreduce_fusion.SWITCH, allreduce_fusion.ENFORCE_OFF,
    "tp_size", "ep_size", "pp_size", "nnodes",
    "enable_dp_attention", "attn_dp_size", "moe_a2a_backend", "enable_deterministic_inference", "rl_on_policy_target",
    "attn_cp_size", "dcp_size", "enable_pdmux", "encoder_only", "speculative_algorithm", "moe_dense_tp_size",
    *PREFILL_CP,
)  # fmt: skip


def launch_of(view: Any) -> Launch | None:
    """The facts that `decide` needs, in the middle of resolution; None for a model path that resolves nothing."""
    facts: dict[str, Fact] = {}
    for name in _FIELDS:
        value = getattr(view, name, _ABSENT)
        if value is not _ABSENT:
            facts[f"args.{name}"] = Fact(value, "resolved")
    if str(facts["args.model_path"].value).lower() in DUMMY_PATHS:
        return None
    config = sglang_compat.model_config(view).hf_config
    facts["model.architecture"] = Fact(config.architectures[0], "config")
    if facts["model.architecture"].value in SAME_DECODER:  # only wrappers need it, and it is slow to copy
        facts["model.config"] = Fact(config.to_dict(), "config")
    facts |= _gpu(sglang_compat.platform())
    return Launch(facts=facts, env=dict(os.environ), source=source.find())


_ABSENT = object()


def _gpu(platform: str) -> dict[str, Fact]:
    facts = {"gpu.platform": Fact(platform, "machine")}
    if platform == "cuda":
        import torch

        major, minor = torch.cuda.get_device_capability(0)
        facts["gpu.sm"] = Fact(major * 10 + minor, "machine")
        facts["gpu.name"] = Fact(torch.cuda.get_device_name(0), "machine")
    else:
        facts["gpu.name"] = Fact(platform, "machine")
    return facts
