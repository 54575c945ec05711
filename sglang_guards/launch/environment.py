"""Boolean environment variables as SGLang reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sglang_guards.source.tree import Source

ENVIRON = "sglang/srt/environ.py"
#: `get_bool_env_var` of every release, and `EnvBool` of those that declare the variable in environ.py.
_PLAIN = frozenset({"true", "1"})
_DECLARED = _PLAIN | {"yes", "y"}


def env_bool(env: Mapping[str, str], name: str, source: Source | None = None) -> bool:
    """Whether SGLang takes a variable for true: neither «on» nor blanks around a word count.

    Without a source the variable is taken to be declared, as most are.
    """
    text = None if source is None else source.text(ENVIRON)
    declared = text is None or re.search(rf"^ +{name}\s*(?::[^=\n]+)?=\s*EnvBool\(", text, re.MULTILINE)
    return env.get(name, "").lower() in (_DECLARED if declared else _PLAIN)
