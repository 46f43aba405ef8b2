"""UNETR++: stages of paired attention in a U, with full-resolution convolutions at its ends.

Facts: Shaker et al., *UNETR++* (2024), Amshaker/unetr_plus_plus (Apache-2.0); written here from its shapes. Deliberate
differences: those of `fheat.nn.paired_attention`; no heads for deep supervision.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from fheat.networks.base import checked_patch_size
from fheat.networks.padded import PaddedNetwork
from fheat.nn.layers import padded_grid
from fheat.nn.paired_attention import PairedBlock, ResidualBlock

WIDTHS = (32, 64, 128, 256)
"""Number of channels of each level."""
PROJECTED = (64, 64, 64, 32)
"""Number of voxels to which the attention of the encoder projects on each level; the decoder projects to 64."""
FULL_WIDTH = 16
"""Number of channels on the full grid."""
DEPTH = 3
"""Number of blocks of each stage."""
PATCH = 4
"""Number of voxels along each axis that the stem turns into one."""


class UNETRPP(PaddedNetwork):
    """See `PaddedNetwork`; axes are padded to multiples of 32, so 112x112x80 runs as 128x128x96.

    The number of parameters depends on the patch size: positions and projections have a number for each voxel of every
    stage. Other grids work too, with these resized.

    Args:
        dropout: dropout probability of the attention weights.
    """

    multiple = 32

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        dropout: float = 0.15,
    ) -> None:
        body = UNETRPPBody(in_channels, padded_grid(checked_patch_size(patch_size), self.multiple), dropout)
        super().__init__(in_channels, out_channels, patch_size, body, nn.Conv3d(FULL_WIDTH, out_channels, 1))


class UNETRPPBody(nn.Module):
    """Everything but the head. Shapes: (N, in, X, Y, Z) with multiples of 32 -> (N, 16, X, Y, Z)."""

    def __init__(self, in_channels: int, patch: Sequence[int], dropout: float) -> None:
        super().__init__()

        def stage(level: int, projected: int) -> nn.Sequential:
            grid = [length // (PATCH << level) for length in patch]
            return nn.Sequential(*(PairedBlock(WIDTHS[level], grid, projected, dropout) for _ in range(DEPTH)))

        self.full = ResidualBlock(in_channels, FULL_WIDTH, nn.InstanceNorm3d)
        self.down, self.encoder = nn.ModuleList(), nn.ModuleList()
        before, side, groups = in_channels, PATCH, math.gcd(in_channels, WIDTHS[0])
        for level, width in enumerate(WIDTHS):
            shrink = nn.Conv3d(before, width, side, stride=side, bias=False)
            self.down.append(nn.Sequential(shrink, nn.GroupNorm(groups, width)))
            self.encoder.append(stage(level, PROJECTED[level]))
            before, side, groups = width, 2, width
        self.up, self.decoder = nn.ModuleList(), nn.ModuleList()
        for level in (2, 1, 0):
            self.up.append(nn.ConvTranspose3d(WIDTHS[level + 1], WIDTHS[level], 2, stride=2, bias=False))
            self.decoder.append(stage(level, PROJECTED[0]))
        self.up.append(nn.ConvTranspose3d(WIDTHS[0], FULL_WIDTH, PATCH, stride=PATCH, bias=False))
        self.decoder.append(ResidualBlock(FULL_WIDTH, FULL_WIDTH, nn.InstanceNorm3d))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features before the head."""
        skips = [self.full(x)]
        for down, stage in zip(self.down, self.encoder, strict=True):
            x = stage(down(x))
            skips.append(x)
        skips.pop()
        for up, stage in zip(self.up, self.decoder, strict=True):
            x = stage(up(x) + skips.pop())
        return x
