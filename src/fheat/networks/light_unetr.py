"""Light-UNETR, the peer that FHEAT-Seg is measured against, 1,351,896 parameters.

Source of the shapes: CUHK-AIM-Group/Light-UNETR (MIT). Deliberate differences: any patch size; attention on its own
token grid; bottom tokens stay in place unless `scramble=True`, which reproduces the released reordering.
"""

from collections.abc import Sequence

from torch import nn

from fheat.networks.light_u import DEPTHS, WIDTHS, LightU
from fheat.nn.light_attention import LightAttentionStage

HEADS = (1, 2, 4, 4)
STRIDES = (4, 2, 2, 1)


class LightUNETR(LightU):
    """The same U as FHEAT-Seg with Light-UNETR's attention stages.

    Args:
        dropout: at the bottom.
        scramble: read the bottom tokens back in the released code's order.
    """

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
            return LightAttentionStage(WIDTHS[level], DEPTHS[level], STRIDES[level], HEADS[level])

        super().__init__(in_channels, out_channels, patch_size, stage, dropout=dropout, scramble=scramble)
