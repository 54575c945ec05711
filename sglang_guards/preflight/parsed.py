"""What SGLang's parser saw of one launch, and what stands in its namespace for what the operator gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_guards.preflight import options
from sglang_guards.preflight.messages import Request


@dataclass
class Parsed:
    """What SGLang's parser saw; filled while `prepare_server_args` runs."""

    request: Request
    table: tuple[options.Option, ...] = ()
    merged: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    #: Temporary folder -> the model path that the operator gave.
    stands_for: dict[str, str] = field(default_factory=dict)
    draft_unknown: bool = False
    #: Model types that are judged from the JSON alone.
    plain_types: list[str] = field(default_factory=list)
    #: Packages of other plugins that were loaded.
    plugins: tuple[str, ...] = ()
    #: The folder of the target's checkpoint, where it is on this machine.
    checkpoint: Path | None = None
    problems: list[str] = field(default_factory=list)
    #: The environment before SGLang's resolution.
    env: Mapping[str, str] = field(default_factory=dict)
