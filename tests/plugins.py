"""Public SGLang plugins of others that the tests run beside: one dated wheel each, fetched by `tools/trees.py`.

They are unpacked beside the releases and put on `sys.path`, never installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.preflight.releases import trees_root

#: Wheel -> the package that it must hold.
PLUGINS = {
    "eagle-harness==0.1.3": "eagle_harness",
    "kern-llm==0.3.1": "kern_sglang",
    "lifeboatcache==0.1.11": "lifeboat_cache",
    "sglang-radeon-rdna3==0.2.0": "sglang_radeon_rdna3",
    "sglang-restomod==0.0.0a0": "sglang_restomod",
    "vtext-editor==1.0.4": "voicing_runtime",
}


def plugins_root() -> Path:
    return trees_root() / "plugins"


def unpacked(name: str) -> Path:
    """The folder of a plugin's wheel; skips the test where it was not fetched."""
    wheel = next(wheel for wheel in PLUGINS if wheel.startswith(f"{name}=="))
    folder = plugins_root() / wheel
    if not (folder / PLUGINS[wheel]).is_dir():
        pytest.skip(f"{wheel} is not unpacked in {plugins_root()}; run: python tools/trees.py --plugins")
    return folder
