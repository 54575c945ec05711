"""The engine: finding a tree, cutting functions out of it, and never raising."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from sglang_guards.source import tree as engine
from sglang_guards.source.fingerprint import fingerprint
from sglang_guards.source.syntax.slicing import block_ends, enclosing, parse_at
from sglang_guards.source.tree import Answer, Items, Source
from tests.contract.tables import FUSED_MOE, KERNEL, Copy, source
from tests.trees import RELEASES, tree

PROJECT = Path(__file__).parents[2]


def python(code: str, *path: Path) -> str:
    """Output of a fresh interpreter that has the project and the given folders on its path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, *path)))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def small_tree(root: Path, files: dict[str, str]) -> Source:
    for rel, text in files.items():
        path = root / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "sglang/srt").mkdir(parents=True, exist_ok=True)
    found = engine.find(root)
    assert found is not None
    return found


# -- finding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_the_version_is_the_installed_one(release: str) -> None:
    assert source(release).version == release


def test_a_tree_is_found_by_either_folder() -> None:
    holder = tree("0.5.15")
    for folder in (holder, holder / "sglang"):
        found = engine.find(folder)
        assert found is not None
        assert found.root == holder / "sglang"


def test_a_folder_without_sglang_is_no_tree(tmp_path: Path) -> None:
    assert engine.find(tmp_path) is None
    (tmp_path / "sglang").mkdir()
    assert engine.find(tmp_path) is None


def test_the_installed_tree_is_found_without_importing_it() -> None:
    code = (
        "import sys, json; from sglang_guards.source import find; found = find();"
        "print(json.dumps([str(found.root), found.version, 'sglang' in sys.modules, 'torch' in sys.modules]))"
    )
    holder = tree("0.5.15")
    assert json.loads(python(code, holder)) == [str(holder / "sglang"), "0.5.15", False, False]


def test_an_editable_install_is_found() -> None:
    """Its finder sits on sys.meta_path, and no folder on sys.path holds the package."""
    code = f"""
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sglang":
            place = {str(tree("0.5.15") / "sglang")!r}
            return importlib.util.spec_from_file_location(
                name, place + "/__init__.py", submodule_search_locations=[place])
sys.meta_path.append(Finder)
from sglang_guards.source import find
print(find().root.parent.name, "sglang" in sys.modules)
"""
    assert python(code) == "0.5.15 False"


def test_an_imported_package_is_believed_before_sys_path() -> None:
    code = f"""
import sys, types
module = types.ModuleType("sglang")
module.__path__ = [{str(tree("0.5.18") / "sglang")!r}]
sys.modules["sglang"] = module
from sglang_guards.source import find
print(find().version)
"""
    assert python(code, tree("0.5.15")) == "0.5.18"


def test_a_checkout_in_the_working_folder_is_no_package(tmp_path: Path) -> None:
    """A folder `sglang` without srt, as a git checkout is, does not hide the installed package."""
    (tmp_path / "sglang" / "python").mkdir(parents=True)
    assert (
        python("from sglang_guards.source import find; print(find().version)", tmp_path, tree("0.5.15"))
        == "0.5.15"
    )


def test_odd_escapes_are_not_warned_about(tmp_path: Path) -> None:
    found = small_tree(tmp_path, {"sglang/a.py": 'def f():\n    return "\\d"\n'})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.maybe("sglang/a.py", "f") is not None


def test_no_installed_tree() -> None:
    assert python("from sglang_guards.source import find; print(find())") == "None"


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, sglang_guards; print(sorted(m for m in sys.modules if m.startswith('sglang_guards')))"
    assert python(code) == "['sglang_guards']"


def test_a_tree_without_a_version(tmp_path: Path) -> None:
    assert small_tree(tmp_path, {}).version == "unknown"


def test_the_version_of_a_checkout(tmp_path: Path) -> None:
    files = {
        "sglang/version.py": "try:\n    pass\nexcept ImportError:\n    pass\n__version__ = '0.0.0.dev1+gabc'\n"
    }
    assert small_tree(tmp_path, files).version == "0.0.0.dev1+gabc"


