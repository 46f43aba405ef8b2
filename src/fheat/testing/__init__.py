"""Invariants as assertions: call them on your own gates, also inside your own test-suite.

>>> from fheat import FractionalHeat
>>> assert_identity_at_zero(FractionalHeat(dims=2, initial_strength=0.0), (1, 2, 8, 8))
"""

from fheat.testing.invariants import assert_contraction as assert_contraction
from fheat.testing.invariants import assert_identity_at_zero as assert_identity_at_zero
from fheat.testing.invariants import assert_orthonormal as assert_orthonormal
from fheat.testing.invariants import assert_retirement_is_exact as assert_retirement_is_exact

__all__ = [
    "assert_contraction",
    "assert_identity_at_zero",
    "assert_orthonormal",
    "assert_retirement_is_exact",
]
