"""``python -m sglang_guards``: the same as the ``sglang-guards`` command."""

import sys

from sglang_guards.cli.main import main

sys.exit(main())
