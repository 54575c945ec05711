"""SGLang without a plugin framework (0.5.10, 0.5.10.post1): wrap its methods when its server args are imported.

Two ways in, both on the operator's explicit request: `python -m sglang_guards.launch_server …` in place of
`python -m sglang.launch_server …`, or `sglang-guards legacy-hook install`, which writes one line into a .pth file of
the environment. Where SGLang has a plugin framework, both leave the work to it. This module can go with 0.5.10.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from sglang_guards.log import warn

SERVER_ARGS = "sglang.srt.server_args"
PTH_NAME = "sglang_guards_legacy.pth"
#: Runs in every interpreter of the environment, at times twice: no import but sys, and nothing until SGLang's server
#: args are imported.
_FINDER = f"""\
if not any(type(f).__name__ == "SglangGuardsLegacy" for f in sys.meta_path):
    class SglangGuardsLegacy:
        looking = False
        def find_spec(self, name, path=None, target=None):
            if name == "{SERVER_ARGS}" and not self.looking:
                self.looking = True
                try:
                    from sglang_guards.legacy import spec_of
                    return spec_of(name, path, target)
                except Exception:
                    return None
                finally:
                    self.looking = False
    sys.meta_path.insert(0, SglangGuardsLegacy())
"""
#: One physical line: a .pth file runs line by line, and only lines that start with `import`.
PTH_TEXT = f"import sys; exec({_FINDER!r})\n"


def has_plugin_framework() -> bool:
    """Whether the installed SGLang loads plugins itself (0.5.11 and later)."""
    try:
        return importlib.util.find_spec("sglang.srt.plugins") is not None
    except (ImportError, ValueError):
        return False


def spec_of(name: str, path: Any = None, target: Any = None) -> Any:
    """The spec of SGLang's server args, whose import ends with `attach`."""
    from sglang_guards.hook.import_hooks import spec_with

    return spec_with(name, attach, path, target)


def attach() -> None:
    """Wrap the validation and the auto-enable slot of an imported ServerArgs. Idempotent."""
    if os.environ.get("SGLANG_GUARDS", "").strip().lower() == "off" or has_plugin_framework():
        return
    from sglang.srt.server_args import ServerArgs

    from sglang_guards import sglang_compat
    from sglang_guards.hook import attach as hooks
    from sglang_guards.hook import patching
    from sglang_guards.settings import from_env

    if not patching.after(ServerArgs, sglang_compat.VALIDATOR, hooks.after_check_server_args):
        warn("sglang-guards: no validation: %s is not in this SGLang", sglang_compat.VALIDATOR_TARGET)
    if from_env(os.environ).auto_enable:
        patching.after(ServerArgs, sglang_compat.AUTO_METHOD, hooks.after_model_adjustments)


def pth_path() -> Path:
    """Where the .pth file goes: this environment's site-packages."""
    return Path(sysconfig.get_path("purelib")) / PTH_NAME


def install() -> str:
    """Write the .pth file; returns what was done. Raises OSError when the folder cannot be written."""
    path = pth_path()
    if path.is_file() and path.read_text(encoding="utf-8") == PTH_TEXT:
        return f"{path} is in place"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(PTH_TEXT, encoding="utf-8")
    temporary.replace(path)
    return f"wrote {path}"


def remove() -> str:
    """Remove the .pth file; returns what was done."""
    path = pth_path()
    if not path.exists():
        return f"{path} is not there"
    path.unlink()
    return f"removed {path}"
