"""FHEAT: the gated operator around the fractional heat gate."""

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.norm import one_group
from fheat.ops.heat import FractionalHeat


class FHEAT(nn.Module):
    """Depthwise convolution, global mixing by a shared gate, and a pointwise gate of its own.

        [v, g] = W_p(DWConv3(x)),    y = W_out( SiLU(g) * GN(T(v)) )

    W_p: C -> 2C, W_out: C -> C, all with bias, GN has one group. The gate T is an argument of `forward`, not a part:
    its two scalars belong to the stage, which shares it between its blocks.

    Shapes: (N, C, X, Y, Z) -> the same. Identity case: a closed gate makes this the affine bypass around T, exactly.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv3d(channels, channels, 3, padding=1, groups=channels)
        self.project = nn.Conv3d(channels, 2 * channels, 1)
        self.norm = one_group(channels)
        self.out = nn.Conv3d(channels, channels, 1)

    def forward(self, x: Tensor, gate: FractionalHeat) -> Tensor:
        """Mix `x` through the stage's gate."""
        value, pointwise = self.project(self.depthwise(x)).chunk(2, dim=1)
        mixed: Tensor = self.out(F.silu(pointwise) * self.norm(gate(value)))
        return mixed
