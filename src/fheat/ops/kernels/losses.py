"""Sums over voxels, and pseudo-labels read from the logits of a weak view, by fused kernels.

The plain twins, which define what is computed, are in `fheat.ops.voxel_sums` and in the room `fheat.methods`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    logits, last = dense(logits.detach())
    padded = power_of_two(classes)
    maps = [torch.empty(samples, *grid, dtype=torch.uint8, device=logits.device) for _ in range(4)]
    confidence = torch.empty(threshold.shape, device=logits.device)
    device.read_blocks[samples, confidence[0].numel()](
        logits, threshold.contiguous(), *maps, confidence, *grid,
        K=classes, KP=padded, SIDE=side, LAST=last, BLOCK=min(side**3, 4 * _TILE // padded), num_warps=8,
    )  # fmt: skip
    label, accepted, inside, foreground = maps
    return label, accepted.view(torch.bool), inside.view(torch.bool), foreground, confidence


def pair_sums(logits: Tensor, last: bool, target: Tensor, region: Tensor | None, regions: int) -> Tensor:
    """Return sums (B, R, 9) of two classes: entropy, and overlap, mass, squares and voxels class by class.

    All tensors are dense; `last` says whether classes come last in the memory of logits.
    """
    (samples, voxels), block = (len(logits), target[0].numel()), _TILE // 2
    programs, span = _runs(samples, voxels, block, PAIR_PROGRAMS)
    partial = torch.empty(samples, programs, regions, 9, device=logits.device)
    two_classes.sum_pairs[samples, programs](
        logits, target, _or(region, target), partial, voxels, span,
        R=regions, MASKED=region is not None, LAST=last, BLOCK=block,
    )  # fmt: skip
    return partial.sum(dim=1)


def pair_gradient(slopes: Tensor, logits: Tensor, last: bool, target: Tensor, region: Tensor | None) -> Tensor:
    """Return the gradient of logits from `slopes` (B, R, 7), those of the first seven sums of `pair_sums`."""
    (samples, voxels), block = (len(logits), target[0].numel()), _TILE // 2
    programs, span = _runs(samples, voxels, block, PROGRAMS)
    out = torch.empty_like(logits)
    two_classes.pairs_gradient[samples, programs](
        slopes, logits, target, _or(region, target), out, voxels, span,
        R=slopes.shape[1], MASKED=region is not None, LAST=last, BLOCK=block,
    )  # fmt: skip
    return out


class _VoxelSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, region: Tensor | None, regions: int) -> tuple[Tensor, ...]:
        samples, classes = logits.shape[:2]
        logits, last = dense(logits)
        target, voxels = target.contiguous(), target[0].numel()
        region = None if region is None else region.contiguous()
        shape = {"K": classes, "KP": power_of_two(classes), "R": regions, "MASKED": region is not None, "LAST": last}
        ctx.save_for_backward(logits, target, region)
        ctx.shape, ctx.pairs = shape, classes == 2 and regions <= 2
        if ctx.pairs:
            found = pair_sums(logits, last, target, region, regions)
        else:
            rows = power_of_two(regions)
            block = _TILE // (rows * shape["KP"])
            programs, span = _runs(samples, voxels, block, PROGRAMS)
            partial = torch.empty(samples, programs, regions, 4 * classes + 1, device=logits.device)
            device.sum_voxels[samples, programs](
                logits, target, _or(region, target), partial, voxels, span, **shape, RP=rows, BLOCK=block
            )
            found = partial.sum(dim=1)
        entropy, *sums = torch.split(found, [1, *[classes] * 4], dim=2)
        ctx.mark_non_differentiable(sums[-1])
        return entropy[..., 0], *sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, region = ctx.saved_tensors
        entropy, overlap, mass, squares, _ = gradients
        slopes = torch.cat([entropy[..., None], overlap, mass, squares], dim=2)
        if ctx.pairs:
            return pair_gradient(slopes, logits, ctx.shape["LAST"], target, region), None, None, None
        voxels, block = target[0].numel(), _TILE // ctx.shape["KP"]
        programs, span = _runs(len(logits), voxels, block, PROGRAMS)
        out = torch.empty_like(logits)
        device.sums_gradient[len(logits), programs](
            slopes, logits, target, _or(region, target), out, voxels, span, **ctx.shape, BLOCK=block
        )
        return out, None, None, None


def dense(logits: Tensor) -> tuple[Tensor, bool]:
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
