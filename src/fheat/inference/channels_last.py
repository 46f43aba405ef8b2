"""FHEAT-Seg as OpenVINO runs it fastest on a CPU: the same function for windows of one size, channels last throughout.

Convolutions of a CPU compiler want channels last. What is between them is written here on the rows of that memory, so
that no layout is converted on the way, and so that vectors are full where there are few channels:

- a norm over channels and grid together does not care where a channel ends: it is taken over one row;
- scale, shift, activation and sum that follow it are one pass, over rows of several voxels;
- scale and shift before a 1x1x1 convolution are part of its weights, and x + conv(x) is one convolution;
- four voxels of a window with one channel are four channels of a quarter as many voxels.
"""

import copy
from collections.abc import Sequence
from math import gcd, prod
from typing import Final, cast

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.inference.compilable import Gate, compilable
from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.light_u import SITES
from fheat.nn.blocks import FHEATBlock, FHEATStage, LightBlock
from fheat.nn.convolutions import DepthwiseConv3d, PatchConv3d, PatchTransposed3d, Pointwise3d, SmallConv3d
from fheat.nn.fheat import FHEAT, KAN3D, GELUMixer
from fheat.nn.layers import Down, OneGroupNorm, SqueezeExcitation, Stem, Up, has_hooks
from fheat.ops.rational import Rational

LANES: Final = 16
"""Number of float32 values in the widest vector of a CPU."""
FOLD: Final = 4
"""Number of voxels along the last axis of a window that become channels in the stem, which has two strides of 2."""
_KNOWN: Final = (
    *(FHEATSeg, Stem, FHEATStage, LightBlock, FHEATBlock, FHEAT, KAN3D, GELUMixer, Down, Up, SqueezeExcitation),
    *(DepthwiseConv3d, PatchConv3d, PatchTransposed3d, Pointwise3d, SmallConv3d, OneGroupNorm, Rational),
    *(nn.GELU, nn.Linear, nn.Dropout, nn.ModuleList),
)


def channels_last(network: nn.Module) -> nn.Module:
    """Return a copy for inference that computes what any network does, up to rounding, on windows of one size.

    Every FHEAT-Seg in it is written anew, as this file says, unless a part of it has hooks or was replaced; all else
    is as `compilable` leaves it.
    """
    if _is_as_built(network):
        return _ChannelsLast(cast(FHEATSeg, copy.deepcopy(network))).eval()
    if not any(map(_is_as_built, network.modules())):
        return compilable(network)
    network = copy.copy(network)
    network._modules = {name: child and channels_last(child) for name, child in network._modules.items()}
    return network.eval()


def _is_as_built(network: nn.Module) -> bool:
    """Return whether this is FHEAT-Seg of the parts that are known here; what is in the place of gates may be any."""
    stages = [network.get_submodule(site) for site in SITES] if type(network) is FHEATSeg else []
    if not stages or not all(isinstance(stage, FHEATStage) for stage in stages):
        return False
    gates = {id(part) for stage in stages for part in cast(FHEATStage, stage).gate.modules()}
    return all(id(part) in gates or (type(part) in _KNOWN and not has_hooks(part)) for part in network.modules())


