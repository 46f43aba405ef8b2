"""Channel mixers: KAN3D with a learnable activation, and its equal-capacity GELU control."""

from typing import Literal

from torch import nn

from fheat.nn.norm import one_group
from fheat.ops.rational import Rational


class KAN3D(nn.Sequential):
    """GN -> 1x1x1 (C -> rC) -> rational -> 1x1x1 (rC -> C), the rational activation starting as GELU.

    Shapes: (N, C, X, Y, Z) -> the same.
    """

    def __init__(self, channels: int, ratio: int = 1) -> None:
        hidden = _hidden(channels, ratio)
        super().__init__(
            one_group(channels),
            nn.Conv3d(channels, hidden, 1),
            Rational(hidden),
            nn.Conv3d(hidden, channels, 1),
        )


class GELUMixer(nn.Sequential):
    """1x1x1 (C -> rC) -> GELU -> 1x1x1 (rC -> C): the control without learnable activation and inner norm."""

    def __init__(self, channels: int, ratio: int = 1) -> None:
        hidden = _hidden(channels, ratio)
        super().__init__(nn.Conv3d(channels, hidden, 1), nn.GELU(), nn.Conv3d(hidden, channels, 1))


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
