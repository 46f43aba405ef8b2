"""The block of UNETR++: attention over channels and attention over voxels that share their queries and keys.

Facts: Shaker et al., *UNETR++* (2024), Amshaker/unetr_plus_plus (Apache-2.0); written here from its shapes. Deliberate
differences: the output of the attention over voxels stays in place, where the released code reads it back in another
order; positions and the projection of voxels are resized for grids other than that of the patch.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.layers import ChannelNorm, resized
from fheat.ops.dct import compute_dtype, without_autocast

HEADS = 4
"""Number of attention heads."""


class PairedAttention(nn.Module):
    """Two attentions on shared queries q and keys k, each to half of the channels, concatenated.

        channels:  softmax(t1 q' k'^T) v1,                 (C/h, C/h) weights for each of h heads
        voxels:    softmax(t2 q'^T E(k)) E(v2)^T,          (T, P) weights, E projects T voxels to P

    q' and k' are q and k divided by their norms over voxels, t1 and t2 learned per head, E is a linear layer over the
    voxels of the patch. All products are computed in float32 under autocast too. On another grid than `grid`, E is
    resized to it and scaled so that its sums stay. Shapes: (N, C, X, Y, Z) -> the same.
    """

    def __init__(self, channels: int, grid: Sequence[int], projected: int, dropout: float) -> None:
        super().__init__()
        voxels = torch.Size(grid).numel()
        self.project_in = nn.Conv3d(channels, 4 * channels, 1, bias=False)
        self.temperature = nn.Parameter(torch.ones(2, HEADS, 1, 1))
        bound = voxels**-0.5
        self.reduce = nn.Parameter(torch.empty(1, projected, *grid).uniform_(-bound, bound))
        self.reduce_bias = nn.Parameter(torch.empty(projected).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)
        self.channel_out = nn.Conv3d(channels, channels // 2, 1)
        self.voxel_out = nn.Conv3d(channels, channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Mix channels and voxels."""
        four = self.project_in(x).reshape(len(x), 4, HEADS, x.shape[1] // HEADS, -1)
        with without_autocast(x):
            query, key, by_channel, by_voxel = four.to(compute_dtype(x)).unbind(1)
            key_few, value_few = self._few(key, x.shape[2:]), self._few(by_voxel, x.shape[2:])
            query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
            weight = (self.temperature[0] * (query @ key.transpose(-2, -1))).softmax(dim=-1)
            channels = (self.dropout(weight) @ by_channel).reshape(x.shape)
            weight = (self.temperature[1] * (query.transpose(-2, -1) @ key_few)).softmax(dim=-1)
            voxels = (value_few @ self.dropout(weight).transpose(-2, -1)).reshape(x.shape)
        return torch.cat([self.voxel_out(voxels), self.channel_out(channels)], dim=1)

    def _few(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """Return E(x): (N, heads, d, T) -> (N, heads, d, P)."""
        matrix = resized(self.reduce, grid)
        scale = self.reduce[0, 0].numel() / matrix[0, 0].numel()
        return F.linear(x, scale * matrix[0].flatten(1) if scale != 1 else matrix[0].flatten(1), self.reduce_bias)


class PairedBlock(nn.Module):
    """x + gamma attention(norm(x)) with x at learned positions, then x + W residual(x), W a 1x1x1 convolution.

    gamma starts at 1e-6. Shapes: (N, C, X, Y, Z) -> the same; positions are resized for other grids than `grid`.
    """

    def __init__(self, channels: int, grid: Sequence[int], projected: int, dropout: float) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, channels, *grid))
        self.norm = ChannelNorm(channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))
        self.attention = PairedAttention(channels, grid, projected, dropout)
        self.residual = ResidualBlock(channels, channels, nn.BatchNorm3d)
        self.out = nn.Sequential(nn.Dropout3d(0.1), nn.Conv3d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        x = x + resized(self.position, x.shape[2:])
        x = x + self.gamma[:, None, None, None] * self.attention(self.norm(x))
        out: Tensor = x + self.out(self.residual(x))
        return out


class ResidualBlock(nn.Module):
    """leaky(norm(conv(leaky(norm(conv(x))))) + x), with a normed 1x1x1 convolution of x where the width changes."""

    def __init__(self, in_channels: int, out_channels: int, norm: type[nn.BatchNorm3d | nn.InstanceNorm3d]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(in_channels, out_channels, 3, padding=1, bias=False),
            norm(out_channels),
            nn.LeakyReLU(0.01),
            nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False),
            norm(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = nn.Sequential(nn.Conv3d(in_channels, out_channels, 1, bias=False), norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return F.leaky_relu(self.body(x) + self.shortcut(x), 0.01)
