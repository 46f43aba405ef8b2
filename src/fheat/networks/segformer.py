"""The skeleton of SegFormer3D: four encoder stages of blocks, and a decoder that projects, resizes and fuses them.

SegFormer3D, FHEAT-SegFormer3D and AMBER-AFNO differ in what mixes voxels and in the stages of the decoder.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.nn.convolutions import Pointwise3d
from fheat.nn.layers import crop_to, resized
from fheat.nn.segformer import PatchEmbedding, SegFormerStage
from fheat.ops import kernels
from fheat.ops.dct import autocasts
from fheat.ops.heat import FractionalHeat

WIDTHS: Final = (32, 64, 160, 256)
"""Number of channels of each level."""
DEPTH: Final = 2
"""Number of blocks of each stage."""
DECODER_WIDTH: Final = 256
"""Number of channels of every stage of the decoder."""
SITES: Final = ("enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2", "dec1")
"""Names of the stages, in the order in which they run."""
_KERNELS, _STRIDES = (7, 3, 3, 3), (4, 2, 2, 2)


class SegFormer(SegmentationNetwork):
    """Encoder stages enc1 to enc4 on 1/4, 1/8, 1/16 and 1/32 of the grid, decoder stages dec4 to dec1, fusion, head.

    The outputs of the decoder stages are resized to a quarter of the grid, concatenated and fused by a 1x1x1
    convolution with batch norm and ReLU; the head is a 1x1x1 convolution whose logits are enlarged four times.

    Args:
        in_channels, out_channels, patch_size: as in every network.
        mixers: `mixers(level)` builds the mixer of each block of a stage, level 0 to 3.
        decoder: `decoder(site, channels)` builds a stage of the decoder.
        gates: gate of each encoder stage whose blocks share one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        patch_size: Sequence[int],
        mixers: Callable[[int], Sequence[nn.Module]],
        decoder: Callable[[str, int], nn.Module],
        gates: dict[str, FractionalHeat] | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        before = in_channels
        for level, width in enumerate(WIDTHS):
            site = SITES[level]
            embedding = PatchEmbedding(before, width, _KERNELS[level], _STRIDES[level])
            self.add_module(site, SegFormerStage(embedding, mixers(level), width, (gates or {}).get(site)))
            before = width
        for site in SITES[4:]:
            self.add_module(site, decoder(site, WIDTHS[int(site[-1]) - 1]))
        fuse = Pointwise3d(len(WIDTHS) * DECODER_WIDTH, DECODER_WIDTH, bias=False)
        self.fuse = nn.Sequential(fuse, nn.BatchNorm3d(DECODER_WIDTH), nn.ReLU())
        self.head = Pointwise3d(DECODER_WIDTH, out_channels)

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the attention map, and the 256 channels that enter the head, on a quarter of the grid."""
        self._check_input(x)
        size = x.shape[2:]
        maps = []
        for site in SITES[:4]:
            x = self.get_submodule(site)(x)
            maps.append(x)
        grid = maps[0].shape[2:]
        decoded = [resized(self.get_submodule(f"dec{level}")(maps[level - 1]), grid) for level in (4, 3, 2)]
        last, attention = self._attend(maps[0])
        fused = self.fuse(torch.cat([*decoded, last], dim=1))
        logits = self.head(fused)
        logits = _enlarged(logits.float() if autocasts(logits) else logits)
        if attention is None:
            attention = fused.detach().abs().mean(dim=1, keepdim=True)
        return Features(crop_to(logits, size), attention, fused)

    def _attend(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the features of dec1 and its attention map; None where a stage without a gate has none."""
        return self.get_submodule("dec1")(x), None


def _enlarged(x: Tensor) -> Tensor:
    """Return maps on a grid that is four times as fine; a factor, unlike a grid, can be exported for any size."""
    if kernels.usable(x):
        return resized(x, [4 * length for length in x.shape[2:]])
    return F.interpolate(x, scale_factor=4.0, mode="trilinear")
