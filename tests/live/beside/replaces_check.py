"""Another plugin, as an out-of-tree platform may bring: it puts its own method in the place of SGLang's."""

from __future__ import annotations

from typing import Any

CALLS: list[str] = []


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.server_args.ServerArgs.check_server_args", check_server_args, HookType.REPLACE
    )


def check_server_args(self: Any) -> None:
    CALLS.append(self.model_path)
