"""FHEAT-Seg as OpenVINO runs it fastest on a CPU: the same function for windows of one size, channels last throughout.

Convolutions of a CPU compiler want channels last. What is between them is written here on the rows of that memory, so
that no layout is converted on the way, and so that vectors are full where there are few channels:

- a norm over channels and grid together does not care where a channel ends: it is taken over one row;
- scale, shift, activation and sum that follow it are one pass, over rows of several voxels;
- scale and shift before a 1x1x1 convolution are part of its weights, and x + conv(x) is one convolution;
- four voxels of a window with one channel are four channels of a quarter as many voxels.

All weights are made before the forward pass and all shapes are plain numbers, so that a trace of it holds nothing else.
"""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from math import gcd, prod
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.inference.compilable import Gate, Spread, compilable, first, last, quotient
from fheat.models.ensemble import Ensemble
from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.light_u import SITES, WIDTHS
from fheat.nn.blocks import FHEATBlock, FHEATStage, LightBlock
from fheat.nn.convolutions import DepthwiseConv3d, PatchConv3d, PatchTransposed3d, Pointwise3d, SmallConv3d
from fheat.nn.fheat import FHEAT, KAN3D, GELUMixer, Mixer
from fheat.nn.layers import Down, OneGroupNorm, SqueezeExcitation, Stem, Up, has_hooks, untouched
from fheat.ops.rational import Rational

LANES: Final = 16
"""Number of float32 values in the widest vector of a CPU."""
FOLD: Final = 4
"""Number of voxels along the last axis of a window that become channels in the stem, which has two strides of 2."""
Grid = tuple[int, ...]
_KNOWN: Final = (
    *(FHEATSeg, Stem, FHEATStage, LightBlock, FHEATBlock, FHEAT, KAN3D, GELUMixer, Down, Up, SqueezeExcitation),
    *(DepthwiseConv3d, PatchConv3d, PatchTransposed3d, Pointwise3d, SmallConv3d, OneGroupNorm, Rational),
    *(nn.GELU, nn.Linear, nn.Dropout, nn.ModuleList),
)


def channels_last(network: nn.Module) -> nn.Module | None:
    """Return a copy of FHEAT-Seg for inference that computes the same, up to rounding; of an ensemble of them, too.

    None where the network is none, or where a part of it has hooks, was replaced or has other options than it is built
    with: what is written here reads the weights and calls no part but the gates.
    """
    if _is_as_built(network):
        return _ChannelsLast(cast(FHEATSeg, network)).eval()
    if not untouched(network, Ensemble) or has_hooks(cast(Ensemble, network).networks):
        return None
    networks = [channels_last(one) or compilable(one) for one in cast(Ensemble, network).networks]
    if not any(isinstance(one, _ChannelsLast) for one in networks):
        return None
    ensemble = Ensemble(networks, regions=cast(Ensemble, network).regions)
    ensemble.every = cast(Ensemble, network).every
    return ensemble.eval()


def _is_as_built(network: nn.Module) -> bool:
    """Return whether this is FHEAT-Seg of the parts that are known here; what is in the place of gates may be any."""
    stages = [network.get_submodule(site) for site in SITES] if type(network) is FHEATSeg else []
    if not stages or "forward_features" in vars(network) or not all(isinstance(one, FHEATStage) for one in stages):
        return False
    gates = {id(part) for stage in stages for part in cast(FHEATStage, stage).gate.modules()}
    if not all(id(part) in gates or (type(part) in _KNOWN and not has_hooks(part)) for part in network.modules()):
        return False
    return all(repr(part) == built for part, built in _parts(cast(FHEATSeg, network)))


