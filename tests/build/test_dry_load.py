"""Headers of real safetensors, and SGLang's own loader over them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from sglang_guards.build import headers
from sglang_guards.cli.main import main
from tests.launches.checks import check_all

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu", "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
Shapes = dict[str, tuple[int, ...]]


def shapes() -> Shapes:
    """Every tensor of that model."""
    made: Shapes = {
        "model.embed_tokens.weight": (256, 64),
        "lm_head.weight": (256, 64),
        "model.norm.weight": (64,),
    }
    for layer in ("model.layers.0.", "model.layers.1."):
        made |= {
            f"{layer}input_layernorm.weight": (64,),
            f"{layer}post_attention_layernorm.weight": (64,),
            f"{layer}self_attn.q_proj.weight": (64, 64),
            f"{layer}self_attn.k_proj.weight": (32, 64),
            f"{layer}self_attn.v_proj.weight": (32, 64),
            f"{layer}self_attn.o_proj.weight": (64, 64),
            f"{layer}self_attn.q_norm.weight": (16,),
            f"{layer}self_attn.k_norm.weight": (16,),
            f"{layer}mlp.gate.weight": (4, 64),
        }
        for expert in range(4):
            for name in ("gate_proj", "up_proj", "down_proj"):
                made[f"{layer}mlp.experts.{expert}.{name}.weight"] = (64, 64)
    return made


def checkpoint(folder: Path, tensors: Shapes) -> Path:
    """A folder with a config and one safetensors file in bf16; its data is a hole."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder


def test_headers_are_what_safetensors_itself_reads(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    folder = checkpoint(tmp_path / "m", shapes())
    read = headers.of_folder(folder)
    assert read is not None
    with safetensors.safe_open(str(folder / "model.safetensors"), framework="np") as file:
        assert set(read) == set(file.keys())
        assert all(tuple(file.get_slice(name).get_shape()) == shape for name, (_, shape) in read.items())


def test_the_command_writes_what_a_machine_without_the_checkpoint_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "m", shapes())
    assert main(["headers", str(folder)]) == 0
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / headers.FILE).write_text(capsys.readouterr().out, encoding="utf-8")
    assert headers.of_folder(apart) == headers.of_folder(folder)


DAMAGED = {
    "cut off": ("model.safetensors", b"\x10\x00"),
    "not json": ("model.safetensors", struct.pack("<Q", 4) + b"nope"),
    "too long": ("model.safetensors", struct.pack("<Q", 1 << 60)),
    "no shape": ("model.safetensors", struct.pack("<Q", 22) + b'{"a":{"dtype":"BF16"}}'),
    "an index of nothing": ("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}'),
    "headers of another kind": ("headers.json", b'{"tensors": ["a"]}'),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, content = DAMAGED[name]
    (tmp_path / file).write_bytes(content)
    assert main(["headers", str(tmp_path)]) == 2
    assert file in capsys.readouterr().err


@pytest.mark.live
def test_the_loader_speaks_of_a_checkpoint_that_does_not_match(tmp_path: Path) -> None:
    whole = shapes()
    variants = {
        "whole": whole,
        "renamed": {name.replace("mlp.experts", "mlp.xperts"): shape for name, shape in whole.items()},
        "resized": {name: (32,) if name == "model.norm.weight" else shape for name, shape in whole.items()},
    }
    launches = []
    for name, tensors in variants.items():
        folder = checkpoint(tmp_path / name, tensors)
        argv = ["python", "-m", "sglang.launch_server", "--model-path", str(folder)]
        launches.append({"argv": argv, "gpu": "1xH100", "build": True})
    answers = dict(zip(variants, check_all("0.5.19", launches), strict=True))
    found = {
        name: [f["id"] for f in answer["findings"] if f["id"].startswith("BLD")]
        for name, answer in answers.items()
    }
    assert found == {"whole": [], "renamed": ["BLD105"], "resized": ["BLD101"]}
    assert "model.layers.0.mlp.experts.w13_weight" in next(
        f["cause"] for f in answers["renamed"]["findings"] if f["id"] == "BLD105"
    )
    refusal = answers["resized"]["build"]["ranks"][0]["refusal"]
    assert refusal["when"] == "weights"
    assert "[32]" in refusal["message"]
