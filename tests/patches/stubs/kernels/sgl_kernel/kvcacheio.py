"""See sgl_kernel/__init__.py."""

from __future__ import annotations

from sgl_kernel import __getattr__ as __getattr__
