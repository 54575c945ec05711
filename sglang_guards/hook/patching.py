"""Put a hook around one attribute of a class or module, in place.

SGLang's HookRegistry does the same and more, and then searches every attribute of every loaded module for copies of
the original: 25 to 50 ms per target. Here only copies under the same name are looked for, so that a worker pays less
than a millisecond.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MARK = "_sglang_guards"


def after(owner: Any, name: str, hook: Callable[..., None]) -> bool:
    """Call ``hook(result, *args, **kwargs)`` after each call of ``owner.name``; the result stays SGLang's own.

    Returns whether the attribute is there and can be wrapped. A second call changes nothing.
    """

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    return around(owner, name, call)


def around(owner: Any, name: str, hook: Callable[..., Any]) -> bool:
    """Have ``hook(original, *args, **kwargs)`` answer for ``owner.name``; returns as `after` does."""
    original = inspect.getattr_static(owner, name, None)
    if not inspect.isfunction(original):
        return False
    if getattr(original, _MARK, False):
        return True

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)
    if isinstance(owner, ModuleType):
        _replace_copies(name, original, wrapped)
    return True


def _replace_copies(name: str, original: object, wrapped: object) -> None:
    """What ``from module import name`` has left in other modules of SGLang."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sglang.") and getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, wrapped)
