"""What only the machine that serves has is no fault of a launch, and what only this check met is no refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.preflight_cases import SERVER_MODEL, example, run

pytestmark = pytest.mark.live

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
DFLASH = {
    **{k: v for k, v in QWEN3.items() if "exp" not in k and k != "moe_intermediate_size"},
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [0, 2]},
}
DSPARK = {**DFLASH, "architectures": ["Qwen3DSparkModel"], "dspark_config": DFLASH["dflash_config"]}
#: A type that no transformers and no SGLang knows, of an architecture that SGLang has.
NEW_TYPE = {**QWEN3, "model_type": "guards_new_moe"}


def written(folder: Path, config: dict[str, object]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def launch(folder: str, *flags: str, gpu: str = "4xH200") -> dict[str, object]:
    argv = [*SERVER_MODEL, folder, "--tp", "4", *flags]
    return {"argv": argv, "gpu": gpu, "build": False}


@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
def test_the_target_machine_is_not_this_one(release: str, tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", QWEN3)
    cases = {
        "InfiniBand": launch(
            plain, "--disaggregation-mode", "decode", "--disaggregation-ib-device", "mlx5_0,mlx5_1"
        ),
        "devices in a file": launch(
            plain, "--disaggregation-mode", "decode", "--disaggregation-ib-device", "/target/ib.json"
        ),
        "TLS": launch(plain, "--ssl-keyfile", "/target/key.pem", "--ssl-certfile", "/target/cert.pem"),
        "a host": launch(
            plain, "--dist-init-addr", "head-node.example:5000", "--nnodes", "2", "--node-rank", "0"
        ),
        "AWQ on Marlin": launch(written(tmp_path / "awq", {**QWEN3, "quantization_config": AWQ}))
        | {"argv": [*SERVER_MODEL, str(tmp_path / "awq"), "--tp", "4", "--quantization", "awq_marlin"]},
        "a method of ROCm": launch(plain, "--quantization", "quark_int4fp8_moe", gpu="8xMI300X"),
        "DFLASH": launch(
            plain,
            *("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "8"),
            *("--speculative-draft-model-path", written(tmp_path / "draft", DFLASH)),
        ),
        "a new model type": launch(written(tmp_path / "new", NEW_TYPE)),
    }
    reports = dict(zip(cases, run(release, list(cases.values())), strict=True))
    for name, report in reports.items():
        assert "error" not in report, (name, report)
        assert "SGL001" not in [f["id"] for f in report["findings"]], (name, report["findings"])
    devices = reports["devices in a file"]["launch"]["facts"]["args.disaggregation_ib_device"]
    assert devices["value"] == "/target/ib.json", "the report speaks of what was given, not of a stand-in"
    assert any("guards_new_moe" in note for note in reports["a new model type"]["notes"])


@pytest.mark.parametrize("release", ["0.5.16", "0.5.19", "0.5.23"])
def test_dspark_is_resolved_with_its_drafts_own_block(release: str, tmp_path: Path) -> None:
    """Its resolution imports kernel packages, and only warns where it could not read the draft's config."""
    draft = written(tmp_path / "draft", DSPARK)
    flags = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", draft)
    [report] = run(release, [launch(written(tmp_path / "plain", QWEN3), *flags)])
    assert "error" not in report, report
    assert "SGL001" not in [f["id"] for f in report["findings"]], report["findings"]
    assert report["launch"]["facts"]["args.speculative_algorithm"]["value"] == "DSPARK"
    tokens = report["launch"]["facts"]["args.speculative_num_draft_tokens"]
    assert tokens == {"value": int(str(DSPARK["block_size"])) + 1, "from": "resolved"}


def test_half_a_pair_of_tls_files_is_still_refused(tmp_path: Path) -> None:
    case = launch(written(tmp_path / "plain", QWEN3), "--ssl-keyfile", "/target/key.pem")
    [report] = run("0.5.15", [case])
    assert [f["id"] for f in report["findings"]] == ["SGL001"]


def test_another_major_of_transformers_is_no_refusal() -> None:
    case = example(gpu="4xH200")
    case["argv"] = [w for w in case["argv"] if w != "--enable-fused-moe-sum-all-reduce"]
    [answer] = run("0.5.9", [case])
    assert "could not" in answer.get("error", ""), answer
    assert "transformers 4.57" in answer["hint"]


def test_a_type_that_the_release_lacks_is_named(tmp_path: Path) -> None:
    config = {
        **NEW_TYPE,
        "architectures": ["DeepseekV4ForCausalLM"],
    }  # SGLang asks for fields that are not there
    [answer] = run("0.5.23", [launch(written(tmp_path / "new", config))])
    assert "model type guards_new_moe" in answer["error"]
    assert "transformers" in answer["hint"]
