"""The Tikhonov resolvent: a gate with the other multiplier of Remark 4, which shares the exact, absorbing identity."""

import torch
from torch import Tensor

from fheat.ops.heat import FractionalHeat


class TikhonovResolvent(FractionalHeat):
    r"""The solution w of the Tikhonov problem min |w - v|^2 + tau |(-\Delta)^{alpha/4} w|^2, as a gate.

    .. math::  R(v) = C^{-1} [ \frac{1}{1 + \tau r^\alpha} \cdot C(v) ],  \qquad  \tau = D^\alpha

    It agrees with the heat operator to first order in tau r^alpha and decays far more slowly beyond: at
    tau r^alpha = 5 it keeps 0.17 of a mode where heat keeps 0.007. Times of successive resolvents do not add up, so
    they cannot be merged.

    Shapes, parameters and arguments are those of `FractionalHeat`. Identity case: with delta <= 0, tau = 0 and the
    output is the input, bit for bit; both gradients are then exactly zero, so training never opens the gate again.

    >>> gate = TikhonovResolvent(dims=1, alpha=2.0, strength=1.0)
    >>> round(float(gate.multiplier([2])[1]), 4)  # 1 / (1 + (pi / 2)^2)
    0.2884
    """

    def tau_slope(self, multiplier: Tensor) -> Tensor:
        """Return -(dm / dtau) / r^alpha = m^2."""
        return multiplier.square()

    def _decay(self, exponent: Tensor) -> Tensor:
        return torch.sigmoid(-exponent)
