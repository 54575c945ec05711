"""Where a rule's claim comes from: threads of public trackers, notes, lines of source."""

from __future__ import annotations

from sglang_guards.report.model import Evidence


def sglang_issue(number: int) -> Evidence:
    """A thread of SGLang's tracker (the address redirects where the number is a pull request)."""
    return Evidence("report", f"https://github.com/sgl-project/sglang/issues/{number}")


def flashinfer_issue(number: int) -> Evidence:
    """A thread of FlashInfer's tracker."""
    return Evidence("report", f"https://github.com/flashinfer-ai/flashinfer/issues/{number}")


def vllm_issue(number: int) -> Evidence:
    """A thread of vLLM's tracker: the same kernels, reported there."""
    return Evidence("report", f"https://github.com/vllm-project/vllm/issues/{number}")


def public_note(text: str) -> Evidence:
    """A public report without an address of its own."""
    return Evidence("report", text)


def read_in(text: str) -> Evidence:
    """A place in the source of SGLang or of a package that it calls, for what no probe asks."""
    return Evidence("source", text)
