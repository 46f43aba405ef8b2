"""Networks of MONAI with the interface of this package: any grid, features, model folders. MONAI is imported on use."""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from torch import Tensor, nn

from fheat.networks.padded import PaddedNetwork
from fheat.system.errors import BadInput


def monai_network(name: str, **options: Any) -> Any:
    """Build a network of `monai.networks.nets`, or raise `BadInput` if MONAI is not installed."""
    try:
        nets = import_module("monai.networks.nets")
    except ImportError:
        raise BadInput(name, "is a network of MONAI, which is not installed", "install it: pip install monai") from None
    return getattr(nets, name)(**options)


STAGES = 5
"""Number of stages of `DynUNet` and of `UNet`."""


class DynUNet(PaddedNetwork):
    """MONAI's `DynUNet`, see `PaddedNetwork`: five stages, 3x3x3 kernels, strides 1-2-2-2-2, instance norm, no deep
    supervision.

    Args:
        filters: number of channels of each of the five stages.
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
        _check_widths("filters", filters)
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
        # skip_layers, which forward uses, holds the same blocks: with one name each, model folders store them once.
        del body.input_block, body.downsamples, body.bottleneck, body.upsamples
        head = body.output_block
        del body.output_block
        super().__init__(in_channels, out_channels, patch_size, body.skip_layers, head)


class UNet(PaddedNetwork):
    """MONAI's `UNet`, see `PaddedNetwork`: five stages of residual units, the first of which halves the grid already,
    skips that are concatenated, instance norm and PReLU.

    Its last stage goes from half of the grid straight to the classes, without a 1x1x1 convolution behind it, and is the
    head here. So the features are what enters that stage: its skip and the stage below, on half of the grid.

    Args:
        channels: number of channels of each of the five stages.
        units: number of convolutions in each residual unit of the encoder; 0 leaves plain convolutions.
    """

    multiple = 16
    coarser = 2

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        channels: Sequence[int] = (16, 32, 64, 128, 256),
        units: int = 2,
    ) -> None:
        _check_widths("channels", channels)
        if not isinstance(units, int) or units < 0:
            raise ValueError(f"units={units!r} is not usable: give a whole number of at least 0")
        whole = monai_network(
            "UNet",
            spatial_dims=3,
            in_channels=in_channels,
            out_channels=out_channels,
            channels=list(channels),
            strides=[2] * (STAGES - 1),
            num_res_units=units,
        ).model
        super().__init__(in_channels, out_channels, patch_size, whole[:2], whole[2])


def _check_widths(name: str, widths: Sequence[int]) -> None:
    if len(widths) != STAGES or not all(isinstance(width, int) and width > 0 for width in widths):
        raise ValueError(f"{name}={widths!r} is not usable: give {STAGES} whole numbers")


VARIANTS = {"S": (2, 2, 2, 2, 2), "B": (2, 3, 4, 4, 4), "M": (2, 3, 4, 4, 4), "L": (3, 4, 8, 8, 8)}
"""How many times wider the blocks of `MedNeXt` are inside: on four levels and at the bottom."""
BLOCKS = {"S": (2, 2, 2, 2, 2), "B": (2, 2, 2, 2, 2), "M": (3, 4, 4, 4, 4), "L": (3, 4, 8, 8, 8)}
"""Number of blocks of each stage of `MedNeXt`: on four levels and at the bottom."""
KERNELS = (3, 5, 7)


class MedNeXt(PaddedNetwork):
    """MONAI's `MedNeXt`, see `PaddedNetwork`, without deep supervision.

    Args:
        variant: `S`, `B`, `M` or `L`, in ascending size.
        kernel: kernel size of the depthwise convolutions, 3, 5 or 7.
        response_norm: whether blocks have global response norms; variant S has the published 5.57 M with them.
        init_filters: number of channels on the full grid, doubled at each of four halvings.
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
        response_norm: bool = False,
        init_filters: int = 32,
    ) -> None:
        if variant not in VARIANTS or kernel not in KERNELS:
            raise ValueError(f"variant={variant!r}, kernel={kernel!r} is unknown: use S, B, M or L and 3, 5 or 7")
        if not isinstance(init_filters, int) or init_filters < 1:
            raise ValueError(f"init_filters={init_filters!r} is not usable: give a whole number of at least 1")
        expansion, blocks = VARIANTS[variant], BLOCKS[variant]
        body = monai_network(
            "MedNeXt",
            init_filters=init_filters,
            in_channels=in_channels,
            out_channels=out_channels,
            encoder_expansion_ratio=expansion[:4],
            bottleneck_expansion_ratio=expansion[4],
            decoder_expansion_ratio=expansion[3::-1],
            blocks_down=blocks[:4],
            blocks_bottleneck=blocks[4],
            blocks_up=blocks[3::-1],
            kernel_size=kernel,
            use_residual_connection=True,
            global_resp_norm=response_norm,
        )
        head = body.out_0
        body.out_0 = nn.Identity()
        super().__init__(in_channels, out_channels, patch_size, body, head)


class SegResNet(PaddedNetwork):
    """MONAI's `SegResNet`, see `PaddedNetwork`.

    Args:
        init_filters: number of channels on the full grid, a multiple of 8, doubled at each of three halvings.
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


class SwinUNETR(PaddedNetwork):
    """MONAI's `SwinUNETR`, see `PaddedNetwork`; its axes must be multiples of 32, so 112x112x80 runs as 128x128x96.

    Args:
        feature_size: number of channels on the full grid, a multiple of 12.
    """

    multiple = 32

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        feature_size: int = 48,
    ) -> None:
        if not isinstance(feature_size, int) or feature_size < 12 or feature_size % 12:
            raise ValueError(f"feature_size={feature_size!r} is not usable: give a multiple of 12")
        _rearrange_without_einops()
        body = monai_network("SwinUNETR", in_channels=in_channels, out_channels=out_channels, feature_size=feature_size)
        head = body.out
        body.out = nn.Identity()
        super().__init__(in_channels, out_channels, patch_size, body, head)


def _rearrange_without_einops() -> None:
    """Give MONAI's module a `rearrange` if einops is not installed; it only uses it to permute axes."""
    if find_spec("einops") is None:
        with suppress(ImportError):  # without MONAI itself, `monai_network` raises
            vars(import_module("monai.networks.nets.swin_unetr"))["rearrange"] = _permuted


def _permuted(x: Tensor, pattern: str) -> Tensor:
    """Return x with its axes permuted by a pattern such as `b c d h w -> b d h w c`."""
    before, after = (side.split() for side in pattern.split("->"))
    return x.permute([before.index(axis) for axis in after])
