"""residual + W2 GELU(W1 norm(y) + b1) + b2 by fused kernels: a convolution block behind its depthwise convolution.

The norm is that of each channel. The plain twin is the body of `fheat.networks.large_u.ConvBlock`. Tensors are
(N, X, Y, Z, C), contiguous, results float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import channel_norm, widen
from fheat.ops.kernels.launch import Tiling, add_rows, channel_tiling, operand_type, partials
from fheat.ops.kernels.widen_tiles import Tile, Widths, backward_tile, forward_tile


class WidenWeights(NamedTuple):
    """Parameters of the norm and of the two products, in the shapes of their modules."""

    norm: Tensor
    norm_bias: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    @property
    def widths(self) -> Widths:
        """Numbers of channels before, between and behind the products."""
        return Widths(len(self.norm), len(self.first), len(self.second))


def widened(y: Tensor, residual: Tensor, weights: WidenWeights, eps: float = 1e-5) -> Tensor:
    """Return residual + W2 GELU(W1 norm(y) + b1) + b2; y is (N, X, Y, Z, C), residual and result (N, X, Y, Z, out)."""
    _expect(residual, (*y.shape[:4], len(weights.second)))
    out: Tensor = _Widen.apply(y, residual, None, eps, operand_type(y), *weights)  # type: ignore[no-untyped-call]
    return out


def widened_added_to_skip(y: Tensor, coarse: Tensor, skip: Tensor, weights: WidenWeights, eps: float = 1e-5) -> Tensor:
    """Return skip + pad(spread(coarse) + W2 GELU(W1 norm(y) + b1) + b2): the end of a block that doubles the grid.

    y is (N, 2X - 1, 2Y - 1, 2Z - 1, C). `coarse`, (N, X, Y, Z, out), is spread over every second voxel of that grid,
    and `pad` puts one plane of zeros in front of each axis. `skip` and result are (N, 2X, 2Y, 2Z, out).
    """
    samples, *lengths, _ = coarse.shape
    _expect(coarse, (samples, *lengths, len(weights.second)))
    _expect(y, (samples, *(2 * length - 1 for length in lengths), len(weights.norm)))
    _expect(skip, (samples, *(2 * length for length in lengths), len(weights.second)))
    out: Tensor = _Widen.apply(y, coarse, skip, eps, operand_type(y), *weights)  # type: ignore[no-untyped-call]
    return out


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, residual: Tensor, skip: Tensor | None, eps: float, dot: str, *weights: Tensor
    ) -> Tensor:
        w = WidenWeights(*weights)
        samples, *grid, channels = y.shape
        plan = channel_tiling(samples, grid[0] * grid[1] * grid[2], channels)
        moments = torch.empty(samples, plan.splits, 2, channels, device=y.device)
        out = torch.empty(residual.shape if skip is None else skip.shape, device=y.device)
        channel_norm.find_channel_moments[plan.grid](
            y, moments, plan.voxels, plan.span, **plan.small_shape, SPLITS=plan.splits
        )
        widen.widen_forward[plan.grid](
            y, moments, *w, residual, out if skip is None else skip, out, plan.voxels, plan.span, eps,
            **_tiled(plan, w, forward_tile(w.widths)) | _grid(y, skip), DOT=dot,
        )  # fmt: skip
        if skip is not None:
            out[:, 0], out[:, :, 0], out[:, :, :, 0] = skip[:, 0], skip[:, :, 0], skip[:, :, :, 0]
        ctx.save_for_backward(y, moments, *weights)
        ctx.plan, ctx.eps, ctx.dot, ctx.grid = plan, eps, dot, _grid(y, skip)
        ctx.tile_back = backward_tile(y, w.widths, dot)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, moments, *weights = ctx.saved_tensors
        w, plan, eps = WidenWeights(*weights), ctx.plan, ctx.eps
        sizes = [w.first.numel(), w.second.numel(), len(w.first), len(w.second), plan.channels, plan.channels]
        width = sum(sizes)
        partial, y_gradient, gradient = partials(plan, width, y), torch.empty_like(y), gradient.contiguous()
        widen.widen_backward[plan.grid](
            gradient, y, moments, *w[:5], y_gradient, partial, width, plan.voxels, plan.span, eps,
            **_tiled(plan, w, ctx.tile_back) | ctx.grid, DOT=ctx.dot,
        )  # fmt: skip
        channel_norm.channel_norm_gradient[plan.grid](
            y_gradient, y, moments, w.norm, partial, width, width - 2 * plan.channels, y_gradient, plan.voxels,
            plan.span, eps, **plan.shape, SPLITS=plan.splits,
        )  # fmt: skip
        by_name = dict(zip(
            ("first", "second", "first_bias", "second_bias", "norm", "norm_bias"),
            torch.split(add_rows(partial), sizes), strict=True,
        ))  # fmt: skip
        gradients = (by_name[name].view_as(value) for name, value in zip(WidenWeights._fields, weights, strict=True))
        if ctx.grid["FX"]:
            return y_gradient, gradient[:, 1::2, 1::2, 1::2], gradient, None, None, *gradients
        return y_gradient, gradient, None, None, None, *gradients


def _expect(x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse another shape: kernels do not look where tensors end."""
    if x.shape != shape:
        raise ValueError(f"the size of a tensor beside a convolution block is {tuple(x.shape)}: it must be {shape}")


def _tiled(plan: Tiling, w: WidenWeights, tile: Tile) -> dict[str, int]:
    """Return the constants and options of a launch."""
    constants = plan.shape | w.widths.shape | tile
    return constants | {"TILES": plan.span // constants["BLOCK"], "SPLITS": plan.splits}


def _grid(y: Tensor, skip: Tensor | None) -> dict[str, int]:
    """Return the grid of y as constants where a result is added to `skip`, zeros elsewhere."""
    return dict(zip(("FX", "FY", "FZ"), (0, 0, 0) if skip is None else y.shape[1:4], strict=True))
