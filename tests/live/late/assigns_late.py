"""Another plugin: while SGLang resolves its server args, it writes its own method over the validator."""

from __future__ import annotations

from typing import Any


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.server_args.ServerArgs.resolve_once", assign, HookType.AFTER)


def assign(result: object, server_args: Any, *args: object, **kwargs: object) -> None:
    type(server_args).check_server_args = quiet


def quiet(self: Any) -> None:
    return None
