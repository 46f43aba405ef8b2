"""FHEAT-Seg-L: the paper's large network, 2,851,196 parameters."""

from collections.abc import Sequence

from torch import nn

from fheat.networks.base import Alpha, Gates, build_gates
from fheat.networks.large_u import DEPTH, SITES, LargeU
from fheat.nn.blocks import FHEATStage
from fheat.nn.fheat import Mixer


class FHEATSegL(LargeU):
    """Large U-shaped network with one fractional heat gate per mixing stage, five in all. Options as in `FHEATSeg`.

    The last gate, which alone learns with `gates="final_only"`, is dec3.
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
    ) -> None:
        gate_of = build_gates(SITES, gates, alpha, initial_alpha)

        def stage(site: str, channels: int) -> nn.Module:
            return FHEATStage(channels, DEPTH, gate_of[site], kind=mixer, ratio=kan_ratio)

        super().__init__(in_channels, out_channels, patch_size, stage)