def test_of_two_left_over_installs_neither_is_believed(tmp_path: Path) -> None:
    for version in ("0.5.10", "0.5.15"):
        (tmp_path / f"sglang-{version}.dist-info").mkdir()
    assert (
        small_tree(tmp_path, {"sglang/_version.py": "__version__ = version = '0.5.15'\n"}).version == "0.5.15"
    )


# -- asking ------------------------------------------------------------------------------------------------


def test_every_probe_can_be_imported_and_is_documented() -> None:
    engine.find_probe("no such probe")  # imports every module that holds probes
    assert len(engine.PROBES) > 70
    for name, probe in engine.PROBES.items():
        assert probe.name == name
        assert probe.doc.endswith(".") or probe.doc[0].islower(), name


def test_every_module_with_probes_is_searched() -> None:
    folder = PROJECT / "sglang_guards" / "source"
    holding = {
        f"{path.parent.name}.{path.stem}"
        for path in folder.glob("*/*.py")
        if "@probe(" in path.read_text(encoding="utf-8")
    }
    assert holding == set(engine.PROBE_MODULES)


def test_every_probe_that_is_asked_for_exists() -> None:
    """A misspelt probe would answer None for ever and make its rule silent."""
    engine.find_probe("no such probe")
    pattern = re.compile(r"""["']source\.([a-z0-9_]+)["']|\bask\(["']([a-z0-9_]+)["']\)""")
    for path in (PROJECT / "sglang_guards").rglob("*.py"):
        for found in pattern.finditer(path.read_text(encoding="utf-8")):
            assert (found[1] or found[2]) in engine.PROBES, f"{path.name} asks for {found[0]}"


def test_every_probe_answers_on_an_empty_tree(tmp_path: Path) -> None:
    """Nothing raises on a tree that has no files at all, and nothing is claimed of it."""
    engine.find_probe("no such probe")
    empty = small_tree(tmp_path, {})
    for name in engine.PROBES:
        assert isinstance(empty.ask(name), Answer)
        assert isinstance(empty.list(name), Items)
        assert empty.ask(name).value is None, name


def test_an_unknown_probe_is_none() -> None:
    assert source("0.5.15").ask("no_such_probe").value is None
    assert source("0.5.15").list("no_such_probe").values is None


def test_a_list_is_not_an_answer_and_an_answer_is_not_a_list() -> None:
    assert source("0.5.15").ask("fusion_auto_architectures").value is None
    assert source("0.5.15").list("flag_exists").values is None


def test_a_probe_that_crashes_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: Source) -> Answer:
        raise ZeroDivisionError("boom")

    monkeypatch.setitem(engine.PROBES, "crashes", engine.Probe("crashes", "Crashes.", crash))
    answer = Source(tree("0.5.15") / "sglang").ask("crashes")
    assert answer.value is None
    assert "ZeroDivisionError: boom" in answer.detail


def test_answers_are_remembered(tmp_path: Path) -> None:
    copy = Copy("0.5.15", tmp_path)
    found = copy.source()
    before = found.ask("zero_store_guarded")
    copy.file(KERNEL).unlink()
    assert found.ask("zero_store_guarded") is before


# -- fingerprint and flags -----------------------------------------------------------------------------------


def test_equal_kernels_have_equal_fingerprints() -> None:
    assert fingerprint(source("0.5.10")) == fingerprint(source("0.5.10.post1"))
    assert fingerprint(source("0.5.15")) != fingerprint(source("0.5.16"))


def test_an_edited_kernel_has_another_fingerprint(tmp_path: Path) -> None:
    copy = Copy("0.5.15", tmp_path)
    assert fingerprint(copy.source()) == fingerprint(source("0.5.15"))
    copy.rewrite(FUSED_MOE, lambda text: text.replace("\n", "\r\n"))
    assert fingerprint(copy.source()) == fingerprint(source("0.5.15"))
    copy.edit(KERNEL, "tl.atomic_add(c_ptrs, accumulator, mask=c_mask)", "tl.atomic_add(c_ptrs, accumulator)")
    assert fingerprint(copy.source()) != fingerprint(source("0.5.15"))


