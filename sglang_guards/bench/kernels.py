"""Copies of the installed SGLang's two fused-MoE modules, changed in memory: the installed tree is never written.

A copy lives beside the original under another module name, so that its relative imports work and both can be timed
in one process. Triton reads the copy's source from a file in a temporary folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

FLAG = "enable_fused_moe_sum_all_reduce"
SEQUENCE_MODULES = (
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe",
)
KERNEL_MODULES = (
    "sglang.kernels.ops.moe.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_kernels",
)
#: The one line of the kernel that `relaxed` changes.
ATOMIC = "tl.atomic_add(c_ptrs, accumulator, mask=c_mask)"
RELAXED = 'tl.atomic_add(c_ptrs, accumulator, mask=c_mask, sem="relaxed")'

Texts = dict[str, str]


def root() -> Path:
    """The folder that holds the imported `sglang` package."""
    import sglang

    return Path(sglang.__path__[0]).parent


def file_of(module: str) -> str:
    """`sglang.a.b` -> `sglang/a/b.py`."""
    return module.replace(".", "/") + ".py"


def names(tree: Path) -> tuple[str, str]:
    """The module names of (sequence, kernel) in this tree. Raises LookupError where the tree has neither."""
    found = [
        next((m for m in group if (tree / file_of(m)).is_file()), None)
        for group in (SEQUENCE_MODULES, KERNEL_MODULES)
    ]
    if found[0] is None or found[1] is None:
        raise LookupError(f"no fused MoE kernel in {tree}")
    return found[0], found[1]


def texts(tree: Path) -> Texts:
    """The two files' texts by path relative to the tree."""
    return {file_of(m): (tree / file_of(m)).read_text(encoding="utf-8") for m in names(tree)}


def relaxed(files: Mapping[str, str]) -> Texts:
    """The one-line change. Raises ValueError unless the line is there exactly once."""
    out = dict(files)
    hits = [path for path, text in files.items() if ATOMIC in text]
    if len(hits) != 1 or files[hits[0]].count(ATOMIC) != 1:
        raise ValueError(f"expected the line {ATOMIC!r} exactly once")
    out[hits[0]] = files[hits[0]].replace(ATOMIC, RELAXED)
    return out


def without_combine(files: Mapping[str, str]) -> Texts:
    """Leaves out the sum over top-k of the unfused path (its results are wrong): the time of a free combine."""
    out = dict(files)
    path = next(p for p in files if p.endswith("/fused_moe.py"))
    out[path] = files[path] + (
        "\n\ndef _no_sum(*args, **kwargs):\n    return None\n\n\n"
        "moe_sum_reduce = moe_sum_reduce_torch_compile = moe_sum_reduce_triton = _no_sum\n"
    )
    return out


def apply_diff(files: Mapping[str, str], diff: str, *, only_these: bool = False) -> Texts:
    """Apply a unified diff (or a `git format-patch` file) exactly: every hunk at its place, no fuzz.

    Raises ValueError where it does not fit, and where it changes another file unless `only_these`.
    """
    out = dict(files)
    for part in re.split(r"^--- (?=\S)", diff.split("\n-- \n")[0], flags=re.MULTILINE)[1:]:
        _, _, body = part.partition("\n+++ ")
        target, _, body = body.partition("\n")
        path = target.split("\t")[0].strip().removeprefix("b/").removeprefix("python/")
        if path not in out and only_these:
            continue
        if path not in out:
            raise ValueError(f"the diff changes {path}, which is not one of {', '.join(out)}")
        body = re.split(r"^diff --git ", body, flags=re.MULTILINE)[0]
        out[path] = _apply(out[path], body, path)
    return out


