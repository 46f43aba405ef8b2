"""FHEAT, the operator around the fractional heat gate, and the two channel mixers: KAN3D and its GELU control."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, Pointwise3d
from fheat.nn.layers import one_group
from fheat.ops.rational import Rational


class FHEAT(nn.Module):
    """Depthwise convolution, global mixing by a shared heat gate T, and a pointwise gate SiLU(g).

        [v, g] = W_p(DWConv3(x)),    y = W_out( SiLU(g) * GN(T(v)) )

    W_p: C -> 2C, W_out: C -> C, all with bias, GN has one group. The gate T is an argument of `forward` and not a
    submodule, because the stage owns it and shares it between its blocks.

    Shapes: (N, C, X, Y, Z) -> the same. Identity case: with a closed gate T(v) is v, bit for bit.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv3d(channels)
        self.project = Pointwise3d(channels, 2 * channels)
        self.norm = one_group(channels)
        self.out = Pointwise3d(channels, channels)

    def forward(self, x: Tensor, gate: nn.Module) -> Tensor:
        """Mix `x` through the stage's gate."""
        value, pointwise = self.project(self.depthwise(x)).chunk(2, dim=1)
        mixed: Tensor = self.out(F.silu(pointwise) * self.norm(gate(value)))
        return mixed


class KAN3D(nn.Sequential):
    """GN -> 1x1x1 (C -> rC) -> rational -> 1x1x1 (rC -> C); before training the rational activation is GELU.

    Shapes: (N, C, X, Y, Z) -> the same.
    """

    def __init__(self, channels: int, ratio: int = 1) -> None:
        hidden = _hidden(channels, ratio)
        super().__init__(
            one_group(channels),
            Pointwise3d(channels, hidden),
            Rational(hidden),
            Pointwise3d(hidden, channels),
        )


class GELUMixer(nn.Sequential):
    """1x1x1 (C -> rC) -> GELU -> 1x1x1 (rC -> C): the control without a learned activation and without a norm."""

    def __init__(self, channels: int, ratio: int = 1) -> None:
        hidden = _hidden(channels, ratio)
        super().__init__(Pointwise3d(channels, hidden), nn.GELU(), Pointwise3d(hidden, channels))


Mixer = Literal["kan", "gelu"]
_MIXERS: dict[str, type[KAN3D | GELUMixer]] = {"kan": KAN3D, "gelu": GELUMixer}


def mixer(kind: Mixer, channels: int, ratio: int) -> nn.Module:
    """Build the mixer of this kind."""
    if kind not in _MIXERS:
        raise ValueError(f"mixer={kind!r} is unknown: use one of {', '.join(_MIXERS)}")
    return _MIXERS[kind](channels, ratio)


def _hidden(channels: int, ratio: int) -> int:
    if not isinstance(ratio, int) or ratio < 1:
        raise ValueError(f"ratio={ratio!r} is not a width: use a whole number of at least 1")
    return ratio * channels
