"""Probes: named questions to an SGLang source tree. `sglang_guards.source` imports them when first asked."""