class _Rows:
    """Views of maps (N, X, Y, Z, C) as rows (N, V / r, r C), the least r that fills vectors; V = X Y Z."""

    def __init__(self, maps: Tensor) -> None:
        self.shape = tuple(map(int, maps.shape))
        voxels, channels = prod(self.shape[1:-1]), self.shape[-1]
        self.repeats = LANES // gcd(channels, LANES)
        if voxels % self.repeats:
            self.repeats = 1
        self.row = (self.shape[0], voxels // self.repeats, self.repeats * channels)

    def of(self, maps: Tensor) -> Tensor:
        return maps.reshape(self.row)

    def maps(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.shape)

    def each(self, values: Tensor) -> Tensor:
        """Return one value per channel, (C) or (N, 1, C), for rows."""
        return values.repeat(*[1] * (values.ndim - 1), self.repeats)

    def normed(self, rows: Tensor, eps: float) -> Tensor:
        """Normalise over channels and grid together, without scale and shift."""
        flat = rows.reshape(self.row[0], -1)
        return F.layer_norm(flat, flat.shape[1:], eps=eps).reshape(self.row)

    def norm(self, rows: Tensor, norm: OneGroupNorm, copies: int = 1) -> Tensor:
        """Apply a norm whose channels come `copies` times, one behind the other."""
        weight, bias = (self.each(value.detach().repeat(copies)) for value in (norm.weight, norm.bias))
        return self.normed(rows, norm.eps) * weight + bias


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> Tensor:
    """Return the convolution of maps (N, X, Y, Z, in), as maps (N, X', Y', Z', out)."""
    return F.conv3d(x.movedim(-1, 1), weight, bias, stride=stride, padding=padding, groups=groups).movedim(1, -1)


def _weights(conv: nn.Conv3d | nn.ConvTranspose3d) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution that has one."""
    return conv.weight.detach(), cast(Tensor, conv.bias).detach()


class _ChannelsLast(nn.Module):
    """The forward pass of `LightU`: (N, in, X, Y, Z) -> (N, out, X, Y, Z)."""

    def __init__(self, network: FHEATSeg) -> None:
        super().__init__()
        part = network.get_submodule
        self.network = network
        self.stem = _Stem(network.stem)
        self.stages = nn.ModuleDict({site: _Stage(cast(FHEATStage, part(site))) for site in SITES})
        self.downs = nn.ModuleList(_Down(cast(Down, part(f"down{level}"))) for level in (1, 2, 3))
        self.ups = nn.ModuleList(_Up(cast(Up, part(f"up{level}"))) for level in (1, 2, 3))
        self.head = _Spread(network.head)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        x = self.stem(x)
        grids, skips = [], []
        for level, down in enumerate(self.downs, start=1):
            grids.append(x.shape[1:4])
            x = self.stages[f"enc{level}"](_pad_to_even(x))
            skips.append(x)
            x = down(x)
        x = self.stages["enc4"](x)
        x = self.network._bottom(x.movedim(-1, 1)).movedim(1, -1)
        x = self.stages["dec4"](x)
        for level, up in reversed(list(enumerate(self.ups, start=1))):
            x = _crop_to(self.stages[f"dec{level}"](up(x, skips.pop())), grids.pop())
        return _crop_to(self.head(x), size).movedim(-1, 1)


def _pad_to_even(x: Tensor) -> Tensor:
    extra = [length % 2 for length in reversed(x.shape[1:4])]
    return F.pad(x, [0, 0, *(planes for behind in extra for planes in (0, behind))]) if any(extra) else x


def _crop_to(x: Tensor, grid: Sequence[int]) -> Tensor:
    return x[:, : grid[0], : grid[1], : grid[2]] if tuple(x.shape[1:4]) != tuple(grid) else x


class _Stem(nn.Module):
    """Three convolutions with norms and GELU: (N, in, X, Y, Z) -> (N, X/4, Y/4, Z/4, C).

    Where there is one channel and Z is a multiple of 4, the first convolution sees every 4 voxels along Z as channels
    of one, and computes 2 voxels; the second sees these as channels and computes one. Along Z both then have a kernel
    of 2 and no stride: the weights are the same numbers at other places, and zeros.
    """

    def __init__(self, stem: Stem) -> None:
        super().__init__()
        self.weights = [cast(nn.Conv3d, stem[place]).weight.detach() for place in (0, 3, 6)]
        self.norms = [cast(OneGroupNorm, stem[place]) for place in (1, 4, 7)]

    def forward(self, x: Tensor) -> Tensor:
        (first, second, third), (one, two, three) = self.weights, self.norms
        samples, channels, *grid, length = x.shape
        if channels == 1 and length % FOLD == 0:
            x = x.reshape(samples, *grid, length // FOLD, FOLD)
            x = _gelu_norm(_folded(x, first, outputs=2), one, copies=2)
            x = _gelu_norm(_folded(x, second, outputs=1), two)
        else:
            x = _gelu_norm(_convolved(x.movedim(1, -1), first, stride=2, padding=1), one)
            x = _gelu_norm(_convolved(x, second, stride=2, padding=1), two)
        x = _convolved(x, third, padding=1)
        rows = _Rows(x)
        return rows.maps(rows.norm(rows.of(x), three))


def _gelu_norm(x: Tensor, norm: OneGroupNorm, copies: int = 1) -> Tensor:
    rows = _Rows(x)
    return rows.maps(F.gelu(rows.norm(rows.of(x), norm, copies)))


def _folded(x: Tensor, weight: Tensor, outputs: int) -> Tensor:
    """Return a 3x3x3 convolution with stride 2 and padding 1 of maps whose last axis is folded into the channels.

    Shapes: `x` (N, X, Y, Z, 2 outputs * in) -> (N, X/2, Y/2, Z, outputs * out). Voxel p of the outputs reads voxels
    2p - 1, 2p and 2p + 1 of the inputs, and the first of voxel 0 is the last of the block before.
    """
    out_channels, in_channels = weight.shape[:2]
    inputs = 2 * outputs
    blocks = weight.new_zeros(outputs, out_channels, inputs, in_channels, 3, 3, 2)
    for voxel in range(outputs):
        for tap in range(3):
            block, place = divmod(2 * voxel + tap - 1, inputs)
            blocks[voxel, :, place, :, :, :, 1 + block] = weight[..., tap]
    blocks = blocks.reshape(outputs * out_channels, inputs * in_channels, 3, 3, 2)
    padded = F.pad(x.movedim(-1, 1), [1, 0, 1, 1, 1, 1])  # in this order it is part of the convolution
    return F.conv3d(padded, blocks, stride=(2, 2, 1)).movedim(1, -1)


class _Stage(nn.Module):
    """Light blocks around a gate: (N, X, Y, Z, C) -> the same."""

    def __init__(self, stage: FHEATStage) -> None:
        super().__init__()
        self.blocks = [cast(LightBlock, block) for block in stage.blocks]
        self.gate = compilable(stage.gate)

    def forward(self, x: Tensor) -> Tensor:
        rows = _Rows(x)
        for block in self.blocks:
            x = rows.of(_convolved(x, _with_identity(block.depthwise.weight), padding=1, groups=x.shape[-1]))
            for one in (block.first, block.second):
                y = rows.of(self._fheat(rows, x, one.fheat))
                x = x + rows.norm(y, one.fheat_norm)
                x = x + rows.norm(_mixed(rows, x, one.mixer), one.mixer_norm)
            x = rows.maps(x)
        return x

    def _fheat(self, rows: _Rows, x: Tensor, fheat: FHEAT) -> Tensor:
        channels = rows.shape[-1]
        x = _convolved(rows.maps(x), *_weights(fheat.depthwise), padding=1, groups=channels)
        weight, bias = _weights(fheat.project)
        value = _convolved(x, weight[:channels], bias[:channels])
        pointwise = _convolved(x, weight[channels:], bias[channels:])
        value = rows.norm(rows.of(self._gated(value)), fheat.norm)
        return _convolved(rows.maps(F.silu(rows.of(pointwise)) * value), *_weights(fheat.out))

    def _gated(self, x: Tensor) -> Tensor:
        if isinstance(self.gate, Gate) and x.ndim == self.gate.gate.dims + 2:
            return self.gate.channels_last(x.movedim(-1, 1))
        return cast(Tensor, self.gate(x.movedim(-1, 1))).movedim(1, -1)


def _with_identity(weight: Tensor) -> Tensor:
    """Return weights w' of a depthwise 3x3x3 convolution with x + w * x = w' * x."""
    weight = weight.detach().clone()
    weight[:, :, 1, 1, 1] += 1
    return weight


def _mixed(rows: _Rows, x: Tensor, mixer: nn.Module) -> Tensor:
    """Return what KAN3D or its GELU control makes of rows."""
    layers = list(cast(nn.Sequential, mixer))
    weight, bias = _weights(cast(nn.Conv3d, layers[-3]))
    if isinstance(layers[0], OneGroupNorm):
        norm = layers[0]
        x = rows.normed(x, norm.eps)
        bias = bias + weight.flatten(1) @ norm.bias.detach()
        weight = weight * norm.weight.detach()[:, None, None, None]
    x = _convolved(rows.maps(x), weight, bias)
    wide = _Rows(x)
    x = wide.of(x)
    x = _rational(wide, x, layers[-2]) if isinstance(layers[-2], Rational) else F.gelu(x)
    return rows.of(_convolved(wide.maps(x), *_weights(cast(nn.Conv3d, layers[-1]))))


def _rational(rows: _Rows, x: Tensor, activation: Rational) -> Tensor:
    a: list[float] = activation.numerator.tolist()
    b = [rows.each(value) for value in activation.denominator.detach()[activation.group].t()]
    above = x * a[5] + a[4]
    for power in (3, 2, 1, 0):
        above = above * x + a[power]
    below = b[3] * x + b[2]
    for power in (1, 0):
        below = below * x + b[power]
    return above / ((below * x).abs() + 1.0)


class _Down(nn.Module):
    """(N, X, Y, Z, in) -> (N, X/2, Y/2, Z/2, out)."""

    def __init__(self, down: Down) -> None:
        super().__init__()
        self.conv, self.norm = cast(PatchConv3d, down[0]), cast(OneGroupNorm, down[1])
        self.excitation = cast(SqueezeExcitation, down[2])

    def forward(self, x: Tensor) -> Tensor:
        x = _convolved(x, *_weights(self.conv), stride=2)
        rows = _Rows(x)
        return rows.maps(_excited(rows, rows.norm(rows.of(x), self.norm), self.excitation))


class _Up(nn.Module):
    """(N, X, Y, Z, in) and a skip (N, 2X, 2Y, 2Z, out) -> their sum behind a transposed convolution."""

    def __init__(self, up: Up) -> None:
        super().__init__()
        self.spread, self.norm = _Spread(cast(PatchTransposed3d, up[0])), cast(OneGroupNorm, up[1])
        self.excitation = cast(SqueezeExcitation, up[2])

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.spread(x)
        rows = _Rows(x)
        x = _excited(rows, rows.norm(rows.of(x), self.norm), self.excitation)
        return rows.maps(x + rows.of(skip))


def _excited(rows: _Rows, x: Tensor, excitation: SqueezeExcitation) -> Tensor:
    mean = x.reshape(rows.row[0], -1, rows.shape[-1]).mean(dim=1, keepdim=True)
    return x * rows.each(excitation.excite(F.relu(excitation.squeeze(mean))).sigmoid())


class _Spread(nn.Module):
    """A transposed convolution without overlap: (N, X, Y, Z, in) -> (N, kX, kY, kZ, out).

    It is a 1x1x1 convolution whose channels are put side by side; those of neighbours along Z are so already.
    """

    def __init__(self, conv: nn.ConvTranspose3d) -> None:
        super().__init__()
        self.side, self.channels = conv.kernel_size[0], conv.out_channels
        weight, bias = _weights(conv)
        self.weight = weight.permute(2, 3, 4, 1, 0).reshape(-1, conv.in_channels, 1, 1, 1)
        self.bias = bias.repeat(self.side**3)

    def forward(self, x: Tensor) -> Tensor:
        side, (samples, *grid, _) = self.side, x.shape
        a, b, c = grid
        y = _convolved(x, self.weight, self.bias).reshape(samples, a, b, c, side, side, side * self.channels)
        y = y.permute(0, 1, 4, 2, 5, 3, 6)
        return y.reshape(samples, side * a, side * b, side * c, self.channels)
