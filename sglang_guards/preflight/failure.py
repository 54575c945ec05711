"""What an exception of SGLang's resolution means: a refusal, which is a finding, or trouble of the simulation."""

from __future__ import annotations

import linecache
import traceback

from sglang_guards.preflight import plain_config, refusals
from sglang_guards.preflight.messages import Answer
from sglang_guards.preflight.parsed import Parsed


def failure(error: BaseException, parsed: Parsed) -> Answer:
    message = _reason(error)
    if not parsed.done:
        return {"kind": "config", "message": message}
    if unknown := plain_config.unknown_type(error):
        return {"kind": "unknown type", "model_type": unknown}
    if "trust_remote_code" in str(error):
        return {
            "kind": "trouble",
            "message": "the checkpoint needs code that it brings, and code of a checkpoint is never run",
        }
    doubt = refusals.doubt(error, parsed.plugins)
    if doubt is not None and not doubt.reason:
        return trouble(error, parsed)
    if doubt is None and parsed.plain_types:
        return trouble(error, parsed)
    if doubt is not None:
        place = f" ({where})" if (where := _where(error)) else ""
        return {"kind": "trouble", "message": f"{doubt.reason}: {message}{place}", "hint": doubt.hint}
    if parsed.draft_unknown:
        return {
            "kind": "trouble",
            "message": f"SGLang could not resolve the launch while the draft model is unknown: {message}",
        }
    return {"kind": "refused", "message": message, "where": _where(error)}


def trouble(error: BaseException, parsed: Parsed) -> Answer:
    """Ours, not SGLang's; names a model type whose fields the JSON may not have."""
    place = f" ({where})" if (where := _where(error)) else ""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    found: Answer = {
        "kind": "trouble",
        "message": f"{type(error).__name__}: {_reason(error)}{place}",
        "trace": trace,
    }
    if parsed.plain_types:
        found["model_type"] = parsed.plain_types[0]
    return found


def _reason(error: BaseException) -> str:
    """The first line of what was raised; an assertion without text is its own source line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines:
        return lines[0]
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    return (linecache.getline(frame[0].filename, frame[0].lineno or 0).strip() if frame else "") or type(
        error
    ).__name__


def _where(error: BaseException) -> str:
    """``sglang/srt/…:line`` of the innermost frame in SGLang."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, found, rest = frame.filename.rpartition("/sglang/")
        if found:
            return f"sglang/{rest}:{frame.lineno}"
    return ""
