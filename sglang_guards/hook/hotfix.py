"""`SGLANG_GUARDS_HOTFIX=relaxed-atomics`: the one-line kernel fix for people who cannot patch SGLang.

The fused MoE sum adds with acquire-release order, which its results do not need: a later kernel reads them. With
relaxed order the same flag is faster than the default instead of slower (benchmarks/results). This module rebuilds
`fused_moe_kernel` in memory with that one line changed, after SGLang has loaded the kernel's module, in every process
that loads it. The installed files are not touched.

It acts only where the line is there exactly once; otherwise it logs a warning and changes nothing. Whatever goes
wrong here, the original kernel stays in place.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from sglang_guards.hook.import_hooks import when_imported

logger = logging.getLogger("sglang_guards")

VARIABLE = "SGLANG_GUARDS_HOTFIX"
NAME = "relaxed-atomics"
KERNEL = "fused_moe_kernel"
#: Where the kernel lives: 0.5.16 and later, 0.5.11 to 0.5.15, 0.5.10. Drop a line with the last release that has it.
MODULES = (
    "sglang.kernels.ops.moe.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_kernels",
)
OLD = "tl.atomic_add(c_ptrs, accumulator, mask=c_mask)"
NEW = 'tl.atomic_add(c_ptrs, accumulator, mask=c_mask, sem="relaxed")'


def apply(env: Mapping[str, str]) -> str | None:
    """Arrange the fix if `env` asks for it. Returns what will be done, in one line for the log, or None where
    nothing will be (not asked for, an unknown name, or not exactly one such line). Never raises."""
    try:
        return _apply(env)
    except Exception as error:  # a worker must start whatever the kernel's file looks like
        logger.warning(
            "sglang-guards: %s=%s not applied: %s: %s", VARIABLE, NAME, type(error).__name__, error
        )
        return None


def _apply(env: Mapping[str, str]) -> str | None:
    asked = env.get(VARIABLE, "").strip().lower()
    if not asked:
        return None
    if asked != NAME:
        logger.warning("sglang-guards: %s=%r is not known; the one fix is %s", VARIABLE, asked, NAME)
        return None
    found = _installed()
    if found is None:
        logger.warning("sglang-guards: %s not applied: this SGLang has no fused MoE kernel", NAME)
        return None
    module, path = found
    text = path.read_text(encoding="utf-8")
    line = _only_line(text)
    if line is None:
        why = "it has relaxed order already" if NEW in text else f"expected one line {OLD!r}"
        logger.warning("sglang-guards: %s not applied to %s: %s", NAME, path, why)
        return None
    when_imported(module, lambda: _rebuild(module))
    return f"{NAME}: {path.name}:{line} adds with relaxed order in this process"


def _installed() -> tuple[str, Path] | None:
    """The kernel's module and file, found without importing SGLang's layers."""
    package = sys.modules.get("sglang")
    places = list(getattr(package, "__path__", []))
    if package is None:
        spec = importlib.util.find_spec("sglang")
        places = list(spec.submodule_search_locations or []) if spec else []
    for module in MODULES:
        for place in places:
            path = Path(place).parent.joinpath(*module.split(".")).with_suffix(".py")
            if path.is_file():
                return module, path
    return None


def _only_line(text: str) -> int | None:
    """The line number of OLD inside the kernel, None unless it is in the file exactly once and in that function."""
    if text.count(OLD) != 1 or NEW in text:
        return None
    line = text[: text.index(OLD)].count("\n") + 1
    node = _function(text)
    return line if node is not None and node.lineno <= line <= (node.end_lineno or 0) else None


def _function(text: str) -> ast.FunctionDef | None:
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == KERNEL]
    return found[0] if len(found) == 1 else None


def _rebuild(name: str) -> None:
    """Define the kernel anew in its own module, from the changed source, and put it in the old one's place.

    Triton compiles from the text that `inspect` finds, so the changed text is given to `linecache` under a file name
    of its own (an entry without a modification time is never checked against the disk).
    """
    module: ModuleType = sys.modules[name]
    path = Path(str(module.__file__))
    text = path.read_text(encoding="utf-8")
    line = _only_line(text)
    node = _function(text)
    if line is None or node is None:
        logger.warning("sglang-guards: %s not applied: %s changed since start-up", NAME, path)
        return
    changed = text.replace(OLD, NEW)
    label = f"{path} ({NAME})"
    linecache.cache[label] = (len(changed), None, changed.splitlines(keepends=True), label)
    first = min([d.lineno for d in node.decorator_list] + [node.lineno])
    lines = changed.splitlines(keepends=True)
    source = "\n" * (first - 1) + "".join(lines[first - 1 : node.end_lineno])
    # In a copy of the namespace first: the old kernel stays unless the new one was made.
    space = dict(vars(module))
    exec(compile(source, label, "exec"), space)
    kernel = space[KERNEL]
    setattr(module, KERNEL, kernel)
    logger.info("sglang-guards: %s:%d adds with relaxed order (%s)", path, line, NAME)
