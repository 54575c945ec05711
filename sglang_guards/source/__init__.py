"""What the installed SGLang's text says, read without importing it; three-valued answers, each with its place."""

from sglang_guards.source.tree import PROBES, Answer, Code, Items, Probe, Source, Unknown, find, probe

__all__ = ["PROBES", "Answer", "Code", "Items", "Probe", "Source", "Unknown", "find", "probe"]
