"""What to say of a checkpoint whose model type neither transformers nor the installed SGLang can read."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import releases
from sglang_guards.source.tree import Source

#: Where SGLang keeps config classes of model types that transformers lacks.
_PLACES = ("configs/**/*.py", "utils/hf_transformers*.py", "utils/hf_transformers/*.py")


def could_not(model_type: str, message: str, installed: Source) -> CouldNotCheck:
    """Names the type, the releases that read it, and the remedy."""
    have = f"transformers {_transformers()}"
    why = f"; from the fields of config.json alone SGLang could not resolve the launch: {message}"
    return CouldNotCheck(
        f"model type {model_type} is known neither to {have} nor to SGLang {installed.version}"
        + (why if message else ""),
        _remedy(model_type, installed),
    )


def _remedy(model_type: str, installed: Source) -> str:
    having = [name for name in releases_that_read(model_type) if name != installed.version]
    if not having:
        return f"install the transformers release that has {model_type} (the checkpoint's card names it) beside SGLang"
    which = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}"
    return f"SGLang {which} {'has' if len(having) == 1 else 'have'} a config class for {model_type}"


def releases_that_read(model_type: str) -> list[str]:
    """Releases unpacked on this machine that bring a config class for a model type, oldest first."""
    return [name for name, folder in releases.unpacked().items() if reads(folder / "sglang", model_type)]


def reads(package: Path, model_type: str) -> bool:
    """Whether a tree declares the type: as a class attribute, or as a key of its table of config classes."""
    name = re.escape(model_type)
    declared = re.compile(
        rf"""model_type\s*(?::\s*\w+\s*)?=\s*["']{name}["']|_CONFIG_REGISTRY\[["']{name}["']\]"""
    )
    for pattern in _PLACES:
        for file in (package / "srt").glob(pattern):
            try:
                if declared.search(file.read_text(encoding="utf-8", errors="replace")):
                    return True
            except OSError:
                continue
    return False


def _transformers() -> str:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return "here"
