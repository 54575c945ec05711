"""SGLang's test helpers import `datasets` at module level; no test of the series loads a data set."""

from __future__ import annotations

load_dataset = None
