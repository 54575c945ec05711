"""Characters that no output may show as they are."""

from __future__ import annotations

import re

#: What a terminal would act on, and marks that reorder text; line breaks and tabs are text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
