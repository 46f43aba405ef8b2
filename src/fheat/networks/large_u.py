"""The large U-shaped network: a stem on the full grid, two levels of convolution blocks, two levels of mixing stages
and a mixing bottleneck, skips added.

FHEAT-Seg-L and Light-UNETR-L differ only in their mixing stages.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.nn.convolutions import DepthwiseConv3d, DoublingDepthwise3d, DoublingPointwise3d, Pointwise3d, pointwise
from fheat.nn.fused_body import body_added_to_skip, body_before, body_beside, fusable, residual_body
from fheat.nn.layers import EachChannelNorm, crop_to, pad_to_even, untouched

WIDTHS: Final = (32, 60, 96, 150, 198)
"""Number of channels of each level."""
DEPTH: Final = 2
"""Number of blocks of each stage."""
SITES: Final = ("enc3", "enc4", "bottom", "dec4", "dec3")
"""Names of the mixing stages, in the order in which they run."""
LEVEL: Final = {"enc3": 2, "enc4": 3, "bottom": 4, "dec4": 3, "dec3": 2}
"""Level of each mixing stage, counted from 0."""


class ConvBlock(nn.Module):
    """x + body(x): depthwise 3x3x3, one norm group per channel, 1x1x1 widening, GELU, 1x1x1 back."""

    def __init__(self, channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = DepthwiseConv3d(channels)
        self.body = _body(depthwise, channels, channels, expansion)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (N, C, X, Y, Z)."""
        if fusable(self.body, x):
            return residual_body(self.body, x)
        out: Tensor = x + self.body(x)
        return out


class ConvDown(nn.Module):
    """`ConvBlock` with stride 2 in its depthwise convolution, plus a strided 1x1x1 shortcut: halves an even grid."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = DepthwiseConv3d(in_channels, stride=2)
        self.body = _body(depthwise, in_channels, out_channels, expansion)
        self.shortcut = Pointwise3d(in_channels, out_channels, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C_in, X, Y, Z) to (N, C_out, X/2, Y/2, Z/2)."""
        if not fusable(self.body, x):
            out: Tensor = self.body(x) + self.shortcut(x)
            return out
        if self._halves():
            return body_before(self.body, x, self.shortcut)[0]
        return body_beside(self.body, x, self.shortcut(x))

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return down(x), and x itself for a skip. By kernels, what flows back is added up in one pass."""
        if fusable(self.body, x) and untouched(self, ConvDown) and self._halves():
            return body_before(self.body, x, self.shortcut)
        return cast(Tensor, self(x)), x

    def _halves(self) -> bool:
        """Return whether body and shortcut begin as built, and so give every second voxel."""
        first = self.body[0]
        begins = untouched(first, DepthwiseConv3d) and untouched(self.shortcut, Pointwise3d)
        return begins and first.stride == self.shortcut.stride == (2, 2, 2)


class ConvUp(nn.Module):
    """The transposed counterpart of `ConvDown`; both paths give 2n - 1 voxels and are padded by one plane in front."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = DoublingDepthwise3d(in_channels)
        self.body = _body(depthwise, in_channels, out_channels, expansion)
        self.shortcut = DoublingPointwise3d(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C_in, X, Y, Z) to (N, C_out, 2X, 2Y, 2Z)."""
        front = (1, 0, 1, 0, 1, 0)
        if fusable(self.body, x):
            return F.pad(body_beside(self.body, x, self.shortcut(x)), front)
        return F.pad(self.body(x), front) + F.pad(self.shortcut(x), front)

    def added_to(self, skip: Tensor, x: Tensor) -> Tensor:
        """Return up(x) + skip; skip is (N, C_out, 2X, 2Y, 2Z). By kernels, padding and sum take no pass."""
        if fusable(self.body, x) and untouched(self, ConvUp) and self._doubles():
            doubled = len(x), self.shortcut.out_channels, *(2 * length for length in x.shape[2:])
            if skip.shape == doubled and self.shortcut.bias is not None:
                coarse = pointwise(x, self.shortcut.weight.transpose(0, 1))
                return body_added_to_skip(self.body, x, coarse, self.shortcut.bias, skip)
        return cast(Tensor, self(x)) + skip

    def _doubles(self) -> bool:
        """Return whether body and shortcut begin as built, and so give 2n - 1 voxels."""
        return untouched(self.body[0], DoublingDepthwise3d) and untouched(self.shortcut, DoublingPointwise3d)


class LargeU(SegmentationNetwork):
    """U-shaped network of five levels; `stage(site, channels)` builds the mixing stages in `SITES`.

    An odd grid is padded to even lengths before each stage, the bottleneck included, and cropped on the way back.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        patch_size: Sequence[int],
        stage: Callable[[str, int], nn.Module],
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        self.stem = Pointwise3d(in_channels, WIDTHS[0])
        for level in (1, 2):
            self.add_module(f"enc{level}", _conv_stage(WIDTHS[level - 1]))
            self.add_module(f"dec{level}", _conv_stage(WIDTHS[level - 1]))
        for site in SITES:
            self.add_module(site, stage(site, WIDTHS[LEVEL[site]]))
        for level in (1, 2, 3, 4):
            self.add_module(f"down{level}", ConvDown(WIDTHS[level - 1], WIDTHS[level]))
            self.add_module(f"up{level}", ConvUp(WIDTHS[level], WIDTHS[level - 1]))
        self.head = Pointwise3d(WIDTHS[0], out_channels)

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the attention map of the last mixing stage (dec3), and the 32 channels that enter the head."""
        self._check_input(x)
        x = self.stem(x)
        skips: list[Tensor] = []
        grids: list[Sequence[int]] = []
        for level in (1, 2, 3, 4):
            grids.append(x.shape[2:])
            x = self.get_submodule(f"enc{level}")(pad_to_even(x))
            down = self.get_submodule(f"down{level}")
            x, skip = down.beside(x) if isinstance(down, ConvDown) else (down(x), x)
            skips.append(skip)
        x = crop_to(self.get_submodule("bottom")(pad_to_even(x)), x.shape[2:])
        attention = x
        for level in (4, 3, 2, 1):
            up, skip = self.get_submodule(f"up{level}"), skips.pop()
            x = up.added_to(skip, x) if isinstance(up, ConvUp) else up(x) + skip
            grid = grids.pop()
            if level == 3:
                x, attention = self.get_submodule("dec3").attend(x)  # type: ignore[operator]
                attention = crop_to(attention, grid)
            else:
                x = self.get_submodule(f"dec{level}")(x)
            x = crop_to(x, grid)
        return Features(self.head(x), attention, x)


def _conv_stage(channels: int) -> nn.Sequential:
    return nn.Sequential(*(ConvBlock(channels) for _ in range(DEPTH)))


def _body(depthwise: nn.Module, channels: int, out_channels: int, expansion: int) -> nn.Sequential:
    return nn.Sequential(
        depthwise,
        EachChannelNorm(channels),
        Pointwise3d(channels, expansion * channels),
        nn.GELU(),
        Pointwise3d(expansion * channels, out_channels),
    )
