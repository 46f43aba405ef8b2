"""MedNeXt, a U of ConvNeXt blocks; from MONAI (Apache-2.0), variant S with kernel 3: 5,550,914 parameters."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from fheat.models.monai_peer import MonaiPeer, monai_network

VARIANTS = ("S", "B", "M", "L")
KERNELS = (3, 5, 7)


class MedNeXt(MonaiPeer):
    """MONAI's `MedNeXt`, see `MonaiPeer`, without deep supervision.

    Args:
        variant: `S`, `B`, `M` or `L`, in ascending size.
        kernel: of the depthwise convolutions, 3, 5 or 7.
    """

    multiple = 16

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        variant: Literal["S", "B", "M", "L"] = "S",
        kernel: int = 3,
    ) -> None:
        if variant not in VARIANTS or kernel not in KERNELS:
            raise ValueError(f"variant={variant!r}, kernel={kernel!r} is unknown: use S, B, M or L and 3, 5 or 7")
        body = monai_network(
            f"MedNeXt{variant}", in_channels=in_channels, out_channels=out_channels, kernel_size=kernel
        )
        head = body.out_0
        body.out_0 = nn.Identity()
        super().__init__(in_channels, out_channels, patch_size, body, head)
