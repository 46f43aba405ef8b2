"""Sums over voxels, and pseudo-labels read from the logits of a weak view, by fused kernels.

The plain twins, which define what is computed, are in `fheat.ops.voxel_sums` and in the room `fheat.methods`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops import kernels
from fheat.ops.kernels.device import losses as device
from fheat.ops.kernels.device import two_classes
from fheat.ops.kernels.launch import power_of_two

PROGRAMS = 8192
"""Largest number of programs over which the voxels of a batch are divided."""
PAIR_PROGRAMS = 1320
"""The same for sums of two classes, of which a large GPU runs 660 at a time."""
_TILE = 1024
"""Number of elements of a tile, classes and regions included; a program holds four tiles."""


def voxel_sums(logits: Tensor, target: Tensor, region: Tensor | None, regions: int) -> tuple[Tensor, ...]:
    """Return entropy (B, R) and overlap, mass, squares, voxels (B, R, K); gradients reach logits, (B, K, X, Y, Z)."""
    sums: tuple[Tensor, ...] = _VoxelSums.apply(logits, target, region, regions)  # type: ignore[no-untyped-call]
    return sums


def read_weak(logits: Tensor, threshold: Tensor, side: int) -> tuple[Tensor, ...]:
    """Return the pseudo-labels of logits (B, K, X, Y, Z), in blocks of `side` voxels per axis.

    For each voxel (B, X, Y, Z): the most likely class, whether its probability reaches the threshold of its block,
    whether background has a probability of at most one half, and the most likely class other than background. For each
    block, in the shape of `threshold`: the mean of the largest probabilities.
    """
    samples, classes, *grid = logits.shape
    logits, last = _dense(logits.detach())
    padded = power_of_two(classes)
    maps = [torch.empty(samples, *grid, dtype=torch.uint8, device=logits.device) for _ in range(4)]
    confidence = torch.empty(threshold.shape, device=logits.device)
    device.read_blocks[samples, confidence[0].numel()](
        logits, threshold.contiguous(), *maps, confidence, *grid,
        K=classes, KP=padded, SIDE=side, LAST=last, BLOCK=min(side**3, 4 * _TILE // padded), num_warps=8,
    )  # fmt: skip
    label, accepted, inside, foreground = maps
    return label, accepted.view(torch.bool), inside.view(torch.bool), foreground, confidence


class _VoxelSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, region: Tensor | None, regions: int) -> tuple[Tensor, ...]:
        samples, classes = logits.shape[:2]
        logits, last = _dense(logits)
        target, voxels = target.contiguous(), target[0].numel()
        region = None if region is None else region.contiguous()
        ctx.shape = shape = {"R": regions, "MASKED": region is not None, "LAST": last}
        ctx.padded, rows = power_of_two(classes), power_of_two(regions)
        ctx.pairs = kernels.on_trial() and classes == 2 and regions <= 2
        block = _TILE // (2 if ctx.pairs else rows * ctx.padded)
        programs, span = _runs(samples, voxels, block, PAIR_PROGRAMS if ctx.pairs else PROGRAMS)
        partial = torch.empty(samples, programs, regions, 4 * classes + 1, device=logits.device)
        arguments = logits, target, _or(region, target), partial, voxels, span
        if ctx.pairs:
            two_classes.sum_pairs[samples, programs](*arguments, **shape, BLOCK=block)
        else:
            device.sum_voxels[samples, programs](*arguments, **shape, K=classes, KP=ctx.padded, RP=rows, BLOCK=block)
        ctx.save_for_backward(logits, target, region)
        entropy, *sums = torch.split(partial.sum(dim=1), [1, *[classes] * 4], dim=2)
        ctx.mark_non_differentiable(sums[-1])
        return entropy[..., 0], *sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, region = ctx.saved_tensors
        entropy, overlap, mass, squares, _ = gradients
        voxels, block = target[0].numel(), _TILE // ctx.padded
        programs, span = _runs(len(logits), voxels, block, PROGRAMS)
        out = torch.empty_like(logits)
        slopes = torch.cat([entropy[..., None], overlap, mass, squares], dim=2)
        arguments = slopes, logits, target, _or(region, target), out, voxels, span
        if ctx.pairs:
            two_classes.pairs_gradient[len(logits), programs](*arguments, **ctx.shape, BLOCK=block)
        else:
            classes = {"K": logits.shape[1], "KP": ctx.padded}
            device.sums_gradient[len(logits), programs](*arguments, **ctx.shape, **classes, BLOCK=block)
        return out, None, None, None


def _dense(logits: Tensor) -> tuple[Tensor, bool]:
    """Return logits in one of the two memory orders that kernels read, and whether classes come last in it."""
    if logits.is_contiguous():
        return logits, False
    if logits.is_contiguous(memory_format=torch.channels_last_3d):
        return logits, True
    return logits.contiguous(), False


def _runs(samples: int, voxels: int, block: int, most: int) -> tuple[int, int]:
    """Return the number of programs per sample and of voxels per program, which fix the order of the sums.

    There are about `most` programs in all.
    """
    tiles = -(-voxels // block)
    walks = -(-tiles * samples // most)
    return -(-tiles // walks), walks * block


def _or(region: Tensor | None, other: Tensor) -> Tensor:
    """Return the region, or where there is none another tensor as an argument that is not read."""
    return other if region is None else region
