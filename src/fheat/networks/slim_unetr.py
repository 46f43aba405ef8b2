"""Slim-UNETR, from which Light-UNETR was made, 1,775,742 parameters.

Facts: Pang et al., *Slim UNETR* (2024), aigzhusmart/Slim-UNETR (MIT); written here from its shapes. Deliberate
differences: any patch size, with odd grids padded and positions resized, where the released code needs multiples of 32;
tokens of the bottleneck stay in place unless `scramble=True`, which reproduces the released reordering.
"""

from typing import cast

from torch import Tensor, nn

from fheat.networks.light_unetr import LightUNETR
from fheat.nn.convolutions import (
    DepthwiseConv3d,
    DepthwiseTransposed3d,
    PatchConv3d,
    PatchTransposed3d,
    Pointwise3d,
)
from fheat.nn.layers import crop_to, one_group, pad_to_multiple
from fheat.nn.light_attention import attend

EXPANSION = 4
"""How many times more channels the mixers have inside."""


class SlimStem(nn.Sequential):
    """Patches of 4x4x4 voxels become one voxel, then GN. A grid that 4 does not divide is padded.

    Shapes: (N, in, X, Y, Z) -> (N, C, ceil(X/4), ceil(Y/4), ceil(Z/4)).
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(PatchConv3d(in_channels, channels, 4), one_group(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        return cast(Tensor, super().forward(pad_to_multiple(x, 4)))  # type: ignore[no-untyped-call]


class SlimDown(nn.Sequential):
    """2x2x2 stride-2 convolution and GN: halves an even grid."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(PatchConv3d(in_channels, out_channels, 2), one_group(out_channels))


class SlimUp(nn.Sequential):
    """2x2x2 stride-2 transposed convolution and GN: doubles the grid."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(PatchTransposed3d(in_channels, out_channels, 2, channels_last=True), one_group(out_channels))


class SparseAttention(nn.Module):
    """`attend` on a grid sampled with stride r, then a depthwise transposed convolution (kernel = stride = r), GN and
    1x1x1.

    Shapes: (N, C, X, Y, Z) -> the same, and the mean attention that each token receives, (N, 1, X/r, Y/r, Z/r); None
    where no map is wanted.
    """

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        self.stride, self.heads = stride, heads
        self.qkv = Pointwise3d(channels, 3 * channels, bias=False)
        self.recover = nn.Sequential(
            DepthwiseTransposed3d(channels, stride), one_group(channels), Pointwise3d(channels, channels, bias=False)
        )

    def forward(self, x: Tensor, want_map: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the mixed features and the attention map."""
        sampled = x[:, :, :: self.stride, :: self.stride, :: self.stride]
        mixed, attention = attend(sampled, self.qkv, self.heads, want_map)
        return crop_to(self.recover(mixed), x.shape[2:]), attention


class SlimBlock(nn.Module):
    """x + DWConv3(x), x + local(x), x + mixer(x), x + DWConv3(x), x + attention(x), x + mixer(x).

    Local is BN, 1x1x1, DWConv3, BN, 1x1x1; a mixer is 1x1x1 to four times the channels, GELU, 1x1x1. Only the
    transposed convolution of the attention has a bias.
    """

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        self.before_local = DepthwiseConv3d(channels, bias=False)
        self.local = nn.Sequential(
            nn.BatchNorm3d(channels),
            Pointwise3d(channels, channels, bias=False),
            DepthwiseConv3d(channels, bias=False),
            nn.BatchNorm3d(channels),
            Pointwise3d(channels, channels, bias=False),
        )
        self.local_mixer = _mixer(channels)
        self.before_attention = DepthwiseConv3d(channels, bias=False)
        self.attention = SparseAttention(channels, stride, heads)
        self.mixer = _mixer(channels)

    def forward(self, x: Tensor, want_map: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the features and, if it is wanted, the attention map."""
        for layer in (self.before_local, self.local, self.local_mixer, self.before_attention):
            x = x + layer(x)
        mixed, attention = self.attention(x, want_map)
        x = x + mixed
        return x + self.mixer(x), attention


def _mixer(channels: int) -> nn.Sequential:
    wide = EXPANSION * channels
    return nn.Sequential(Pointwise3d(channels, wide, bias=False), nn.GELU(), Pointwise3d(wide, channels, bias=False))


class SlimHead(nn.Sequential):
    """Transposed convolution with kernel = stride to the grid of the input, then GN over all logits."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(PatchTransposed3d(in_channels, out_channels, stride), nn.GroupNorm(1, out_channels))


class SlimUNETR(LightUNETR):
    """Light-UNETR's skeleton with plain layers between the stages, Slim-UNETR's blocks, and a GN over all logits behind
    the head. Its attention map is that of the last block.

    As in Light-UNETR, no norm stands between the blocks, so it trains with the same rate, which is the published one.
    The arguments are those of `LightUNETR`.
    """

    stem_type, down_type, up_type, head_type, block_type = SlimStem, SlimDown, SlimUp, SlimHead, SlimBlock
