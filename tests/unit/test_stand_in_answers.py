"""Names of kernel packages that say what they are: weight types, and functions that are kept in tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sglang_guards.build import scalar_types

_USE = """
from sglang_guards.build import stand_ins
stand_ins.install(known=stand_ins.known_values(132))
from sgl_kernel.scalar_type import ScalarType, scalar_types
assert scalar_types.uint4 == scalar_types.uint4 and scalar_types.uint4 != scalar_types.uint4b8
assert scalar_types.uint4 in {scalar_types.uint4} and isinstance(scalar_types.uint4, ScalarType)
from flashinfer.gemm import gemm_base
assert gemm_base._cute_dsl_gemm_mxfp8_runner not in set()
try:
    gemm_base.another in set([1])
except stand_ins.CannotTell:
    print("asked")
"""


def test_their_names_answer_and_nothing_else_does() -> None:
    done = subprocess.run([sys.executable, "-c", _USE], capture_output=True, text=True, check=False)
    assert done.stdout == "asked\n", done.stderr


@pytest.mark.parametrize(
    ("name", "bits", "bias", "integer"),
    [
        ("uint4", 4, 0, True),
        ("uint4b8", 4, 8, True),
        ("uint8b128", 8, 128, True),
        ("float8_e4m3fn", 8, 0, False),
        ("float4_e2m1f", 4, 0, False),
    ],
)
def test_weight_types(name: str, bits: int, bias: int, integer: bool) -> None:
    made = getattr(scalar_types.Names(), name)
    assert (made.size_bits, made.bias, made.is_integer()) == (bits, bias, integer)
    assert made.has_bias() is (bias != 0)


def test_a_name_that_says_nothing_has_no_answer() -> None:
    with pytest.raises(AttributeError):
        _ = scalar_types.Names().something
