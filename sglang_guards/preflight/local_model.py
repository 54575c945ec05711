"""The checkpoint's config as SGLang can read it offline, without code that the checkpoint brings."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import collect, model_files
from sglang_guards.launch.environment import env_bool
from sglang_guards.preflight.parsed import Parsed
from sglang_guards.source import find


def prepare_model(namespace: argparse.Namespace, parsed: Parsed) -> None:
    """Point the model path at something that can be read offline, or say why it cannot."""
    request, path = parsed.request, str(namespace.model_path)
    if path.lower() in collect.DUMMY_PATHS:
        return
    given = request.get("model_config")
    if given:
        file = Path(given)
        folder = file if file.is_dir() else file.parent
        parsed.checkpoint = folder
        namespace.model_path = _laid_out(model_files.read(file), folder, path, parsed)
    else:
        revision = getattr(namespace, "revision", None)
        namespace.model_path = _readable(path, revision, parsed)
        local = Path(path).expanduser()
        parsed.checkpoint = local if local.is_dir() else cached(path, revision)
    draft = getattr(namespace, "speculative_draft_model_path", None)
    if draft is None:
        return
    if draft == path:
        namespace.speculative_draft_model_path = namespace.model_path
        return
    try:
        namespace.speculative_draft_model_path = _readable(draft, None, parsed)
    except CouldNotCheck:
        # SGLang needs some config to resolve with; the draft's facts stay unknown.
        parsed.draft_unknown = True
        namespace.speculative_draft_model_path = namespace.model_path


def _laid_out(config: dict[str, Any], beside: Path, path: str, parsed: Parsed) -> str:
    folder = str(model_files.lay_out(config, beside, path, Path(parsed.request["scratch"])))
    parsed.stands_for[folder] = path
    return folder


def _readable(path: str, revision: str | None, parsed: Parsed) -> str:
    """`path` itself, or a copy of its config without code; raises `CouldNotCheck` when it is not on this machine."""
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / model_files.CONFIG).exists():
            if any(local.iterdir()):
                return path
            raise CouldNotCheck(f"model path {path} is an empty folder", "give the folder of the checkpoint")
        config = model_files.read(local)
        return _laid_out(config, local, path, parsed) if model_files.has_code(config) else path
    if local.is_file():
        return path
    if model_files.looks_local(path) and "://" not in path:
        raise CouldNotCheck(f"model path {path} does not exist", "correct --model-path")
    snapshot = None if "://" in path or _modelscope() else cached(path, revision)
    if snapshot is None:
        raise CouldNotCheck(
            f"model {path} is neither a folder here nor in this machine's Hugging Face cache, and check stays offline",
            "give the checkpoint's config.json with --model-config PATH",
        )
    config = model_files.read(snapshot)
    return _laid_out(config, snapshot, path, parsed) if model_files.has_code(config) else path


def _modelscope() -> bool:
    return env_bool(os.environ, "SGLANG_USE_MODELSCOPE", find())


def cached(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repo, model_files.CONFIG, revision=revision)
    except ValueError:  # not a repository id
        return None
    return Path(found).parent if isinstance(found, str) else None
