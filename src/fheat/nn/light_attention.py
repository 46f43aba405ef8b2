"""The block of Light-UNETR: dimension-reductive attention with gated channel mixing.

Paper and source: Light-UNETR with contextual synergic enhancement, CUHK-AIM-Group/Light-UNETR (MIT), written here from
its shapes. Deliberate differences: a grid that the sampling stride does not divide is cropped back instead of failing;
the attention map stays on its own token grid instead of being resized to a fixed 112x112x80.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, DepthwiseTransposed3d, GroupedConv3d, Pointwise3d, pointwise
from fheat.nn.layers import crop_to, one_group, untouched
from fheat.ops import kernels
from fheat.ops.dct import autocasts, without_autocast


class LightAttention(nn.Module):
    """Attention on one third of the channels, convolutions on the other two, all on a grid sampled with stride r.

    First third: 1x1x1 to q, k, v, then `softmax(q k^T) v` without a scale, in float32 under autocast too: activations
    reach thousands, and a product of two of them is rounded by thousands in bfloat16. The other two: 1x1x1 to half the
    channels, batch norm, GELU, grouped 3x3x3 or 5x5x5 back, GELU. Then a depthwise transposed convolution (kernel =
    stride = r), GN, 1x1x1. Shapes: (N, C, X, Y, Z) -> the same, and the mean attention that each token receives,
    (N, 1, X/r, Y/r, Z/r).
    """

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        third = channels // 3
        if channels % 6 or third % heads:
            raise ValueError(
                f"channels={channels} cannot be split: need a multiple of 6 whose third divides by heads={heads}"
            )
        self.heads = heads
        self.stride = stride
        self.qkv = Pointwise3d(third, 3 * third, bias=False)
        self.fine = _local_branch(third, 3)
        self.coarse = _local_branch(third, 5)
        self.recover = nn.Sequential(
            DepthwiseTransposed3d(channels, stride),
            one_group(channels),
            Pointwise3d(channels, channels, bias=False),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixed features and the attention map."""
        grid = x.shape[2:]
        sampled = x[:, :, :: self.stride, :: self.stride, :: self.stride]
        attended, fine, coarse = sampled.chunk(3, dim=1)
        attended, attention = self._attend(attended)
        mixed = torch.cat([attended, self.fine(fine), self.coarse(coarse)], dim=1)
        return crop_to(self.recover(mixed), grid), attention

    def _attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, *grid = x.shape
        with without_autocast(x):
            query, key, value = self.qkv(x).reshape(batch, self.heads, -1, x[0, 0].numel()).chunk(3, dim=2)
            weight = (query.transpose(-2, -1) @ key).softmax(dim=-1)
            attended = (value @ weight.transpose(-2, -1)).reshape(batch, -1, *grid)
        received = weight.detach().mean(dim=(1, 2)).reshape(batch, 1, *grid)
        return attended, received


class GatedMixer(nn.Module):
    """W_r( W_i x * sigmoid(W_g x) ) with twice as many channels inside, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.value = Pointwise3d(channels, 2 * channels, bias=False)
        self.gating = Pointwise3d(channels, 2 * channels, bias=False)
        self.recover = Pointwise3d(2 * channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of (N, C, X, Y, Z)."""
        if kernels.usable(x) and untouched(self.value, Pointwise3d) and untouched(self.gating, Pointwise3d):
            both = pointwise(x, torch.cat([self.value.weight, self.gating.weight]))  # one product is faster than two
            gated = F.glu(both, dim=1)
        else:
            gated = self.value(x) * self.gating(x).sigmoid()
        out: Tensor = self.recover(gated)
        return out


class LightAttentionBlock(nn.Module):
    """x + DWConv3(x) without bias, then twice: x + attention(x), x + mixer(x)."""

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv3d(channels, bias=False)
        self.attentions = nn.ModuleList(LightAttention(channels, stride, heads) for _ in range(2))
        self.mixers = nn.ModuleList(GatedMixer(channels) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the attention map of the last attention."""
        x = x + self.depthwise(x)
        attention = x
        for attend, mix in zip(self.attentions, self.mixers, strict=True):
            mixed, attention = attend(x)
            x = x + mixed
            x = x + mix(x)
        return x, attention


class LightAttentionStage(nn.Module):
    """A stage of `depth` attention blocks, used in the place of an `FHEATStage`."""

    def __init__(self, channels: int, depth: int, stride: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LightAttentionBlock(channels, stride, heads) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the stage."""
        return self.attend(x)[0]

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the attention map, (N, 1, X/r, Y/r, Z/r).

        The sum of the blocks has no norm and grows from block to block, so it is kept in float32 under autocast too.
        """
        if autocasts(x):
            x = x.float()
        attention = x
        for block in self.blocks:
            x, attention = block(x)
        return x, attention


def _local_branch(channels: int, kernel: int) -> nn.Sequential:
    half = channels // 2
    return nn.Sequential(
        Pointwise3d(channels, half, bias=False),
        nn.BatchNorm3d(half),
        nn.GELU(),
        GroupedConv3d(half, channels, kernel),
        nn.GELU(),
    )
