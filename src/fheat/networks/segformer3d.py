"""SegFormer3D, a hierarchical transformer with a decoder of linear layers, 4,492,066 parameters.

Facts: Perera, Navard, Yilmaz, *SegFormer3D* (2024), OSUPCVLab/SegFormer3D. Deliberate difference: any grid, where the
released code needs a cube.
"""

from collections.abc import Sequence

from torch import nn

from fheat.networks.segformer import DECODER_WIDTH, DEPTH, WIDTHS, SegFormer
from fheat.nn.segformer import Projection, ReducedAttention

HEADS = (1, 2, 5, 8)
"""Number of attention heads on each level; each has 32 channels."""
REDUCTIONS = (4, 2, 1, 1)
"""How much coarser the grid of keys and values is on each level."""


class SegFormer3D(SegFormer):
    """`SegFormer` with attention. Its attention map is mean_c |features_c| of the features before the head."""

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
    ) -> None:
        def mixers(level: int) -> list[nn.Module]:
            return [ReducedAttention(WIDTHS[level], HEADS[level], REDUCTIONS[level]) for _ in range(DEPTH)]

        def decoder(site: str, channels: int) -> nn.Module:
            return Projection(channels, DECODER_WIDTH)

        super().__init__(in_channels, out_channels, patch_size, mixers, decoder)
