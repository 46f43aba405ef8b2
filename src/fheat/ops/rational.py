"""Grouped rational activation: a learnable non-linearity of 38 scalars."""

from typing import Final, Literal

import torch
from torch import Tensor, nn

from fheat.ops.dct import compute_dtype

INITIAL: Final[dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "gelu": (
        (0.0, 0.5, 0.414131037, 0.122044095, 0.0151644299, 0.000672907435),
        (0.0, 0.24408819, 0.0, 0.00134581487),
    ),
    "silu": (
        (0.0, 0.5, 0.249118107, 0.0507193825, 0.00490296468, 0.000185763731),
        (0.0, 0.101438765, 0.0, 0.000371527462),
    ),
    "identity": ((0.0, 1.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
}
"""Numerator a0..a5 and denominator b1..b4 before training. Those of GELU and SiLU are minimax fits on [-8, 8], with
largest errors 4.0e-3 and 5.7e-4, computed and printed by `make fit`; a test fits them again."""


def rational(x: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return a polynomial of degree 5 over `1 + |polynomial of degree 4 without constant|`, by Horner's rule.

        F(x) = (a0 + a1 x + ... + a5 x^5) / (1 + |b1 x + b2 x^2 + b3 x^3 + b4 x^4|)

    Shapes: `x` any; `numerator` (6, ...) and `denominator` (4, ...), whose trailing axes broadcast against `x`.
    The denominator is at least one, so there are no poles. Identity case: a = (0, 1, 0, 0, 0, 0), b = 0.
    """
    above = numerator[5] * x + numerator[4]
    for power in (3, 2, 1, 0):
        above = torch.addcmul(numerator[power], above, x)
    below = denominator[3] * x + denominator[2]
    for power in (1, 0):
        below = torch.addcmul(denominator[power], below, x)
    below = below * x
    # Not `abs`: its gradient at zero is 0, and coefficients that start at zero would never change.
    return above / (1 + torch.where(below < 0, -below, below))


class Rational(nn.Module):
    """Rational activation with one numerator, and one denominator for each of `groups` groups of successive channels.

    See `rational` for the formula. Channel c belongs to group floor(c * groups / channels), so any number of channels
    from `groups` on works. It has 6 + 4 * groups parameters (38 by default). It is computed in float32, also under
    autocast, because x^5 leaves the range of half precision at |x| = 9.

    Shapes: (N, channels, *grid) -> the same. Identity case: `initial="identity"`.
    """

    def __init__(
        self, channels: int, *, groups: int = 8, initial: Literal["gelu", "silu", "identity"] = "gelu"
    ) -> None:
        super().__init__()
        if groups < 1 or channels < groups:
            raise ValueError(f"channels={channels} cannot form groups={groups}: use at most one group per channel")
        if initial not in INITIAL:
            raise ValueError(f"initial={initial!r} is unknown: use one of {', '.join(INITIAL)}")
        above, below = INITIAL[initial]
        self.channels = channels
        self.numerator = nn.Parameter(torch.tensor(above))
        self.denominator = nn.Parameter(torch.tensor(below).repeat(groups, 1))
        group = torch.arange(channels) * groups // channels
        self.register_buffer("group", group, persistent=False)
        self.group: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation of its group to each channel."""
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(f"x has shape {tuple(x.shape)}: this Rational takes (N, {self.channels}, *grid)")
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}: Rational needs a floating tensor, call x.float()")
        dtype = compute_dtype(x)
        below = self.denominator.to(dtype)[self.group].t().reshape(4, self.channels, *[1] * (x.ndim - 2))
        return rational(x.to(dtype), self.numerator.to(dtype), below).to(x.dtype)
