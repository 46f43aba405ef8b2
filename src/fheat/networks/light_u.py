"""The small U-shaped network: a stem to a quarter of the grid, four stages down and four up, skips added.

FHEAT-Seg and Light-UNETR differ only in their stages; Slim-UNETR has other layers between them as well.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.nn.convolutions import PatchTransposed3d
from fheat.nn.layers import Down, Stem, Up, crop_to, pad_to_even

WIDTHS: Final = (24, 48, 60, 96)
"""Number of channels of each level."""
DEPTHS: Final = (1, 2, 3, 2)
"""Number of light blocks of a stage on each level."""
SITES: Final = ("enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2", "dec1")
"""Names of the stages, in the order in which they run."""


class LightU(SegmentationNetwork):
    """U-shaped network with the eight stages in `SITES`; `stage(site, level)` builds each of them, level 0 to 3.

    A stage maps (N, C, X, Y, Z) to the same shape and has `attend`, which returns an attention map as well. An odd grid
    is padded to even lengths before a stage whose output is halved, and cropped on the way back. At the bottleneck a
    learned position embedding (one vector per voxel of the patch's bottleneck grid, resized for other grids) is added,
    then dropout follows.

    `scramble` reads the tokens of the bottleneck back in the wrong order, as the released Light-UNETR does.
    """

    stem_type: ClassVar[type[nn.Module]] = Stem
    down_type: ClassVar[type[nn.Module]] = Down
    up_type: ClassVar[type[nn.Module]] = Up
    head_type: ClassVar[type[nn.Module]] = PatchTransposed3d
    """The three classes whose layers change the grid; each is built from its numbers of channels."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        patch_size: Sequence[int],
        stage: Callable[[str, int], nn.Module],
        *,
        dropout: float = 0.3,
        scramble: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        self.scramble = scramble
        self.stem = self.stem_type(in_channels, WIDTHS[0])
        for site in SITES:
            self.add_module(site, stage(site, int(site[-1]) - 1))
        for level in (1, 2, 3):
            self.add_module(f"down{level}", self.down_type(WIDTHS[level - 1], WIDTHS[level]))
            self.add_module(f"up{level}", self.up_type(WIDTHS[level], WIDTHS[level - 1]))
        self.position = nn.Parameter(torch.zeros(1, WIDTHS[3], *bottom_grid(self.patch_size)))
        self.dropout = nn.Dropout(dropout)
        self.head = self.head_type(WIDTHS[0], out_channels, 4)

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the attention map of the final stage, and the 24 channels that enter the head."""
        self._check_input(x)
        size = x.shape[2:]
        x = self.stem(x)
        skips: list[Tensor] = []
        grids: list[Sequence[int]] = []
        for level in (1, 2, 3):
            grids.append(x.shape[2:])
            x = self.get_submodule(f"enc{level}")(pad_to_even(x))
            skips.append(x)
            x = self.get_submodule(f"down{level}")(x)
        x = self._bottom(self.get_submodule("enc4")(x))
        x = self.get_submodule("dec4")(x)
        for level in (3, 2):
            x = self._up(level, x, skips.pop())
            x = crop_to(self.get_submodule(f"dec{level}")(x), grids.pop())
        x = self._up(1, x, skips.pop())
        x, attention = self.get_submodule("dec1").attend(x)  # type: ignore[operator]
        grid = grids.pop()
        x = crop_to(x, grid)
        return Features(crop_to(self.head(x), size), crop_to(attention, grid), x)

    def _up(self, level: int, x: Tensor, skip: Tensor) -> Tensor:
        up = self.get_submodule(f"up{level}")
        return up.added_to(skip, x) if isinstance(up, Up) else up(x) + skip

    def _bottom(self, x: Tensor) -> Tensor:
        position: Tensor = self.position
        any_grid = any(isinstance(length, torch.SymInt) for length in x.shape[2:])  # of a graph being exported
        if any_grid or position.shape[2:] != x.shape[2:]:
            position = F.interpolate(position, size=x.shape[2:], mode="trilinear")
        x = self.dropout(x + position)
        return x.flatten(2).transpose(1, 2).reshape(x.shape) if self.scramble else x


def bottom_grid(patch_size: Sequence[int]) -> tuple[int, ...]:
    """Return the grid of the bottleneck of a patch: 112x112x80 -> 4x4x3."""
    return tuple(-(-length // 32) for length in patch_size)


def stage_grid(patch_size: Sequence[int], level: int) -> tuple[int, ...]:
    """Return the grid of the stages of a level, 0 to 3, for a patch: 112x112x80 -> 28x28x20, ..., 8x8x6, 4x4x3."""
    grid = [-(-length // 4) for length in patch_size]
    for _ in range(level):
        grid = [-(-length // 2) for length in grid]
    return tuple(length + length % 2 if level < 3 else length for length in grid)