def _parts(network: FHEATSeg) -> Iterable[tuple[nn.Module, str]]:
    """Yield the parts of a network, and what they look like as built: layers, and their options."""
    yield network.stem, _built(Stem, network.in_channels, WIDTHS[0])
    for level, (wide, deep) in enumerate(pairwise(WIDTHS), start=1):
        yield network.get_submodule(f"down{level}"), _built(Down, wide, deep)
        yield network.get_submodule(f"up{level}"), _built(Up, deep, wide)
    yield network.head, _built(PatchTransposed3d, WIDTHS[0], getattr(network.head, "out_channels", 1), 4)
    for site in SITES:
        width = WIDTHS[int(site[-1]) - 1]
        for block in cast(Any, network.get_submodule(site)).blocks:
            mixer = block.first.mixer
            hidden = getattr(mixer[-1], "in_channels", 0) if isinstance(mixer, KAN3D | GELUMixer) else 0
            kind: Mixer = "kan" if isinstance(mixer, KAN3D) else "gelu"
            yield block, _built(LightBlock, width, kind=kind, ratio=max(hidden // width, 1))


@cache
def _built(part: type[nn.Module], /, *given: int, **options: Any) -> str:
    with torch.random.fork_rng(devices=[]):  # on the device `meta`, without numbers, torch takes seconds to load
        return repr(part(*given, **options))


class _Rows:
    """Views of maps (N, X, Y, Z, C) as rows (N, V / r, r C), the least r that fills vectors; V = X Y Z."""

    def __init__(self, samples: int, grid: Grid, channels: int) -> None:
        voxels = prod(grid)
        self.repeats = 1 if voxels % _repeats(channels) else _repeats(channels)
        self.samples, self.channels, self.shape = samples, channels, (samples, *grid, channels)
        self.row = (samples, voxels // self.repeats, self.repeats * channels)

    def of(self, maps: Tensor) -> Tensor:
        return maps.reshape(self.row)

    def maps(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.shape)

    def cut(self, values: Tensor) -> Tensor:
        """Return `_for_rows` of one value per channel for these rows, which may be of one voxel."""
        return values if len(values) == self.row[-1] else values[: self.row[-1]]

    def normed(self, rows: Tensor, eps: float) -> Tensor:
        """Normalise over channels and grid together, without scale and shift."""
        flat = rows.reshape(self.samples, -1)
        return F.layer_norm(flat, (self.row[1] * self.row[2],), eps=eps).reshape(self.row)


def _repeats(channels: int) -> int:
    return LANES // gcd(channels, LANES)


def _for_rows(values: Tensor) -> Tensor:
    """Return one value per channel, (C), as often as rows of them need at most, (r C)."""
    return values.detach().repeat(_repeats(len(values)))


class _Norm:
    """A one-group norm of rows, whose channels come `copies` times, one behind the other."""

    def __init__(self, norm: nn.Module, copies: int = 1) -> None:
        one = cast(OneGroupNorm, norm)
        self.eps = one.eps
        self.weight, self.bias = (_for_rows(value.repeat(copies)) for value in (one.weight, one.bias))

    def __call__(self, rows: _Rows, x: Tensor) -> Tensor:
        return rows.normed(x, self.eps) * rows.cut(self.weight) + rows.cut(self.bias)


class _Conv:
    """A convolution of maps, (N, X, Y, Z, in) -> (N, X', Y', Z', out), with weights (out, in, ...) that are given."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, **options: Any) -> None:
        self.weight, self.bias = weight.detach().clone(), None if bias is None else bias.detach().clone()
        self.options = options

    def __call__(self, x: Tensor) -> Tensor:
        return last(F.conv3d(first(x), self.weight, self.bias, **self.options))


def _conv(conv: nn.Module, **options: Any) -> _Conv:
    one = cast(nn.Conv3d, conv)
    return _Conv(one.weight, one.bias, **options)


_Layers = tuple[tuple[Callable[[Tensor], Tensor], _Norm], ...]
"""Convolutions, and the norm behind each."""


class _ChannelsLast(nn.Module):
    """The forward pass of `LightU`: (N, in, X, Y, Z) -> (N, out, X, Y, Z)."""

    def __init__(self, network: FHEATSeg) -> None:
        super().__init__()
        part = network.get_submodule
        self.stem = _Stem(cast(Stem, network.stem))
        self.stages = nn.ModuleDict({site: _Stage(cast(FHEATStage, part(site))) for site in SITES})
        self.downs = [_Down(cast(Down, part(f"down{level}"))) for level in (1, 2, 3)]
        self.ups = [_Up(cast(Up, part(f"up{level}"))) for level in (1, 2, 3)]
        self.position, self.scramble = network.position.detach().clone(), network.scramble
        self.head = Spread(cast(nn.ConvTranspose3d, network.head))

    def forward(self, x: Tensor) -> Tensor:
        samples, _, *size = map(int, x.shape)
        x = self.stem(x, samples, tuple(size))
        grid = tuple(-(-length // 4) for length in size)
        grids, skips = [], []
        for level, down in enumerate(self.downs, start=1):
            grids.append(grid)
            grid = tuple(length + length % 2 for length in grid)
            x = self.stages[f"enc{level}"](_padded(x, grids[-1]), samples, grid)
            skips.append(x)
            grid = tuple(length // 2 for length in grid)
            x = down(x, samples, grid)
        x = self.stages["enc4"](x, samples, grid)
        x = self.stages["dec4"](self._bottom(x, samples, grid), samples, grid)
        for level, up in reversed(list(enumerate(self.ups, start=1))):
            grid = tuple(2 * length for length in grid)
            x = self.stages[f"dec{level}"](up(x, skips.pop(), samples, grid), samples, grid)
            x, grid = _cropped(x, grid, grids[-1]), grids.pop()
        x = self.head.channels_last(x, samples, grid)
        return first(_cropped(x, tuple(4 * length for length in grid), tuple(size)))

    def _bottom(self, x: Tensor, samples: int, grid: Grid) -> Tensor:
        position = self.position
        if tuple(position.shape[2:]) != grid:
            position = F.interpolate(position, size=grid, mode="trilinear")
        x = x + last(position)
        return last(x.reshape(samples, WIDTHS[-1], *grid)) if self.scramble else x


def _padded(x: Tensor, grid: Grid) -> Tensor:
    extra = [length % 2 for length in reversed(grid)]
    return F.pad(x, [0, 0, *(planes for behind in extra for planes in (0, behind))]) if any(extra) else x


def _cropped(x: Tensor, grid: Grid, to: Grid) -> Tensor:
    return x if grid == to else x[:, : to[0], : to[1], : to[2]]


class _Stem:
    """Three convolutions with norms and GELU: (N, in, X, Y, Z) -> (N, X/4, Y/4, Z/4, C).

    Where there is one channel and Z is a multiple of 4, the first convolution sees every 4 voxels along Z as channels
    of one, and computes 2 voxels; the second sees these as channels and computes one. Along Z both then have a kernel
    of 2 and no stride: the weights are the same numbers at other places, and zeros.
    """

    def __init__(self, stem: Stem) -> None:
        convs = [cast(SmallConv3d, stem[place]) for place in (0, 3, 6)]
        one, two, strided = _Norm(stem[1]), _Norm(stem[4]), {"stride": 2, "padding": 1}
        self.in_channels, self.widths = convs[0].in_channels, [conv.out_channels for conv in convs]
        self.plain: _Layers = (_conv(convs[0], **strided), one), (_conv(convs[1], **strided), two)
        self.folded: _Layers = (_Folded(convs[0], 2), _Norm(stem[1], copies=2)), (_Folded(convs[1], 1), two)
        self.third, self.norm = _conv(convs[2], padding=1), _Norm(stem[7])

    def __call__(self, x: Tensor, samples: int, grid: Grid) -> Tensor:
        narrow, wider, widest = self.widths
        once, twice = (tuple(-(-length // side) for length in grid) for side in (2, 4))
        if self.in_channels == 1 and grid[2] % FOLD == 0:
            x = x.reshape(samples, *grid[:2], grid[2] // FOLD, FOLD)
            layers, rows = self.folded, _Rows(samples, (*once[:2], grid[2] // FOLD), 2 * narrow)
        else:
            x = last(x)
            layers, rows = self.plain, _Rows(samples, once, narrow)
        for (conv, norm), here in zip(layers, (rows, _Rows(samples, twice, wider)), strict=True):
            x = here.maps(F.gelu(norm(here, here.of(conv(x)))))
        rows = _Rows(samples, twice, widest)
        return rows.maps(self.norm(rows, rows.of(self.third(x))))


class _Folded:
    """A 3x3x3 convolution with stride 2 and padding 1 of maps whose last axis is folded into the channels.

    Shapes: (N, X, Y, Z, 2 outputs * in) -> (N, X/2, Y/2, Z, outputs * out). Voxel p of the outputs reads voxels
    2p - 1, 2p and 2p + 1 of the inputs, and the first of voxel 0 is the last of the block before.
    """

    def __init__(self, conv: SmallConv3d, outputs: int) -> None:
        weight, inputs = conv.weight.detach(), 2 * outputs
        out_channels, in_channels = weight.shape[:2]
        blocks = weight.new_zeros(outputs, out_channels, inputs, in_channels, 3, 3, 2)
        for voxel in range(outputs):
            for tap in range(3):
                block, place = divmod(2 * voxel + tap - 1, inputs)
                blocks[voxel, :, place, :, :, :, 1 + block] = weight[..., tap]
        self.weight = blocks.reshape(outputs * out_channels, inputs * in_channels, 3, 3, 2)

    def __call__(self, x: Tensor) -> Tensor:
        padded = F.pad(first(x), [1, 0, 1, 1, 1, 1])  # in this order it is part of the convolution
        return last(F.conv3d(padded, self.weight, stride=(2, 2, 1)))


class _Stage(nn.Module):
    """Light blocks around a gate: (N, X, Y, Z, C) -> the same."""

    def __init__(self, stage: FHEATStage) -> None:
        super().__init__()
        self.gate = compilable(stage.gate)
        self.blocks = [_Block(cast(LightBlock, block)) for block in stage.blocks]

    def forward(self, x: Tensor, samples: int, grid: Grid) -> Tensor:
        for block in self.blocks:
            x = block(x, _Rows(samples, grid, block.channels), self._gated)
        return x

    def _gated(self, x: Tensor) -> Tensor:
        if isinstance(self.gate, Gate) and x.ndim == self.gate.gate.dims + 2:
            return self.gate.channels_last(first(x))
        return last(self.gate(first(x)))


def _second_half(block: FHEATBlock) -> tuple["_Mixer", "_Norm"]:
    """Return the mixing of channels, which a network as built has, and the norm behind it."""
    return _Mixer(block.get_submodule("mixer")), _Norm(block.get_submodule("mixer_norm"))


class _Block:
    """x + DWConv3(x), then two FHEAT blocks: (N, X, Y, Z, C) -> the same."""

    def __init__(self, block: LightBlock) -> None:
        self.channels = block.depthwise.in_channels
        weight = block.depthwise.weight.detach().clone()
        weight[:, :, 1, 1, 1] += 1  # x + w * x = w' * x
        self.depthwise = _Conv(weight, padding=1, groups=self.channels)
        self.halves = [
            (_FHEAT(one.fheat), _Norm(one.fheat_norm), *_second_half(one)) for one in (block.first, block.second)
        ]

    def __call__(self, x: Tensor, rows: _Rows, gated: Callable[[Tensor], Tensor]) -> Tensor:
        x = rows.of(self.depthwise(x))
        for fheat, fheat_norm, mixer, mixer_norm in self.halves:
            x = x + fheat_norm(rows, fheat(rows, x, gated))
            x = x + mixer_norm(rows, mixer(rows, x))
        return rows.maps(x)


class _FHEAT:
    """`FHEAT` on rows, its projection in two halves."""

    def __init__(self, fheat: FHEAT) -> None:
        channels = fheat.out.in_channels
        weight, bias = fheat.project.weight, cast(Tensor, fheat.project.bias)
        self.depthwise = _conv(fheat.depthwise, padding=1, groups=channels)
        self.value, self.pointwise = (_Conv(*half) for half in zip(weight.chunk(2), bias.chunk(2), strict=True))
        self.norm, self.out = _Norm(fheat.norm), _conv(fheat.out)

    def __call__(self, rows: _Rows, x: Tensor, gated: Callable[[Tensor], Tensor]) -> Tensor:
        x = self.depthwise(rows.maps(x))
        value = self.norm(rows, rows.of(gated(self.value(x))))
        return rows.of(self.out(rows.maps(F.silu(rows.of(self.pointwise(x))) * value)))


class _Mixer:
    """KAN3D or its GELU control on rows; scale and shift of its norm are part of the convolution behind it."""

    def __init__(self, mixer: nn.Module) -> None:
        *before, widen, activation, narrow = cast(nn.Sequential, mixer)
        weight, bias = (cast(Tensor, value).detach() for value in (widen.weight, widen.bias))
        self.eps = None
        if before:
            norm = cast(OneGroupNorm, before[0])
            self.eps = norm.eps
            bias = bias + weight.flatten(1) @ norm.bias.detach()
            weight = weight * norm.weight.detach()[:, None, None, None]
        self.widen, self.narrow, self.hidden = _Conv(weight, bias), _conv(narrow), len(bias)
        self.above: list[float] | None = None
        if isinstance(activation, Rational):
            self.above = activation.numerator.tolist()
            self.below = [_for_rows(value) for value in activation.denominator.detach()[activation.group].t()]

    def __call__(self, rows: _Rows, x: Tensor) -> Tensor:
        x = x if self.eps is None else rows.normed(x, self.eps)
        wide = _Rows(rows.samples, rows.shape[1:-1], self.hidden)
        x = wide.of(self.widen(rows.maps(x)))
        x = F.gelu(x) if self.above is None else quotient(x, self.above, [wide.cut(value) for value in self.below])
        return rows.of(self.narrow(wide.maps(x)))


class _Down:
    """(N, 2X, 2Y, 2Z, in) -> (N, X, Y, Z, out)."""

    def __init__(self, down: Down) -> None:
        self.conv, self.norm, self.excitation = _conv(down[0], stride=2), _Norm(down[1]), _Excitation(down[2])

    def __call__(self, x: Tensor, samples: int, grid: Grid) -> Tensor:
        rows = _Rows(samples, grid, self.excitation.channels)
        return rows.maps(self.excitation(rows, self.norm(rows, rows.of(self.conv(x)))))


class _Up:
    """(N, X, Y, Z, in) and a skip (N, 2X, 2Y, 2Z, out) -> their sum behind a transposed convolution."""

    def __init__(self, up: Up) -> None:
        self.spread, self.norm = Spread(cast(PatchTransposed3d, up[0])), _Norm(up[1])
        self.excitation = _Excitation(up[2])

    def __call__(self, x: Tensor, skip: Tensor, samples: int, grid: Grid) -> Tensor:
        rows = _Rows(samples, grid, self.excitation.channels)
        x = self.spread.channels_last(x, samples, tuple(length // 2 for length in grid))
        return rows.maps(self.excitation(rows, self.norm(rows, rows.of(x))) + rows.of(skip))


class _Excitation:
    """Squeeze-excitation of rows."""

    def __init__(self, excitation: nn.Module) -> None:
        one = cast(SqueezeExcitation, excitation)
        self.squeeze, self.excite = one.squeeze.weight.detach().clone(), one.excite.weight.detach().clone()
        self.channels = len(self.excite)

    def __call__(self, rows: _Rows, x: Tensor) -> Tensor:
        mean = x.reshape(rows.samples, -1, self.channels).mean(dim=1, keepdim=True)
        weight = F.linear(F.relu(F.linear(mean, self.squeeze)), self.excite).sigmoid()
        return x * (weight if rows.repeats == 1 else weight.repeat(1, 1, rows.repeats))
