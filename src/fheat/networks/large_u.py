"""The large U: full-resolution stem, two convolution levels, two mixing levels and a mixing bottom, skips added.

FHEAT-Seg-L and Light-UNETR-L differ only in what a mixing stage is made of.
"""

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.nn.conv_blocks import ConvBlock, ConvDown, ConvUp
from fheat.nn.resample import crop_to, pad_to_even

WIDTHS: Final = (32, 60, 96, 150, 198)
DEPTH: Final = 2
SITES: Final = ("enc3", "enc4", "bottom", "dec4", "dec3")
LEVEL: Final = {"enc3": 2, "enc4": 3, "bottom": 4, "dec4": 3, "dec3": 2}


class LargeU(SegmentationNetwork):
    """U-shaped network of five levels; `stage(site, channels)` builds the mixing stages named in `SITES`.

    Odd grids are padded to even before every stage, the bottom included, and cropped on the way back.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        patch_size: Sequence[int],
        stage: Callable[[str, int], nn.Module],
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        self.stem = nn.Conv3d(in_channels, WIDTHS[0], 1)
        for level in (1, 2):
            self.add_module(f"enc{level}", _conv_stage(WIDTHS[level - 1]))
            self.add_module(f"dec{level}", _conv_stage(WIDTHS[level - 1]))
        for site in SITES:
            self.add_module(site, stage(site, WIDTHS[LEVEL[site]]))
        for level in (1, 2, 3, 4):
            self.add_module(f"down{level}", ConvDown(WIDTHS[level - 1], WIDTHS[level]))
            self.add_module(f"up{level}", ConvUp(WIDTHS[level], WIDTHS[level - 1]))
        self.head = nn.Conv3d(WIDTHS[0], out_channels, 1)

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the attention of the last mixing stage (dec3), and the 32 channels that enter the head."""
        self._check_input(x)
        x = self.stem(x)
        skips: list[Tensor] = []
        grids: list[Sequence[int]] = []
        for level in (1, 2, 3, 4):
            grids.append(x.shape[2:])
            x = self.get_submodule(f"enc{level}")(pad_to_even(x))
            skips.append(x)
            x = self.get_submodule(f"down{level}")(x)
        x = crop_to(self.get_submodule("bottom")(pad_to_even(x)), x.shape[2:])
        attention = x
        for level in (4, 3, 2, 1):
            x = self.get_submodule(f"up{level}")(x) + skips.pop()
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
