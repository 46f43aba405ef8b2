"""FHEAT-Seg: the paper's small network, 974,632 parameters."""

from collections.abc import Sequence

from torch import nn

from fheat.networks.base import Alpha, Gates, checked_patch_size
from fheat.networks.light_u import DEPTHS, SITES, WIDTHS, LightU, stage_grid
from fheat.networks.operators import Operator, Place, build_operators
from fheat.nn.blocks import FHEATStage
from fheat.nn.fheat import Mixer


class FHEATSeg(LightU):
    """U-shaped network of light blocks with one fractional heat gate per stage, eight in all; dec1 is Block_Final.

    Args:
        mixer: `kan` (KAN3D), or `gelu`, the control of equal capacity.
        kan_ratio: number of channels inside the mixer divided by the number outside.
        gates: which gates learn, see `fheat.networks.base.build_gates`.
        alpha: `bounded`, `softplus`, `fixed`, or a number, see `fheat.FractionalHeat`.
        initial_alpha: order of all gates before training; that of theta = -2 if None.
        dropout: dropout probability at the bottleneck.
        operator: what mixes at the sites: `heat`, the gate, or a control in its place, see `fheat.networks.operators`.
            The parameters of `gfnet` are bound to the patch size.
        l0_weight: price of an open site with the operator `l0`, in units of the loss; 0.0001 if None.
        drop: probability with which the operator `stochastic_depth` skips a site in training; 0.2 if None.

    Shapes: (N, in, X, Y, Z) -> (N, out, X, Y, Z), any grid of at least 32 voxels per axis.
    Identity case: with closed gates the network equals the one without transforms, bit for bit, see `fheat.retire`.
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
        initial_alpha: float | None = None,
        dropout: float = 0.3,
        operator: Operator = "heat",
        l0_weight: float | None = None,
        drop: float | None = None,
    ) -> None:
        patch = checked_patch_size(patch_size)
        levels = {site: int(site[-1]) - 1 for site in SITES}
        operator_of = build_operators(
            {site: Place(WIDTHS[level], stage_grid(patch, level)) for site, level in levels.items()},
            operator,
            gates,
            alpha=alpha,
            initial_alpha=initial_alpha,
            l0_weight=l0_weight,
            drop=drop,
        )

        def stage(site: str, level: int) -> nn.Module:
            return FHEATStage(WIDTHS[level], DEPTHS[level], operator_of[site], kind=mixer, ratio=kan_ratio)

        super().__init__(in_channels, out_channels, patch_size, stage, dropout=dropout)
