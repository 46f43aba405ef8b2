"""Swin UNETR: shifted-window attention down, convolutions up; from MONAI (Apache-2.0), 62,186,708 parameters."""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor, nn

from fheat.models.monai_peer import MonaiPeer, monai_network


class SwinUNETR(MonaiPeer):
    """MONAI's `SwinUNETR`, see `MonaiPeer`; its axes must be multiples of 32, so 112x112x80 runs as 128x128x96.

    Args:
        feature_size: channels on the full grid, a multiple of 12.
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
    """Give MONAI's file what it wants of einops where that is missing: it only ever moves whole axes there."""
    if find_spec("einops") is None:
        with suppress(ImportError):  # MONAI itself is missing, which is said elsewhere
            vars(import_module("monai.networks.nets.swin_unetr"))["rearrange"] = _moved


def _moved(x: Tensor, pattern: str) -> Tensor:
    """`b c d h w -> b d h w c` as a permutation."""
    before, after = (side.split() for side in pattern.split("->"))
    return x.permute([before.index(axis) for axis in after])
