"""What a rule's page takes from its first case: an example, its correction, and what it was decided by, in plain words.

Reads tests/rules/cases and tests/rules/snapshots as text, so that the pages need no SGLang on the machine.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from sglang_guards.source.tree import find_probe
from tools.toml import tomllib

TESTS = Path(__file__).resolve().parents[1] / "tests" / "rules"
#: Facts in the words of an operator; args, environment and source have words of their own.
_WORDS = {
    "fusion": "how the installed SGLang fuses all-reduce for this model",
    "gpu.count": "the number of GPUs per node",
    "gpu.memory_gib": "the GPU's memory",
    "gpu.name": "the GPU's name",
    "gpu.platform": "the platform (CUDA, ROCm, …)",
    "gpu.sm": "the GPU's compute capability",
    "lora.enabled": "whether LoRA is on",
    "lora.target_modules": "the modules that the adapters target",
    "model.architecture": "`architectures` in config.json",
    "model.config": "config.json",
    "model.dtype": "`torch_dtype` in config.json",
    "model.is_moe": "whether the checkpoint has experts",
    "model.quant": "the checkpoint's quantization method",
    "model.quant_block": "`weight_block_size` in config.json",
    "model.quant_config": "`quantization_config` in config.json",
    "model.quant_ignored": "the modules that the checkpoint leaves unquantized",
    "model.quant_kind": "how the experts are quantized",
    "model.top_k": "`num_experts_per_tok` in config.json",
    "model.num_experts": "the number of experts in config.json",
    "model.num_shared_experts": "the number of shared experts in config.json",
    "model.num_layers": "`num_hidden_layers` in config.json",
    "model.first_k_dense": "the number of leading dense layers in config.json",
    "model.moe_intermediate_size": "the width of one expert in config.json",
    "refusal.message": "SGLang's own reason",
    "refusal.where": "the line that raised it",
}
_LAYERS = {
    "runner": "the MoE runner of the {0}", "runner_why": "why the {0} gets that runner",
    "reaches_gate": "whether the {0}'s experts reach the fused sum", "top_k": "the {0}'s top-k",
    "experts_filtered": "whether a rank of the {0} holds only some experts",
    "lora_wrapped": "whether adapters wrap the {0}'s experts", "dtype": "the {0}'s dtype",
    "exists": "whether there is a {0} with experts", "weight_only": "whether the {0}'s experts are weight-only",
}  # fmt: skip


def words(fact: str) -> str:
    """One fact as an operator would name it."""
    prefix, _, rest = fact.partition(".")
    if prefix == "args":
        return f"`--{rest.replace('_', '-')}`"
    if prefix == "env":
        return f"`{rest}` in the environment"
    if prefix == "source":
        name = rest.partition("(")[0]
        found = find_probe(name)
        return f"the installed source: {found.doc.rstrip('.')}" if found else f"the installed source ({name})"
    if prefix in ("target", "draft") and rest in _LAYERS:
        return _LAYERS[rest].format(prefix)
    if prefix == "packages":
        return f"the installed {rest}"
    if prefix == "build":
        return "the model as SGLang's own classes build it"
    if fact in _WORDS:
        return _WORDS[fact]
    if prefix == "draft_model":
        return f"the draft's config: {words(f'model.{rest}').removesuffix(' in config.json')}"
    return f"`{rest}` in config.json" if prefix == "model" else _WORDS.get(prefix, fact)


@cache
def blocks(rule: str) -> tuple[tuple[str, ...], ...]:
    """The snapshot's blocks, those of real commands first, each kind in the order of the cases."""
    path = TESTS / "snapshots" / f"{rule}.txt"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    parts = [tuple(part.splitlines()) for part in text.split("\n\n") if part.strip()]
    names = [entry["name"] for entry in _fires(rule)]
    place = {name: number for number, name in enumerate(names)}
    return tuple(
        sorted(parts, key=lambda lines: (not _command(lines), place.get(_title(lines)[0], len(names))))
    )


def _title(lines: tuple[str, ...]) -> tuple[str, str]:
    """The name of a block's case, and its release."""
    name, _, release = lines[0].removeprefix("== ").rpartition(" · SGLang ")
    return name, release


def _command(lines: tuple[str, ...]) -> str:
    return next((line.strip() for line in lines[:2] if line.startswith("   sglang-guards")), "")


def _labelled(lines: tuple[str, ...], label: str) -> str:
    return next(
        (line[4:].removeprefix(label).strip() for line in lines if line.startswith(f"  = {label}")), ""
    )


def decided_by(rule: str) -> list[str]:
    """What the rule read before it fired on its first case."""
    if not blocks(rule):
        return []
    text = _labelled(blocks(rule)[0], "read").replace(", ", "\n")
    facts = re.sub(r"\(([^)]*)\)", lambda m: f"({m[1]})".replace("\n", ", "), text).split("\n")
    return list(dict.fromkeys(words(fact) for fact in facts if fact))


def example(rule: str) -> list[str]:
    """A launch that fires the rule, what is said, and the correction, as lines of Markdown."""
    if not blocks(rule):
        return []
    lines = blocks(rule)[0]
    command, corrected = _command(lines), _labelled(lines, "corrected")
    title, release = _title(lines)
    out = [f"On SGLang {release}:", "", "```console"]
    out.append(f"$ {command}" if command else f"$ {_flags(rule, title)}")
    said = [line for line in lines[1:] if line != f"   {command}" and not line.startswith("  = read")]
    said = [
        re.sub(r" \((safe|display)\)$", "", line) if line.startswith("  = fix") else line for line in said
    ]
    out += [line for line in said if not line.startswith("  = corrected")]
    out += ["```", ""]
    if corrected:
        out += ["The corrected command:", "", "```console", f"$ {corrected}", "```", ""]
    if not command and (where := _where(rule, title)):
        out += [f"Where {where}.", ""]
    return out


@cache
def _fires(rule: str) -> tuple[dict[str, Any], ...]:
    path = TESTS / "cases" / f"{rule}.toml"
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")).get("fires", ())) if path.is_file() else ()


def _case(rule: str, name: str) -> dict[str, Any]:
    return next((entry for entry in _fires(rule) if entry["name"] == name), {})


def _flags(rule: str, name: str) -> str:
    """The flags of a case that is made of facts."""
    case = _case(rule, name)
    env = [f"{key}={value}" for key, value in case.get("env", {}).items()]
    flags = []
    for fact, value in case.get("facts", {}).items():
        if fact.startswith("args.") and value is not False:
            flag = "--" + fact.removeprefix("args.").replace("_", "-")
            flags.append(flag if value is True else f"{flag} {value}")
    return " ".join([*env, "python -m sglang.launch_server …", *flags])


def _where(rule: str, name: str) -> str:
    """The checkpoint and the GPU of a case that is made of facts."""
    facts = {
        k: v
        for k, v in _case(rule, name).get("facts", {}).items()
        if not k.startswith(("args.", "packages."))
    }
    parts = [f"{words(k)} is `{v}`" for k, v in facts.items() if isinstance(v, (str, int)) and v is not True]
    return ", ".join(parts)
