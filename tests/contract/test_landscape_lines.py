"""The lines that the verdict table points at exist in every release, and say what they are taken for."""

from __future__ import annotations

import re

import pytest

from sglang_guards.flag_table.source_lines import LINES, deciding, declared, runner_line
from sglang_guards.launch.facts import Launch
from tests.contract.tables import line_of, source
from tests.trees import FLAG_RELEASES

#: Topic -> a word of the line that it must point at.
WORDS = {
    "mixed_chunk": "is_mixed_chunk",
    "mixed_chunk_spec": "enable_mixed_chunk",
    "conservativeness": "schedule_conservativeness",
    "conservativeness_dp": "0.3",
    "memory": "mem_fraction_static",
    "graph_batch": "max_bs = 8",
    "graph_prefill": "def ",
    "dp_attention": "initialize_dp_attention",
    "dp_attention_off": "dp_attention",
    "a2a": "handle_a2a_moe",
    "deterministic": "handle_deterministic_inference",
    "dense_tp": "fully_dp",
    "shared_experts": "disable_shared_experts_fusion",
    "runner_backend": "moe_",
    "draft_runner_backend": "speculative_moe_runner_backend is None",
    "triton_attention": "class TritonAttnBackend",
    "speculative": "",
}
#: Only where the list of algorithms exists.
SINCE = {"mixed_chunk_algorithms": "0.5.19"}


def launch(release: str) -> Launch:
    return Launch({}, source=source(release))


def test_every_topic_has_an_expectation() -> None:
    assert set(WORDS) | set(SINCE) == set(LINES)


@pytest.mark.parametrize("release", FLAG_RELEASES)
def test_every_topic_is_found(release: str) -> None:
    for topic, word in WORDS.items():
        where = deciding(launch(release), topic)
        assert re.fullmatch(r"[\w./]+\.py:\d+", where), (topic, where)
        assert word in line_of(source(release), f"sglang/srt/{where}"), (topic, where)
    newer = FLAG_RELEASES.index(release) >= FLAG_RELEASES.index(SINCE["mixed_chunk_algorithms"])
    assert bool(deciding(launch(release), "mixed_chunk_algorithms")) is newer


@pytest.mark.parametrize("release", FLAG_RELEASES)
def test_fields_and_runner_methods_are_found(release: str) -> None:
    known = launch(release)
    for field in (
        "enable_mixed_chunk",
        "mem_fraction_static",
        "moe_runner_backend",
        "num_continuous_decode_steps",
    ):
        assert field in line_of(source(release), f"sglang/srt/{declared(known, field)}")
    for kind in ("unquantized", "fp8", "mxfp4", "modelopt_fp4", "w8a8_fp8"):
        where = runner_line(known, kind)
        assert "def create_moe_runner" in line_of(source(release), f"sglang/srt/{where}"), (kind, where)


def test_an_unknown_tree_points_nowhere() -> None:
    assert deciding(Launch({}), "memory") == ""
    assert declared(Launch({}), "tp_size") == ""
