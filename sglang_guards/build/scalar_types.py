"""The names of weight types in `sgl_kernel.scalar_type`, which is plain Python: what they say stands in their names."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Where the kernel package keeps them.
MODULE = "sgl_kernel.scalar_type"
_INTEGER = re.compile(r"(u?)int(\d+)(?:b(\d+))?$")
_FLOAT = re.compile(r"float(\d+)_e(\d+)m(\d+)\w*$")


@dataclass(frozen=True)
class ScalarType:
    """One type; two are equal when their names are."""

    name: str
    size_bits: int
    bias: int = 0
    integer: bool = True
    signed: bool = False

    def is_integer(self) -> bool:
        return self.integer

    def is_floating_point(self) -> bool:
        return not self.integer

    def is_signed(self) -> bool:
        return self.signed

    def has_bias(self) -> bool:
        return self.bias != 0

    def __str__(self) -> str:
        return self.name


class Names:
    """``scalar_types.uint4b8``: every name that says its size."""

    def __getattr__(self, name: str) -> ScalarType:
        if found := _INTEGER.match(name):
            return ScalarType(name, int(found[2]), int(found[3] or 0), signed=not found[1])
        if found := _FLOAT.match(name):
            return ScalarType(name, int(found[1]), integer=False, signed=True)
        raise AttributeError(name)


VALUES = {"ScalarType": ScalarType, "scalar_types": Names()}
