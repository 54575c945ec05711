"""Who raised an error: SGLang, on purpose, or something of ours that a GPU machine would not have met.

Only an exception that a ``raise`` or ``assert`` of the SGLang tree raised, with nothing but the like in its causes, is
SGLang's own no. Torch on the meta device, a missing key of a config, an import that fails here: all of that is ours.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sglang_guards.build import stand_ins
from sglang_guards.build.model import Refusal

#: Types with which SGLang says no. KeyError, AttributeError, ImportError and OSError tell of something missing here.
_REFUSALS = (ValueError, AssertionError, NotImplementedError, RuntimeError, TypeError)
_NOT_REFUSALS = (ImportError, UnicodeError)
#: What may lie under a refusal without making it doubtful: a look-up that SGLang turned into its own words.
_LOOK_UPS = (KeyError,)
#: SGLang's words for «this machine has no GPU, package or network», which say nothing about the target machine.
_OURS = (
    "no cuda gpus",
    "not compiled with cuda",
    "cuda error",
    "nvidia driver",
    "is not installed",
    "please install",
    "pip install",
    "not importable",
    "cannot find model module",
    "trust_remote_code",
    "transformers-compatible",
    "no platform-specific",
    "jit module",
    "failed to build",
    "failed to compile",
    "failed to load jit",
)


def refusal(error: BaseException, when: str = "build") -> Refusal | None:
    """SGLang's own no, or None where the error may be ours."""
    if stand_ins.involved(error) or not isinstance(error, _REFUSALS) or isinstance(error, _NOT_REFUSALS):
        return None
    roots = _roots()
    if not all(_raised_by(one, roots) or _is_look_up(one, roots) for one in chain(error)):
        return None
    if not _raised_by(error, roots):
        return None
    if (
        in_config(error)
        or _compiled(error)
        or any(_doubtful(step) for step in _frames(error) if _in_tree(step, roots))
    ):
        return None
    message = words(error)
    if any(sign in message.lower() for sign in _OURS) or "not here>" in message:
        return None
    return Refusal(type(error).__name__, message, where(error), _layer(error), when)


#: A condition that asks for the device of a tensor, or for an object that only a running server has.
_DOUBTFUL = re.compile(
    r"\.is_cuda\b(?!\()|\.device\b|is_meta|data_ptr|is_pinned|_pool\b|allocator|\bversion\b"
)


#: Functions that read a checkpoint's quantization settings: what they miss, the config given here may lack.
_READ_CONFIG = frozenset({"get_quant_config", "from_config"})


def in_config(error: BaseException) -> bool:
    """Whether SGLang was reading the checkpoint's quantization settings."""
    return any(step.tb_frame.f_code.co_name in _READ_CONFIG for step in _frames(error))


def _compiled(error: BaseException) -> bool:
    """Whether a kernel was to be compiled: there is no compiler for the target's GPU here."""
    return any("/jit" in step.tb_frame.f_code.co_filename for one in chain(error) for step in _frames(one))


def _doubtful(step: TracebackType) -> bool:
    """Whether a test around this line asks something that only a real machine could answer, or asks a stand-in."""
    for test in _tests(step):
        if _DOUBTFUL.search(ast.unparse(test)):
            return True
        for node in ast.walk(test):
            if isinstance(node, (ast.Name, ast.Attribute)) and _is_stand_in(node, step):
                return True
    return False


def _tests(step: TracebackType) -> Iterator[ast.expr]:
    """The conditions that led to the line where this frame stands, as far as they are written around it."""
    try:
        lines, start = inspect.getsourcelines(step.tb_frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    line = step.tb_lineno - max(start, 1) + 1
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.Assert)) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node.test


def _is_stand_in(node: ast.expr, step: TracebackType) -> bool:
    frame = step.tb_frame
    try:
        value = eval(compile(ast.Expression(node), "<test>", "eval"), frame.f_globals, dict(frame.f_locals))
    except (Exception, stand_ins.CannotTell):
        return False
    return isinstance(value, stand_ins.StandIn)


#: A set in a message comes in another order in every process.
_SET = re.compile(r"\{'[^'{}]*'(?:, '[^'{}]*')+\}")


def _in_order(match: re.Match[str]) -> str:
    return "{" + ", ".join(sorted(match[0][1:-1].split(", "))) + "}"


def in_sglang(error: BaseException) -> bool:
    """Whether a line of SGLang was the last Python that ran, whoever raised, and no stand-in was asked."""
    roots = _roots()
    return not stand_ins.involved(error) and any(_in_tree(step, roots) for step in _frames(error))


def words(error: BaseException) -> str:
    """What was said, on one line; an assertion without text is its own source line."""
    text = _SET.sub(_in_order, " ".join(str(error).split()))
    if text:
        return text if len(text) <= 600 else text[:597] + "…"
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    return (linecache.getline(frame[0].filename, frame[0].lineno or 0).strip() if frame else "") or type(
        error
    ).__name__


def where(error: BaseException) -> str:
    """``sglang/srt/…:line`` of the innermost frame in SGLang."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, found, rest = frame.filename.rpartition("/sglang/")
        if found:
            return f"sglang/{rest}:{frame.lineno}"
    return ""


def trouble(error: BaseException) -> str:
    """One sentence about an error that is ours."""
    place = where(error)
    kind = "" if isinstance(error, stand_ins.CannotTell) else f"{type(error).__name__}: "
    text = words(error)
    return f"{kind}{text if len(text) <= 240 else text[:237] + '…'}{f' ({place})' if place else ''}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, each once."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _frames(error: BaseException) -> Iterator[TracebackType]:
    step = error.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _roots() -> tuple[str, ...]:
    """Where SGLang's own files are: the installed package, and packages of model classes that plugins registered."""
    package = sys.modules.get("sglang")
    return tuple(str(Path(path).resolve()) + "/" for path in getattr(package, "__path__", ()))


def _last(error: BaseException) -> TracebackType | None:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last


def _in_tree(last: TracebackType | None, roots: tuple[str, ...]) -> bool:
    return last is not None and str(Path(last.tb_frame.f_code.co_filename).resolve()).startswith(roots)


def _raised_by(error: BaseException, roots: tuple[str, ...]) -> bool:
    """Whether a ``raise`` or ``assert`` in those files raised it, not C code that they called."""
    last = _last(error)
    if last is None or not _in_tree(last, roots):
        return False
    code = last.tb_frame.f_code.co_code
    return 0 <= last.tb_lasti < len(code) and dis.opname[code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _is_look_up(error: BaseException, roots: tuple[str, ...]) -> bool:
    return isinstance(error, _LOOK_UPS) and _in_tree(_last(error), roots)


def _layer(error: BaseException) -> str:
    """The name of the layer that was being made: SGLang hands it down as `prefix`."""
    name = ""
    step = error.__traceback__
    while step is not None:
        prefix = step.tb_frame.f_locals.get("prefix")
        if isinstance(prefix, str) and prefix:
            name = prefix
        step = step.tb_next
    return name
