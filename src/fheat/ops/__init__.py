"""The mathematics, on tensors only: cosine transform, fractional heat gate, rational activation, sums of losses."""

from fheat.ops.dct import dct as dct
from fheat.ops.dct import idct as idct
from fheat.ops.heat import FractionalHeat as FractionalHeat
from fheat.ops.rational import Rational as Rational
from fheat.ops.rational import rational as rational_function

__all__ = ["FractionalHeat", "Rational", "dct", "idct", "rational_function"]
