"""Random launches through the preflight of this process's SGLang: python -m tests.live.fuzz SEED COUNT.

Prints JSON: how the checks ended, and every breach of the contract (a traceback, another answer the second time, JSON
outside the schema, a corrected command that still has an error).
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from sglang_guards.cli.main import exit_code
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import gpus
from sglang_guards.preflight import launch_check, plain_config
from tests.launches.checks import MODELS

VALUES: dict[str, list[str]] = {
    "--tp": ["1", "2", "4", "8", "16", "3", "0", "-1", "four"],
    "--ep-size": ["1", "2", "4", "8", "3"],
    "--pp-size": ["1", "2"],
    "--dp-size": ["1", "2", "4"],
    "--nnodes": ["1", "2"],
    "--moe-a2a-backend": ["none", "deepep", "flashinfer", "mooncake", "nonsense"],
    "--moe-runner-backend": [
        "auto",
        "triton",
        "deep_gemm",
        "flashinfer_trtllm",
        "flashinfer_cutlass",
        "triton_kernel",
    ],
    "--quantization": [
        "fp8",
        "awq",
        "gptq",
        "w8a8_int8",
        "w8a8_fp8",
        "modelopt_fp4",
        "moe_wna16",
        "unheard_of",
    ],
    "--attention-backend": ["triton", "flashinfer", "fa3", "trtllm_mha"],
    "--speculative-algorithm": ["EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"],
    "--speculative-num-steps": ["1", "3"],
    "--speculative-eagle-topk": ["1", "4"],
    "--speculative-num-draft-tokens": ["4", "8"],
    "--speculative-moe-runner-backend": ["auto", "triton"],
    "--speculative-moe-a2a-backend": ["none"],
    "--flashinfer-allreduce-fusion-backend": ["auto", "trtllm", "mnnvl"],
    "--lora-target-modules": ["all", "gate_up_proj", "qkv_proj"],
    "--lora-paths": ["a=/no/such/adapter"],
    "--max-lora-rank": ["16"],
    "--dtype": ["auto", "bfloat16", "half", "float32"],
    "--mem-fraction-static": ["0.8", "2", "x"],
    "--schedule-policy": ["lpm", "fcfs", "lof"],
    "--num-continuous-decode-steps": ["1", "4"],
    "--moe-dense-tp-size": ["1"],
    "--kt-weight-path": ["/no/such"],
    "--device": ["cuda", "cpu", "xpu"],
    "--rl-on-policy-target": ["fsdp"],
    "--api-key": ["secret-of-the-operator"],
    "--config": ["/no/such.yaml"],
    "--no-such-flag": ["1"],
}
SWITCHES = [
    "--enable-fused-moe-sum-all-reduce",
    "--enable-fused-moe-sum",
    "--enable-flashinfer-allreduce-fusion",
    "--enforce-disable-flashinfer-allreduce-fusion",
    "--enable-dp-attention",
    "--enable-deterministic-inference",
    "--enable-lora",
    "--enable-mixed-chunk",
    "--enable-two-batch-overlap",
    "--disable-shared-experts-fusion",
    "--disable-radix-cache",
    "--enable-symm-mem",
    "--enable-torch-compile",
    "--triton-attention-reduce-in-fp32",
    "--trust-remote-code",
    "--disable-cuda-graph",
]


def machines(dice: random.Random, count: int) -> list[str]:
    """One machine for ten launches: SGLang is imported anew for each."""
    every = [f"{number}x{name}" for number in (1, 4, 8) for name in gpus.TABLE]
    return dice.sample(every, min(len(every), max(4, count // 10)))


def launch(dice: random.Random, machines: list[str]) -> tuple[list[str], str, str]:
    """A command, a GPU and a model folder. The fused-sum flag and TP are likely, so that rules get to speak."""
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "example/model"]
    if dice.random() < 0.8:
        argv += ["--tp", dice.choice(["2", "4", "8"])]
    if dice.random() < 0.6:
        argv.append(SWITCHES[0])
    for _ in range(dice.randrange(6)):
        if dice.random() < 0.5:
            argv.append(dice.choice(SWITCHES))
        else:
            flag = dice.choice(list(VALUES))
            value = dice.choice(VALUES[flag])
            argv += [f"{flag}={value}"] if dice.random() < 0.3 else [flag, value]
    return argv, dice.choice(machines), str(dice.choice(sorted(MODELS.iterdir())))


def _model_type(folder: str) -> str:
    return str(json.loads((Path(folder) / "config.json").read_text("utf-8")).get("model_type"))


def main(seed: int, count: int) -> dict[str, Any]:
    schema = json.loads(resources.files("sglang_guards").joinpath("schemas/report.json").read_text("utf-8"))
    dice = random.Random(seed)
    ends: Counter[str] = Counter()
    breaches: list[str] = []
    here = machines(dice, count)
    made = [launch(dice, here) for _ in range(count)]
    for argv, gpu, model in sorted(made, key=lambda one: one[1]):
        case = f"{' '.join(argv[3:])} --gpu {gpu} {model.rpartition('/')[2]}"
        try:
            first = launch_check.check(argv, gpu=gpu, model_config=model, build=False)
            again = launch_check.check(argv, gpu=gpu, model_config=model, build=False)
        except CouldNotCheck as error:
            ends["exit 2"] += 1
            if not error.message.strip() or "Traceback" in error.message:
                breaches.append(f"{case}: a trouble without a sentence: {error.message[:200]}")
            continue
        except Exception:  # noqa: BLE001 - any raise is the breach that is looked for
            breaches.append(f"{case}: {traceback.format_exc()[-600:]}")
            continue
        ends[f"exit {exit_code(first)}"] += 1
        one, two = first.to_dict(), again.to_dict()
        if one != two:
            breaches.append(f"{case}: another answer the second time")
        text = json.dumps(one, allow_nan=False)
        if "secret-of-the-operator" in text:
            breaches.append(f"{case}: a secret in the report")
        for problem in jsonschema.Draft202012Validator(schema).iter_errors(json.loads(text)):
            breaches.append(f"{case}: schema: {problem.message[:200]}")
        # Right are a note about --config=FILE and one about a model type that the installed transformers lacks.
        right = plain_config.note(_model_type(model))
        troubles = [line for line in first.notes if "--config" not in line and line != right]
        if troubles:
            breaches.append(f"{case}: internal: {troubles[0][:300]}")
        if first.corrected is not None:
            ends["corrected"] += 1
            fixed = launch_check.check(list(first.corrected), gpu=gpu, model_config=model, build=False)
            if fixed.errors:
                breaches.append(f"{case}: the corrected command still has {[e.id for e in fixed.errors]}")
    return {"ends": ends, "breaches": breaches[:10]}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
