"""3x3x3 convolution with few channels."""

from torch import Tensor, nn

from fheat.ops import kernels


class SmallConv3d(nn.Conv3d):
    """3x3x3 convolution with padding 1, stride 1 or 2 and no bias, by a fused kernel where there is one.

    Shapes: (N, in, X, Y, Z) -> (N, out, ceil(X / stride), ...). The kernel gives float32 under autocast too, with
    channels last in memory. Parameters are those of `nn.Conv3d`.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        if stride not in (1, 2):
            raise ValueError(f"stride={stride} is unknown: use 1 or 2")
        super().__init__(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x) or x.numel() * self.out_channels >= 2**31 * self.in_channels:
            return super().forward(x)
        from fheat.ops.kernels.conv import conv3  # Triton takes a second to import

        channels_last = x.float().permute(0, 2, 3, 4, 1).contiguous()
        with kernels.on_device(x):
            return conv3(channels_last, self.weight.float(), self.stride[0]).permute(0, 4, 1, 2, 3)
