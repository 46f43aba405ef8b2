"""SegResNet, a residual encoder with a light decoder; from MONAI (Apache-2.0), 4,700,914 parameters."""

from collections.abc import Sequence

from fheat.models.monai_peer import MonaiPeer, monai_network


class SegResNet(MonaiPeer):
    """MONAI's `SegResNet`, see `MonaiPeer`.

    Args:
        init_filters: channels on the full grid, a multiple of 8; doubled at each of three halvings.
    """

    multiple = 8

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        init_filters: int = 16,
    ) -> None:
        if not isinstance(init_filters, int) or init_filters < 8 or init_filters % 8:
            raise ValueError(f"init_filters={init_filters!r} is not usable: give a multiple of 8")
        body = monai_network("SegResNet", in_channels=in_channels, out_channels=out_channels, init_filters=init_filters)
        head = body.conv_final[2]
        body.conv_final = body.conv_final[:2]
        super().__init__(in_channels, out_channels, patch_size, body, head)
