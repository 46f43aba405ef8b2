"""TransBTS: a convolutional encoder, a transformer at its bottom, a convolutional decoder; 31,628,946 parameters.

Facts: Wang et al., *TransBTS* (2021), Wenxuan-1119/TransBTS (Apache-2.0); written here from its shapes. Deliberate
differences: any grid, with positions that are resized for it; dropout only in training, where the released code also
drops channels in evaluation; no softmax; without a linear layer of 262,656 and a norm of 1,024 parameters that the
released code registers and does not use.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fheat.networks.base import checked_patch_size
from fheat.networks.padded import PaddedNetwork
from fheat.nn.layers import ChannelNorm, padded_grid, resized
from fheat.ops.dct import compute_dtype, without_autocast

WIDTHS = (16, 32, 64, 128)
"""Number of channels of each level."""
DEPTHS = (1, 2, 2, 4)
"""Number of residual blocks of the encoder on each level."""
TOKEN_WIDTH = 512
"""Number of channels inside the transformer."""
HIDDEN = 4096
"""Number of channels inside its feed-forward layers."""
LAYERS, HEADS = 4, 8


class TransBTS(PaddedNetwork):
    """See `PaddedNetwork`; axes are padded to multiples of 8, so 112x112x80 and 96x96x96 run as they are.

    Args:
        dropout: probability with which the first maps drop out in training.
        token_dropout: dropout probability inside the transformer.
    """

    multiple = 8

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        dropout: float = 0.2,
        token_dropout: float = 0.1,
    ) -> None:
        grid = [length // self.multiple for length in padded_grid(checked_patch_size(patch_size), self.multiple)]
        body = TransBTSBody(in_channels, grid, dropout, token_dropout)
        super().__init__(in_channels, out_channels, patch_size, body, nn.Conv3d(WIDTHS[0], out_channels, 1))


class TransBTSBody(nn.Module):
    """Everything but the head. Shapes: (N, in, X, Y, Z) with multiples of 8 -> (N, 16, X, Y, Z)."""

    def __init__(self, in_channels: int, grid: Sequence[int], dropout: float, token_dropout: float) -> None:
        super().__init__()
        levels = list(zip(WIDTHS, DEPTHS, strict=True))
        stem = nn.Sequential(_conv3(in_channels, WIDTHS[0]), nn.Dropout3d(dropout), EncoderBlock(WIDTHS[0]))
        deeper = [
            nn.Sequential(_conv3(before, width, stride=2), *(EncoderBlock(width) for _ in range(depth)))
            for before, (width, depth) in zip(WIDTHS, levels[1:], strict=False)
        ]
        self.encoder = nn.ModuleList([stem, *deeper])
        bottom = WIDTHS[-1]
        self.embed = nn.Sequential(nn.BatchNorm3d(bottom), nn.ReLU(), _conv3(bottom, TOKEN_WIDTH))
        self.position = nn.Parameter(torch.zeros(1, TOKEN_WIDTH, *grid))
        self.dropout = nn.Dropout(token_dropout)
        self.transformer = nn.Sequential(*(TransformerLayer(token_dropout) for _ in range(LAYERS)))
        self.fold = nn.Sequential(*_normed(TOKEN_WIDTH, bottom), *_normed(bottom, bottom), DecoderBlock(bottom))
        self.decoder = nn.ModuleList(DecoderStage(width) for width in reversed(WIDTHS[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features before the head."""
        skips = []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        x = self.embed(x)
        x = self.transformer(self.dropout(x + resized(self.position, x.shape[2:])))
        x = self.fold(x)
        for stage, skip in zip(self.decoder, skips[-2::-1], strict=True):
            x = stage(x, skip)
        return x


class EncoderBlock(nn.Module):
    """x + conv(relu(GN(conv(relu(GN(x)))))), norms of eight groups."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [(nn.GroupNorm(8, channels), nn.ReLU(), _conv3(channels, channels)) for _ in range(2)]
        self.body = nn.Sequential(*(layer for three in layers for layer in three))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (N, C, X, Y, Z)."""
        out: Tensor = x + self.body(x)
        return out


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)), on maps (N, 512, X, Y, Z) whose voxels are the tokens.

    softmax(q k^T / sqrt(d)) v is computed in float32 under autocast too.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention_norm = ChannelNorm(TOKEN_WIDTH)
        self.query_key_value = nn.Conv3d(TOKEN_WIDTH, 3 * TOKEN_WIDTH, 1, bias=False)
        self.out = nn.Conv3d(TOKEN_WIDTH, TOKEN_WIDTH, 1)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = nn.Sequential(
            ChannelNorm(TOKEN_WIDTH),
            nn.Conv3d(TOKEN_WIDTH, HIDDEN, 1),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Conv3d(HIDDEN, TOKEN_WIDTH, 1),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        x = x + self.dropout(self.out(self._attend(self.attention_norm(x))))
        out: Tensor = x + self.feed_forward(x)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).reshape(len(x), 3, HEADS, TOKEN_WIDTH // HEADS, -1).unbind(1)
        with without_autocast(x):
            dtype = compute_dtype(x)
            weight = (query.to(dtype).transpose(-2, -1) @ key.to(dtype) / math.sqrt(query.shape[2])).softmax(dim=-1)
            mixed: Tensor = value.to(dtype) @ self.dropout(weight).transpose(-2, -1)
            return mixed.reshape(x.shape)


class DecoderBlock(nn.Module):
    """x + two 3x3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_normed(channels, channels), *_normed(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (N, C, X, Y, Z)."""
        out: Tensor = x + self.body(x)
        return out


class DecoderStage(nn.Module):
    """Halve the channels, double the grid, fuse with the skip, and a `DecoderBlock`.

    Shapes: (N, 2C, X, Y, Z) and the skip (N, C, 2X, 2Y, 2Z) -> (N, C, 2X, 2Y, 2Z).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = nn.Conv3d(2 * channels, channels, 1)
        self.up = nn.ConvTranspose3d(channels, channels, 2, stride=2)
        self.fuse = nn.Conv3d(2 * channels, channels, 1)
        self.block = DecoderBlock(channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return the features on the grid of the skip."""
        x = self.up(self.narrow(x))
        out: Tensor = self.block(self.fuse(torch.cat([skip, x], dim=1)))
        return out


def _conv3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv3d:
    return nn.Conv3d(in_channels, out_channels, 3, stride=stride, padding=1)


def _normed(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    """Return a 3x3x3 convolution with batch norm and ReLU."""
    return _conv3(in_channels, out_channels), nn.BatchNorm3d(out_channels), nn.ReLU()
