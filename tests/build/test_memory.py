"""SGLang's own arithmetic for the KV cache runs on every shape of its ModelRunner, beside a draft too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_guards.build import memory
from tests.launches.checks import check_all

#: Sizes in the runner, in an object of its own, in the published context.
RELEASES = ("0.5.15", "0.5.19", "0.5.23")
BASE = ["python", "-m", "sglang.launch_server", "--model-path", "some/model", "--tp", "8"]
DRAFT = [
    "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
]  # fmt: skip


@pytest.mark.live
@pytest.mark.parametrize("release", RELEASES)
def test_the_kv_cache_is_sized(release: str) -> None:
    model = {"gpu": "8xH200", "model": "deepseek-v3", "build": True}
    alone, beside = check_all(release, [{**model, "argv": BASE}, {**model, "argv": [*BASE, *DRAFT]}])
    tokens = []
    for report in (alone, beside):
        target = next(one for one in report["build"]["ranks"] if one["rank"]["model"] == "target")
        assert not [note for note in target["notes"] if note.startswith("the size of the KV cache")]
        tokens.append(target["kv_tokens"])
    # 61 layers and 81 GiB of weights leave room for some hundred thousand tokens; a draft takes of it.
    assert 100_000 < tokens[1] < tokens[0] < 2_000_000


@pytest.mark.parametrize(
    ("path", "built_in", "layers"),
    [("m", 1, 1), ("m", None, 3), (None, 1, None)],
)
def test_the_layers_of_a_draft(path: str | None, built_in: int | None, layers: int | None) -> None:
    view = SimpleNamespace(speculative_draft_model_path=path)
    config = SimpleNamespace(num_nextn_predict_layers=built_in, num_hidden_layers=2, num_attention_layers=3)
    assert memory.draft_layers(view, config) == layers
