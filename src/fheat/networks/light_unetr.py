"""Light-UNETR, the network with which FHEAT-Seg is compared, 1,351,896 parameters.

Source of the shapes: CUHK-AIM-Group/Light-UNETR (MIT). Deliberate differences: any patch size; attention on its own
token grid; tokens of the bottleneck stay in place unless `scramble=True`, which reproduces the released reordering.
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fheat.networks.light_u import DEPTHS, WIDTHS, LightU
from fheat.nn.light_attention import LightAttentionBlock, LightAttentionStage

HEADS = (1, 2, 4, 4)
"""Number of attention heads on each level."""
STRIDES = (4, 2, 2, 1)
"""Sampling stride of the attention on each level."""


class LightUNETR(LightU):
    """The U-shaped network of FHEAT-Seg with Light-UNETR's attention stages.

    Its stages have no norm, so that only the learning rate bounds what the blocks add up to: with the usual 0.01
    activations grow until products of them overflow, see docs/evidence/networks.md.

    Args:
        dropout: dropout probability at the bottleneck.
        scramble: whether to read the tokens of the bottleneck back in the order of the released code.
    """

    learning_rate = 0.001
    block_type: ClassVar[type[nn.Module]] = LightAttentionBlock
    """The class of the blocks of the stages."""

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        dropout: float = 0.3,
        scramble: bool = False,
    ) -> None:
        def stage(site: str, level: int) -> nn.Module:
            return LightAttentionStage(WIDTHS[level], DEPTHS[level], STRIDES[level], HEADS[level], self.block_type)

        super().__init__(in_channels, out_channels, patch_size, stage, dropout=dropout, scramble=scramble)
