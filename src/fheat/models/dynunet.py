"""The plain U-Net that nnU-Net plans for these patches: MONAI's DynUNet (Apache-2.0), 16,543,650 parameters."""

from collections.abc import Sequence

from fheat.models.monai_peer import MonaiPeer, monai_network

STAGES = 5


class DynUNet(MonaiPeer):
    """MONAI's `DynUNet`, see `MonaiPeer`: five stages, 3x3x3 kernels, strides 1-2-2-2-2, instance norm, no deep
    supervision.

    Args:
        filters: channels of the five stages.
    """

    multiple = 16

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        filters: Sequence[int] = (32, 64, 128, 256, 320),
    ) -> None:
        if len(filters) != STAGES or not all(isinstance(width, int) and width > 0 for width in filters):
            raise ValueError(f"filters={filters!r} is not usable: give {STAGES} whole numbers")
        body = monai_network(
            "DynUNet",
            spatial_dims=3,
            in_channels=in_channels,
            out_channels=out_channels,
            kernel_size=[3] * STAGES,
            strides=[1, 2, 2, 2, 2],
            upsample_kernel_size=[2] * (STAGES - 1),
            filters=list(filters),
        )
        # The same blocks hang in skip_layers, which forward uses: one name each keeps model folders at their size.
        del body.input_block, body.downsamples, body.bottleneck, body.upsamples
        head = body.output_block
        del body.output_block
        super().__init__(in_channels, out_channels, patch_size, body.skip_layers, head)
