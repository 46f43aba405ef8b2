"""Light-UNETR-L, the large Light-UNETR, 3,934,362 parameters. Source of the shapes and licence as in `light_unetr`.

Deliberate differences: any patch size; it returns an attention map as well, which the released network does not.
"""

from collections.abc import Sequence

from torch import nn

from fheat.networks.large_u import DEPTH, LargeU
from fheat.networks.light_unetr import LightUNETR
from fheat.nn.light_attention import LightAttentionStage

HEADS = {"enc3": 1, "enc4": 2, "bottom": 2, "dec4": 2, "dec3": 1}
"""Number of attention heads of each stage."""
STRIDES = {"enc3": 4, "enc4": 2, "bottom": 2, "dec4": 2, "dec3": 2}
"""Sampling stride of the attention of each stage. As in the released code dec3 has 2, although enc3 has 4."""


class LightUNETRL(LargeU):
    """The large U-shaped network with Light-UNETR's attention stages, and with its learning rate."""

    learning_rate = LightUNETR.learning_rate

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
    ) -> None:
        def stage(site: str, channels: int) -> nn.Module:
            return LightAttentionStage(channels, DEPTH, STRIDES[site], HEADS[site])

        super().__init__(in_channels, out_channels, patch_size, stage)
