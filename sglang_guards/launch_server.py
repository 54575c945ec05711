"""`python -m sglang_guards.launch_server …`: SGLang's launcher with the guard, also where SGLang has no plugins."""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Attach, then run `sglang.launch_server` as if it had been called."""
    from sglang_guards import legacy
    from sglang_guards.hook.import_hooks import when_imported

    when_imported(legacy.SERVER_ARGS, legacy.attach)
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
