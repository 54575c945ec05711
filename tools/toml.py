"""A TOML parser: tomllib, on Python 3.10 the same one that pip carries."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

__all__ = ["tomllib"]