def _apply(text: str, body: str, path: str) -> str:
    old, new, at = text.split("\n"), [], 0
    for hunk in re.split(r"^(?=@@ )", body, flags=re.MULTILINE):
        match = re.match(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*\n", hunk)
        if not match:
            continue
        start = int(match[1]) - 1
        new += old[at:start]
        at = start
        for line in hunk[match.end() :].split("\n"):
            if line[:1] == "+":
                new.append(line[1:])
            elif line[:1] in (" ", "-"):
                if at >= len(old) or old[at] != line[1:]:
                    raise ValueError(f"{path}:{at + 1} is not what the diff expects")
                new += [old[at]] if line[0] == " " else []
                at += 1
    return "\n".join(new + old[at:])


def load(tag: str, files: Mapping[str, str], tree: Path) -> ModuleType:
    """Import a changed copy of the two modules under names that end in `__tag`; returns the sequence module."""
    sequence, kernel = names(tree)
    folder = Path(tempfile.gettempdir()) / f"sglang-guards-bench-{_digest(files)}"
    folder.mkdir(exist_ok=True)
    _module(f"{kernel}__{tag}", files[file_of(kernel)], folder)
    text = files[file_of(sequence)]
    stem = kernel.rpartition(".")[2]
    text = re.sub(rf"(from [\w.]*\b{stem})( import)", rf"\1__{tag}\2", text)
    text = re.sub(
        r"^@register_custom_op\(.*\)\n", "", text, flags=re.MULTILINE
    )  # the names are taken by the original
    return _module(f"{sequence}__{tag}", text, folder)


def _module(name: str, text: str, folder: Path) -> ModuleType:
    importlib.import_module(name.rpartition(".")[0])
    path = folder / f"{name.rpartition('.')[2]}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _digest(files: Mapping[str, str]) -> str:
    import hashlib

    return hashlib.sha256("\0".join(files[p] for p in sorted(files)).encode()).hexdigest()[:12]


class _Override:
    """An object with one attribute replaced, at this level or one below (`moe`)."""

    def __init__(self, real: Any, value: bool) -> None:
        self._real, self._value = real, value

    def __getattr__(self, name: str) -> Any:
        if name == FLAG:
            return self._value
        inner = getattr(self._real, name)
        return _Override(inner, self._value) if name == "moe" else inner


def set_flag(module: ModuleType, value: bool) -> None:
    """Let this copy see the flag as `value`, through whichever accessor its release uses."""
    done = False
    for name in ("get_global_server_args", "get_server_args", "get_exec"):
        real = getattr(module, name, None)
        if callable(real):
            setattr(module, name, _accessor(real, value))
            done = True
    if not done:
        raise LookupError(f"{module.__name__} reads its flags in a way that is not known")


def _accessor(real: Callable[[], Any], value: bool) -> Callable[[], Any]:
    return lambda: _Override(real(), value)


def set_tiles(
    module: ModuleType,
    down: Mapping[str, Mapping[int, Mapping[str, int]]],
    up: Mapping[str, Mapping[int, Mapping[str, int]]] | None = None,
) -> None:
    """Let this copy take its tiles from `down` and `up` (shape key -> tokens -> config; the nearest count is taken, as
    SGLang does), where its shape has an entry. The row block of the down projection is always that of the up
    projection, with which it shares the sorting of tokens."""
    real = module.try_get_optimal_moe_config
    module.down_tiles = dict(down)  # type: ignore[attr-defined]
    module.up_tiles = dict(up or {})  # type: ignore[attr-defined]

    def nearest(table: Mapping[int, Mapping[str, int]] | None, tokens: int) -> dict[str, int] | None:
        return dict(table[min(table, key=lambda count: abs(count - tokens))]) if table else None

    def choose(
        w1: Any, w2: Any, top_k: int, dtype: str | None, tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        chosen = real(w1, w2, top_k, dtype, tokens, *args, **kwargs)
        key = f"E{w2[0]}-N{w2[2]}-H{w2[1]}-K{top_k}-{'fp8' if dtype == 'fp8_w8a8' else 'bf16'}"
        own_up, own_down = (
            nearest(module.up_tiles.get(key), tokens),
            nearest(module.down_tiles.get(key), tokens),
        )
        if not kwargs.get("return_down_config"):
            return own_up or chosen
        config, below = (own_up, (None, None)) if own_up else chosen
        if own_down:
            own_down["BLOCK_SIZE_M"] = config["BLOCK_SIZE_M"]
            below = (own_down, own_down["BLOCK_SIZE_M"])
        return config, below

    module.try_get_optimal_moe_config = choose  # type: ignore[attr-defined]
