"""The same network in operations that CPU compilers fuse, which is what a runtime compiles."""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.convolutions import PatchTransposed3d, Pointwise3d
from fheat.nn.fheat import FHEAT
from fheat.nn.layers import OneGroupNorm, has_hooks, untouched
from fheat.ops.dct import dct_matrix
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.heat import FractionalHeat
from fheat.ops.rational import Rational
from fheat.ops.resolvent import TikhonovResolvent
from fheat.ops.stochastic_depth import StochasticDepthHeat


def compilable(network: nn.Module) -> nn.Module:
    """Return a copy for inference that computes what any network does, up to rounding.

    Norms, rational activations, gates and transposed convolutions that do not overlap are written anew; everything
    else stays. A module with hooks, or of a type derived from these, stays too.
    """
    return _rewritten(copy.deepcopy(network), _FORMS).eval()


def with_precise_norms(network: nn.Module) -> nn.Module | None:
    """Return what `compilable` does, with instance norms over rows of memory; None where a network has none.

    Where the voxels of one channel lie apart, OpenVINO adds them up one by one in float32. Over a million voxels with a
    margin of zeros, networks come out off by a thousandth of their largest output. Rows are added up in parts, which
    takes longer.
    """
    if not any(type(module) is nn.InstanceNorm3d for module in network.modules()):
        return None
    return _rewritten(copy.deepcopy(network), {**_FORMS, nn.InstanceNorm3d: _instance_norm}).eval()


def _rewritten(module: nn.Module, forms: Mapping[type[nn.Module], Callable[[Any], nn.Module]]) -> nn.Module:
    for name, child in list(module.named_children()):
        setattr(module, name, _rewritten(child, forms))
    form = forms.get(type(module))
    if form is None or has_hooks(module):
        return module
    return form(module)


