"""The normalisation used throughout: GroupNorm with a single group."""

from torch import Tensor, nn

from fheat.ops import kernels


class OneGroupNorm(nn.GroupNorm):
    """Normalise over channels and grid together, with a scale and shift per channel. Shapes: (N, C, ...), the same."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every sample."""
        if x.ndim != 5 or not kernels.usable(x):
            return super().forward(x)
        from fheat.ops.kernels.norm import one_group_norm  # Triton takes a second to import

        channels_last = x.float().permute(0, 2, 3, 4, 1).contiguous()
        with kernels.on_device(x):
            return one_group_norm(channels_last, self.weight, self.bias, self.eps).permute(0, 4, 1, 2, 3)


def one_group(channels: int) -> OneGroupNorm:
    """Normalise over channels and grid together, with a scale and shift per channel."""
    return OneGroupNorm(channels)
