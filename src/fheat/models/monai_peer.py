"""Networks of MONAI under the contract of this package: any grid, features, model folders. MONAI is imported on use."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.errors import BadInput
from fheat.models.base import Features, SegmentationNetwork
from fheat.nn.resample import crop_to


class MonaiPeer(SegmentationNetwork):
    """A MONAI network cut into `body` and `head`, its last 1x1x1 convolution.

    A grid that is no multiple of `multiple` is padded with zeros at its ends, and the features are cropped again before
    the head, which gives the same logits. These networks have no attention map of their own: `forward_features` returns
    mean_c |features_c|, detached, on the full grid; `forward` does not compute it.
    """

    multiple: ClassVar[int]

    def __init__(
        self, in_channels: int, out_channels: int, patch_size: Sequence[int], body: nn.Module, head: nn.Module
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, X, Y, Z) -> logits (N, out_channels, X, Y, Z)."""
        logits: Tensor = self.head(self._features(x))
        return logits

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the mean magnitude of the features in place of an attention map, and the features."""
        features = self._features(x)
        return Features(self.head(features), features.detach().abs().mean(dim=1, keepdim=True), features)

    def _features(self, x: Tensor) -> Tensor:
        self._check_input(x)
        grid = x.shape[2:]
        return crop_to(self.body(_padded(x, self.multiple)), grid)


def monai_network(name: str, **options: Any) -> Any:
    """Build a network of `monai.networks.nets`, or say in one line that MONAI is missing."""
    try:
        nets = import_module("monai.networks.nets")
    except ImportError:
        raise BadInput(name, "is a network of MONAI, which is not installed", "install it: pip install monai") from None
    return getattr(nets, name)(**options)


def _padded(x: Tensor, multiple: int) -> Tensor:
    more = [-length % multiple for length in x.shape[2:]]
    if all(length + rest == multiple for length, rest in zip(x.shape[2:], more, strict=True)):
        more[0] += multiple  # an instance norm refuses a bottom of one voxel
    return F.pad(x, (0, more[2], 0, more[1], 0, more[0])) if any(more) else x