class _Norm(nn.Module):
    """One-group norm as a layer norm over channels and grid: one operation that keeps the layout."""

    def __init__(self, norm: OneGroupNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight.detach(), norm.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        return F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight.view(shape) + self.bias.view(shape)

    def channels_last(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight + self.bias


class _InstanceNorm(nn.Module):
    """Instance norm as a layer norm of one row for each channel of each sample."""

    def __init__(self, norm: nn.InstanceNorm3d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2)
        y = F.layer_norm(rows, rows.shape[2:], eps=self.norm.eps).reshape(x.shape)
        if not self.norm.affine:
            return y
        shape = (-1, *[1] * (x.ndim - 2))
        return y * self.norm.weight.view(shape) + self.norm.bias.view(shape)


class _Rational(nn.Module):
    """The activation with numbers in place of scalar tensors, and `abs`, whose gradient does not matter here."""

    def __init__(self, rational: Rational) -> None:
        super().__init__()
        self.above: list[float] = rational.numerator.tolist()
        self.below = rational.denominator.detach()[rational.group].t().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        return quotient(x, self.above, list(self.below.view(4, -1, *[1] * (x.ndim - 2))))


def quotient(x: Tensor, above: Sequence[float], below: Sequence[Tensor]) -> Tensor:
    """Return `fheat.ops.rational.rational` of numbers above and of tensors below, for inference."""
    numerator = x * above[5] + above[4]
    for power in (3, 2, 1, 0):
        numerator = numerator * x + above[power]
    denominator = below[3] * x + below[2]
    for power in (1, 0):
        denominator = denominator * x + below[power]
    return numerator / ((denominator * x).abs() + 1.0)


class _FHEAT(nn.Module):
    """FHEAT whose projection is two convolutions: halves of one output would have to be copied apart.

    The norm behind an open gate keeps the gate's layout: a compiler that has to change it in between copies twice.
    """

    def __init__(self, fheat: FHEAT) -> None:
        super().__init__()
        self.depthwise, self.norm, self.out = fheat.depthwise, fheat.norm, fheat.out
        self.value, self.pointwise = (_half(fheat.project, part) for part in range(2))

    def forward(self, x: Tensor, gate: nn.Module) -> Tensor:
        x = self.depthwise(x)
        value, pointwise = self.value(x), F.silu(self.pointwise(x))
        if isinstance(gate, Gate) and isinstance(self.norm, _Norm) and x.ndim == gate.gate.dims + 2:
            value = first(self.norm.channels_last(gate.channels_last(value)), gate.gate.dims)
        else:
            value = self.norm(gate(value))
        mixed: Tensor = self.out(pointwise * value)
        return mixed


class Gate(nn.Module):
    """An open gate by matrix products with the channels last: the layout that compiled convolutions have anyway.

    Along the last axis of the grid, transform, multiplier and inverse are one product with a matrix of their own for
    every frequency of the other axes, C^T diag(m) C: five products in 3D instead of six and a pass.
    """

    def __init__(self, gate: FractionalHeat) -> None:
        super().__init__()
        self.gate = gate
        self._tables: dict[tuple[int, ...], tuple[Tensor, list[tuple[int, Tensor]]]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Take (N, C, *grid) and return the same."""
        return first(self.channels_last(x), self.gate.dims)

    def channels_last(self, x: Tensor) -> Tensor:
        """Take (N, C, *grid) and return (N, *grid, C)."""
        dims = self.gate.dims
        x = last(x, dims)
        middle, outer = self._constants(tuple(map(int, x.shape[-dims - 1 : -1])))
        for axis, matrix in outer:
            x = _along(matrix, x, axis)
        x = middle @ x
        for axis, matrix in outer:
            x = _along(matrix.t(), x, axis)
        return x

    def _constants(self, grid: tuple[int, ...]) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """Return the matrices of the last axis, (*grid[:-1], Z, Z), and axis and matrix of the others."""
        if grid not in self._tables:
            multiplier = self.gate.multiplier(grid).detach()
            tables = [torch.from_numpy(dct_matrix(length)) for length in grid]
            last = tables.pop()
            middle = last.t() @ (multiplier.double()[..., None] * last)
            outer = [(axis - len(grid) - 1, table.to(multiplier.dtype)) for axis, table in enumerate(tables)]
            self._tables[grid] = middle.to(multiplier.dtype), outer
        return self._tables[grid]


class Spread(nn.Module):
    """A transposed convolution without overlap as a 1x1x1 convolution whose channels are put side by side."""

    def __init__(self, conv: nn.ConvTranspose3d) -> None:
        super().__init__()
        self.kernel = conv.kernel_size
        self.channels = conv.out_channels
        self.weight = conv.weight.detach().permute(2, 3, 4, 1, 0).reshape(-1, conv.in_channels, 1, 1, 1)
        self.bias = None if conv.bias is None else conv.bias.detach().repeat(prod(self.kernel))

    def forward(self, x: Tensor) -> Tensor:
        """Take (N, in, X, Y, Z) and return (N, out, kX, kY, kZ)."""
        batch, grid = x.shape[0], x.shape[2:]
        y = F.conv3d(x, self.weight, self.bias).reshape(batch, *self.kernel, self.channels, *grid)
        y = y.permute(0, 4, *chain.from_iterable((5 + axis, 1 + axis) for axis in range(3)))
        return y.reshape(batch, self.channels, *(k * n for k, n in zip(self.kernel, grid, strict=True)))

    def channels_last(self, x: Tensor, samples: int, grid: Sequence[int]) -> Tensor:
        """Take (N, X, Y, Z, in) and return (N, kX, kY, kZ, out); neighbours along Z are side by side already."""
        a, b, c = self.kernel
        y = last(F.conv3d(first(x), self.weight, self.bias))
        y = y.reshape(samples, *grid, a, b, c * self.channels).permute(0, 1, 4, 2, 5, 3, 6)
        return y.reshape(samples, *(k * n for k, n in zip(self.kernel, grid, strict=True)), self.channels)


def first(x: Tensor, dims: int = 3) -> Tensor:
    """Return maps (..., *grid, C) as (..., C, *grid); `movedim` would be twenty operations to OpenVINO."""
    batch = x.ndim - dims - 1
    return x.permute(*range(batch), x.ndim - 1, *range(batch, x.ndim - 1))


def last(x: Tensor, dims: int = 3) -> Tensor:
    """Return maps (..., C, *grid) as (..., *grid, C)."""
    batch = x.ndim - dims - 1
    return x.permute(*range(batch), *range(batch + 1, x.ndim), batch)


def _half(conv: nn.Conv3d, part: int) -> nn.Conv3d:
    """Return a convolution that gives the first or second half of the output channels."""
    half = copy.copy(conv)
    half._parameters = {
        name: None if value is None else nn.Parameter(value.detach().chunk(2)[part].clone())
        for name, value in conv._parameters.items()
    }
    half.out_channels = conv.out_channels // 2
    return half


def _along(matrix: Tensor, x: Tensor, axis: int) -> Tensor:
    """Apply a matrix along one axis of a contiguous tensor, `axis` counted from the end and not the last."""
    return (matrix @ x.reshape(*x.shape[: axis + 1], prod(x.shape[axis + 1 :]))).reshape(x.shape)


def _fheat(module: FHEAT) -> nn.Module:
    return _FHEAT(module) if untouched(module.project, Pointwise3d) else module


def _instance_norm(module: nn.InstanceNorm3d) -> nn.Module:
    return module if module.track_running_stats else _InstanceNorm(module)


def _gate(module: FractionalHeat) -> nn.Module:
    return module if module.closed else Gate(module)


def _spread(module: nn.ConvTranspose3d) -> nn.Module:
    apart = module.kernel_size == module.stride and module.groups == 1
    plain = not any((*module.padding, *module.output_padding)) and set(module.dilation) == {1}
    return Spread(module) if apart and plain else module


_FORMS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    OneGroupNorm: _Norm,
    Rational: _Rational,
    FHEAT: _fheat,
    FractionalHeat: _gate,
    TikhonovResolvent: _gate,
    HardConcreteHeat: _gate,
    StochasticDepthHeat: _gate,
    nn.ConvTranspose3d: _spread,
    PatchTransposed3d: _spread,
}
