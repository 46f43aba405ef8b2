"""FHEAT-Seg: the paper's small network, 974,632 parameters."""

from collections.abc import Sequence

from torch import nn

from fheat.networks.base import Alpha, Gates, build_gates
from fheat.networks.light_u import DEPTHS, SITES, WIDTHS, LightU
from fheat.nn.blocks import FHEATStage
from fheat.nn.fheat import Mixer


class FHEATSeg(LightU):
    """U of light blocks whose eight stages each own a fractional heat gate; dec1 is the paper's Block_Final.

    Args:
        mixer: `kan` (KAN3D) or `gelu`, the equal-capacity control.
        kan_ratio: inner width of the mixer over its outer width.
        gates: which gates may learn, see `fheat.networks.base.build_gates`.
        alpha: `bounded`, `softplus`, `fixed`, or a number.
        dropout: at the bottom.

    Shapes: (N, in, X, Y, Z) -> (N, out, X, Y, Z), any grid of at least 32 per axis.
    Identity case: closed gates leave exactly the network without transforms, see `fheat.retire`.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        mixer: Mixer = "kan",
        kan_ratio: int = 1,
        gates: Gates = "learnable",
        alpha: Alpha = "bounded",
        dropout: float = 0.3,
    ) -> None:
        gate_of = build_gates(SITES, gates, alpha)

        def stage(site: str, level: int) -> nn.Module:
            return FHEATStage(WIDTHS[level], DEPTHS[level], gate_of[site], kind=mixer, ratio=kan_ratio)

        super().__init__(in_channels, out_channels, patch_size, stage, dropout=dropout)