@pytest.mark.parametrize("release", ["0.5.9", "0.5.15", "0.5.19", "0.5.20", "0.5.23"])
def test_flags_are_the_fields_that_python_sees(release: str) -> None:
    """The same names as a full parse gives, which takes a hundred times as long."""
    root = tree(release) / "sglang/srt"
    fields: set[str] = set()
    for path in (root / "server_args.py", *(root / "arg_groups/fields").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (
                path.name != "server_args.py" or node.name == "ServerArgs"
            ):
                annotated = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                fields |= {
                    ast.unparse(i.target) for i in annotated if "ClassVar" not in ast.unparse(i.annotation)
                }
    assert source(release).flags() == {name for name in fields if not name.startswith("_")}


def test_flags_of_a_tree_without_server_args(tmp_path: Path) -> None:
    assert small_tree(tmp_path, {}).flags() is None


# -- cutting -----------------------------------------------------------------------------------------------

TEXT = '''\
import x


class A:
    """Text
at the margin
"""

    @staticmethod
    def f(
        a,
    ) -> int:
        # a comment
    # at another depth
        return """
margin
"""

    def g(self):
        return 2


def f():
    return 3


if x:
    def late():
        return 4


def f():
    return 5
'''


def cut(tmp_path: Path, name: str) -> engine.Code | None:
    return small_tree(tmp_path, {"sglang/a.py": TEXT}).maybe("sglang/a.py", name)


@pytest.mark.parametrize(
    ("name", "line", "last"), [("A.f", 10, 17), ("A.g", 19, 20), ("late", 28, 29), ("A", 4, 20)]
)
def test_functions_keep_their_place(tmp_path: Path, name: str, line: int, last: int) -> None:
    code = cut(tmp_path, name)
    assert code is not None
    assert (code.node.lineno, code.node.end_lineno) == (line, last)


def test_of_two_definitions_the_later_one_counts(tmp_path: Path) -> None:
    code = cut(tmp_path, "f")
    assert code is not None
    assert "return 5" in ast.unparse(code.node)


@pytest.mark.parametrize("name", ["B", "A.h", "f.f", "A.late"])
def test_what_is_not_there_is_not_found(tmp_path: Path, name: str) -> None:
    assert cut(tmp_path, name) is None


@pytest.mark.parametrize(
    ("word", "name"), [("return 2", "A.g"), ("return 3", "f"), ("import x", None), ("return 4", "late")]
)
def test_the_function_around_a_place(word: str, name: str | None) -> None:
    assert enclosing(TEXT, TEXT.index(word)) == name


def test_a_piece_that_never_ends_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parse_at("def f():\n    x = (\n\ndef g():\n    pass\n", 0, 0)
    assert list(block_ends("a\n", 0, 0)) == [2]


@pytest.mark.parametrize("release", ["0.5.10", "0.5.15", "0.5.23"])
def test_cut_functions_equal_those_of_a_full_parse(release: str) -> None:
    """Every function of the files that matter, cut out, has the text and the lines that Python gives it."""
    tree_source = source(release)
    holder = tree_source.root.parent
    for name in (FUSED_MOE, KERNEL, "triton.py"):
        for path in holder.glob(f"sglang/**/moe*/**/{name}"):
            rel = path.relative_to(holder).as_posix()
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    code = tree_source.function(rel, node.name)
                    assert ast.dump(code.node) == ast.dump(_undecorated(node))
                    assert (code.node.lineno, code.node.end_lineno) == (node.lineno, node.end_lineno)


def _undecorated(node: ast.FunctionDef | ast.ClassDef) -> ast.stmt:
    node.decorator_list = []
    return node
