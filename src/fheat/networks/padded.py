"""Networks that halve the grid several times and need lengths that can be halved: padded, run, and cropped again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.nn.layers import crop_to, pad_to_multiple


class PaddedNetwork(SegmentationNetwork):
    """A network split into `body` and `head`, its last 1x1x1 convolution or, where it has none, its last stage.

    A grid that is not a multiple of `multiple` is padded with zeros at its ends, and the features are cropped again,
    before the head. These networks have no attention map of their own: `forward_features` returns mean_c |features_c|,
    detached, on the grid of the features; `forward` does not compute it.
    """

    multiple: ClassVar[int]
    """Number of which every axis of the body's input is a multiple."""
    coarser: ClassVar[int] = 1
    """Number of voxels of the input for each voxel of the features along an axis; the head makes up for it."""

    def __init__(
        self, in_channels: int, out_channels: int, patch_size: Sequence[int], body: nn.Module, head: nn.Module
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size)
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, X, Y, Z) to logits (N, out_channels, X, Y, Z)."""
        return self._logits(self._features(x), x)

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the mean magnitude of the features in place of an attention map, and the features."""
        features = self._features(x)
        attention = features.detach().abs().mean(dim=1, keepdim=True)
        return Features(self._logits(features, x), attention, features)

    def _features(self, x: Tensor) -> Tensor:
        self._check_input(x)
        grid = [-(-length // self.coarser) for length in x.shape[2:]]
        return crop_to(self.body(pad_to_multiple(x, self.multiple)), grid)

    def _logits(self, features: Tensor, x: Tensor) -> Tensor:
        return crop_to(self.head(features), x.shape[2:])


def compile_bodies(*modules: nn.Module) -> int:
    """Let `torch.compile` run the bodies of all padded networks among the modules and inside them; return how many.

    Weights, their names and saved models stay as they are. A deep copy runs as written again. Outputs agree up to
    rounding.
    """
    bodies = bodies_of(*modules)
    for body in bodies:
        body.compile(dynamic=False)
    return len(bodies)


def bodies_of(*modules: nn.Module) -> list[nn.Module]:
    """Return the bodies of all padded networks among the modules and inside them, each once."""
    parts = (part for module in modules for part in module.modules())
    return list(dict.fromkeys(part.body for part in parts if isinstance(part, PaddedNetwork)))


@contextmanager
def as_written(*modules: nn.Module) -> Iterator[None]:
    """Within the block, bodies that `compile_bodies` was given run as they are written; nothing is compiled for it."""
    compiled = {body: body._compiled_call_impl for body in bodies_of(*modules)}
    try:
        for body in compiled:
            body._compiled_call_impl = None
        yield
    finally:
        for body, run in compiled.items():
            body._compiled_call_impl = run


def is_compiled(network: nn.Module) -> bool:
    """Return whether `compile_bodies` was called on the network."""
    return isinstance(network, PaddedNetwork) and network.body._compiled_call_impl is not None
