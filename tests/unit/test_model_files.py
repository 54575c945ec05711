"""Reading a checkpoint's config, and laying it out without its code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import model_files

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "auto_map": {"AutoConfig": "evil.Config"},
}


def write(folder: Path, text: str, name: str = "config.json") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    file = write(tmp_path, json.dumps(GOOD))
    assert model_files.read(file) == model_files.read(tmp_path) == GOOD


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[1, 2]", "holds list"),
        ("null", "holds NoneType"),
        ("{}", "names no architectures"),
        ('{"architectures": []}', "names no architectures"),
        ('{"architectures": null}', "names no architectures"),
        ('{"architectures": [3]}', "names no architectures"),
        ('{"architectures": "Llama"}', "names no architectures"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_damage_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CouldNotCheck) as caught:
        model_files.read(write(tmp_path, text))
    assert says in caught.value.message
    assert "\n" not in caught.value.message


@given(st.binary(max_size=60))
def test_no_bytes_can_do_worse(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("damaged") / "config.json"
    file.write_bytes(data)
    with pytest.raises(CouldNotCheck):
        model_files.read(file)


def test_missing_file_and_folder_without_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "no.json"):
        with pytest.raises(CouldNotCheck):
            model_files.read(path)


def test_code_is_left_behind(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    write(beside, json.dumps(GOOD))
    write(beside, '{"quantization": {}}', "hf_quant_config.json")
    write(beside, '{"auto_map": {}}', "tokenizer_config.json")
    write(beside, "raise SystemExit", "evil.py")
    write(beside, "weights", "model.safetensors")
    folder = model_files.lay_out(GOOD, beside, "org/Model-1.5", tmp_path / "out")
    assert folder.parts[-2:] == ("org", "Model-1.5")
    assert sorted(f.name for f in folder.iterdir()) == ["config.json", "hf_quant_config.json"]
    assert "auto_map" not in (folder / "config.json").read_text()


@pytest.mark.parametrize("name", ["../../etc", "/", "", "a/../../b", "x" * 30, "/abs/olute/path"])
def test_names_stay_below_the_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "out"
    folder = model_files.lay_out(GOOD, tmp_path / "none", name, root)
    assert root.resolve() in folder.resolve().parents


@pytest.mark.parametrize(("path", "local"), [("/m", True), ("./m", True), ("~/m", True), ("a/b/c", True), ("m/", True),
                                             ("org/model", False), ("gpt2", False)])  # fmt: skip
def test_paths_and_hub_ids(path: str, local: bool) -> None:
    assert model_files.looks_local(path) is local


def test_a_config_nested_too_deeply_is_one_sentence(tmp_path: Path) -> None:
    nested = '{"a":' * 900 + "1" + "}" * 900
    (tmp_path / "config.json").write_text(f'{{"architectures": ["X"], "x": {nested}}}', encoding="utf-8")
    with pytest.raises(CouldNotCheck, match="nested more than 100 levels deep"):
        model_files.read(tmp_path)
