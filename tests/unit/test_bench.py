"""The benchmark's parts that need no GPU: shapes, profiles, diffs, changed copies of the kernel."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_guards.bench import cli, kernels, tune
from sglang_guards.bench.shapes import DEFAULT_SHAPES, MoeShape, from_config
from sglang_guards.launch.profile import (
    DECODE,
    PREFILL,
    Profile,
    load_profile,
    measured_ratio,
    save_profile,
    shipped_results,
)
from tests.trees import FLAG_RELEASES, tree

VARIANTS = Path(__file__).resolve().parents[2] / "benchmarks" / "variants"
PROFILE = Profile(
    device="NVIDIA H200",
    sm=90,
    sglang="0.5.15",
    fingerprint="0123456789ab",
    shape="E128-N384-H4096-K8-fp8",
    measured="2026-11-29",
    ratios={1: 0.97, 64: 0.95, 8192: 0.69},
)


def _config(folder: Path, **values: object) -> Path:
    base = {"architectures": ["X"], "num_experts": 128, "moe_intermediate_size": 1536, "hidden_size": 4096}
    (folder / "config.json").write_text(json.dumps({**base, "num_experts_per_tok": 8, **values}))
    return folder


def test_a_shape_is_one_ranks_shard(tmp_path: Path) -> None:
    assert from_config(_config(tmp_path), tp=4).key == "E128-N384-H4096-K8-bf16"
    assert from_config(_config(tmp_path), tp=4, ep=4).key == "E32-N1536-H4096-K8-bf16"
    quant = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert from_config(_config(tmp_path, quantization_config=quant), tp=4).dtype == "fp8"
    nested = _config(tmp_path, num_experts=0, text_config={"num_experts": 4, "moe_intermediate_size": 64,
                     "hidden_size": 32, "num_experts_per_tok": 2})  # fmt: skip
    assert from_config(nested, tp=1).key == "E4-N64-H32-K2-bf16"


@pytest.mark.parametrize(
    ("values", "tp", "ep", "says"),
    [
        ({"num_experts": 1}, 1, 1, "no mixture of experts"),
        ({"hidden_size": None}, 1, 1, "hidden_size"),
        ({}, 5, 1, "do not split"),
        ({}, 4, 3, "do not split"),
        ({}, 0, 1, "do not split"),
    ],
)
def test_what_is_no_shape_says_why(
    tmp_path: Path, values: dict[str, object], tp: int, ep: int, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        from_config(_config(tmp_path, **values), tp=tp, ep=ep)


def test_a_damaged_config_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot read"):
        from_config(tmp_path, tp=1)


def test_default_shapes_split_evenly_and_carry_the_combine() -> None:
    assert all(shape.valid for shape in DEFAULT_SHAPES)
    assert not MoeShape("x", 8, 192, 4096, 8, "fp8").valid
    shape = DEFAULT_SHAPES[0]
    saved = shape.bytes_moved(8192, fused=False) - shape.bytes_moved(8192, fused=True)
    assert saved == 2 * shape.cache3_bytes(8192) - 8192 * shape.hidden * 2


def test_a_profile_comes_back(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path)
    assert load_profile(PROFILE.device, PROFILE.fingerprint, PROFILE.shape, tmp_path) == PROFILE
    assert PROFILE.worst == (8192, 0.69)


RUNNERS = dataclasses.replace(
    PROFILE,
    ratios={1: 0.97, 64: 0.95, 2048: 0.75, 8192: 0.69},
    relaxed={1: 1.0, 64: 1.02, 2048: 1.08, 8192: 1.07},
    default_us={1: 50.0, 64: 190.0, 2048: 460.0, 8192: 1460.0},
    runners={"cutlass": {1: 0.8, 64: 0.9, 2048: 1.1, 8192: 1.12}, "deep_gemm": {2048: 3.0}},
    reasons={"marlin": "needs another GPU"},
)


def test_the_best_arm_of_a_phase_was_measured_at_all_of_its_counts(tmp_path: Path) -> None:
    assert RUNNERS.best(DECODE) == ("triton, fused sum with the hotfix", pytest.approx(1.01, abs=0.001))
    assert RUNNERS.best(PREFILL) == ("cutlass", pytest.approx(1.11, abs=0.001))
    assert RUNNERS.best((1 << 20, 1 << 21)) is None
    plain = dataclasses.replace(RUNNERS, runners={}, relaxed={})
    assert plain.best(PREFILL) == ("triton", 1.0)
    save_profile(RUNNERS, tmp_path)
    assert load_profile(RUNNERS.device, RUNNERS.fingerprint, RUNNERS.shape, tmp_path) == RUNNERS


def test_the_answer_names_the_best_arms_their_flags_and_what_cannot_run() -> None:
    lines = cli.text(RUNNERS).splitlines()
    assert any("8,192" in line and "1,460" in line and "1.12" in line for line in lines)
    assert any("cannot run: marlin: needs another GPU" in line for line in lines)
    assert any(
        line.startswith("best for prefill: cutlass") and "--moe-runner-backend cutlass" in line
        for line in lines
    )
    assert any(line.startswith("best for decode:") and "SGLANG_GUARDS_HOTFIX" in line for line in lines)
    assert "0.69 at 8,192" in lines[-1]


@pytest.mark.parametrize("field", ["device", "fingerprint", "shape"])
def test_a_profile_of_something_else_is_not_used(tmp_path: Path, field: str) -> None:
    path = save_profile(PROFILE, tmp_path)
    other = dataclasses.replace(PROFILE, **{field: "other"})  # type: ignore[arg-type]
    assert load_profile(other.device, other.fingerprint, other.shape, tmp_path) is None
    path.write_text(json.dumps(dataclasses.asdict(other)))  # a file that was copied or edited
    assert load_profile(PROFILE.device, PROFILE.fingerprint, PROFILE.shape, tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1, "ratios": 3}', "\0"])
def test_a_damaged_profile_is_no_profile(tmp_path: Path, text: str) -> None:
    save_profile(PROFILE, tmp_path).write_text(text)
    assert load_profile(PROFILE.device, PROFILE.fingerprint, PROFILE.shape, tmp_path) is None


def test_a_ratio_is_not_carried_far(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path)

    def at(tokens: int) -> float | None:
        return measured_ratio(PROFILE.device, PROFILE.fingerprint, PROFILE.shape, tokens, tmp_path)

    assert at(100) == 0.95
    assert at(8192) == 0.69
    assert at(1000) is None
    assert at(0) is None


def test_shipped_results_name_their_device() -> None:
    results = shipped_results()
    assert results["device"] == "NVIDIA H200"
    assert 0.5 < results["shapes"]["E128-N384-H4096-K8-fp8"]["8192"] < 0.8


def test_reading_results_loads_no_torch() -> None:
    code = "import sys, sglang_guards.launch.profile as b; b.shipped_results(); b.load_profile('a','b','c'); "
    code += "assert not {'torch', 'triton', 'sglang'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("release", sorted(p.name for p in VARIANTS.iterdir() if p.is_dir()))
def test_the_variants_apply_in_order_and_compile(release: str) -> None:
    files = kernels.texts(tree(release))
    for diff in sorted((VARIANTS / release).glob("*.diff")):
        before = files
        files = kernels.apply_diff(files, diff.read_text())
        assert files != before
        with pytest.raises(ValueError, match="not what the diff expects"):
            kernels.apply_diff(files, diff.read_text())
    for path, text in files.items():
        compile(text, path, "exec")
    assert sum(text.count(kernels.RELAXED) for text in files.values()) == 1


def test_a_diff_of_another_file_is_refused_or_skipped() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(ValueError, match=r"x\.py"):
        kernels.apply_diff({"y.py": "a\n"}, diff)
    assert kernels.apply_diff({"y.py": "a\n"}, diff, only_these=True) == {"y.py": "a\n"}
    assert kernels.apply_diff({"x.py": "a\nc\n"}, diff + "-- \n2.39\n") == {"x.py": "b\nc\n"}


@pytest.mark.parametrize("release", FLAG_RELEASES)
def test_the_one_line_is_there_once_in_every_release(release: str) -> None:
    changed = kernels.relaxed(kernels.texts(tree(release)))
    assert sum(text.count(kernels.RELAXED) for text in changed.values()) == 1
    with pytest.raises(ValueError, match="exactly once"):
        kernels.relaxed(changed)


def test_the_results_page_is_made_from_the_results() -> None:
    root = VARIANTS.parents[1]
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "report.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_candidate_tiles_fit_registers_and_the_scales(rows: int, dtype: str) -> None:
    found = tune.candidates(rows, dtype)
    assert len(found) >= 3
    assert len({tuple(tile.items()) for tile in found}) == len(found)
    for tile in found:
        assert tile["BLOCK_SIZE_M"] == rows, "the sorting of tokens is that of the up projection"
        assert rows * tile["BLOCK_SIZE_N"] <= tune.MAX_ACCUMULATORS * 32 * tile["num_warps"]
        assert dtype != "fp8" or (tile["BLOCK_SIZE_K"] == 128 and tile["BLOCK_SIZE_N"] <= 128)


def test_both_files_name_the_same_row_block_at_every_count() -> None:
    small, large = {"BLOCK_SIZE_M": 16, "num_warps": 4}, {"BLOCK_SIZE_M": 64, "num_warps": 4}
    own = {"BLOCK_SIZE_M": 64, "num_warps": 8}
    up = {1: small, 64: small, 512: large, 8192: large}
    assert tune.paired(up, {2048: own}) == {1: small, 64: small, 512: own, 8192: own}


@pytest.mark.parametrize("tokens", [1, 64, 2048, 16384])
def test_tiles_of_the_up_projection_keep_the_row_block_or_take_one_that_experts_fill(tokens: int) -> None:
    shape = MoeShape("x", 128, 384, 4096, 8, "bf16")
    rows = {tile["BLOCK_SIZE_M"] for tile in tune.up_candidates({"BLOCK_SIZE_M": 16}, shape, tokens)}
    assert 16 in rows
    assert all(tokens * 8 / 128 >= block / 2 for block in rows - {16})
    assert (128 in rows) == (tokens >= 1024)
