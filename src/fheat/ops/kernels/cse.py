"""The loss of CSE for two classes, from logits to its gradient in a few kernels.

The plain twins, which define what is computed, are in `fheat.methods.cse` and `fheat.methods.losses`.
"""

from typing import Any

import torch
from torch import Tensor

from fheat.ops.kernels.device import cse as device
from fheat.ops.kernels.first_gradient import first_gradient
from fheat.ops.kernels.launch import power_of_two
from fheat.ops.kernels.losses import dense, pair_gradient, pair_sums

_BLOCK = 1024
"""Number of voxels whose targets a program sets."""


def set_targets(labels: Tensor, mask: Tensor, pseudo: Tensor, label: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets and regions, (3 B, X, Y, Z) uint8, of labelled crops, of strong views and of mixtures.

    Targets are `labels`, `label`, and `labels` where `mask` (X, Y, Z) is set, else `pseudo`; all but the mask are
    (B, X, Y, Z). Regions are 0; 0 where `accepted`, else 255; 0 where the mask is set, else 1.
    """
    count, *grid = labels.shape
    target, region = (torch.empty(3 * count, *grid, dtype=torch.uint8, device=mask.device) for _ in range(2))
    device.set_targets[-(-mask.numel() // _BLOCK), count](
        labels.contiguous(), mask.contiguous().view(torch.uint8), pseudo.contiguous(), label.contiguous(),
        accepted.contiguous().view(torch.uint8), target, region, mask.numel(), BLOCK=_BLOCK,
    )  # fmt: skip
    return target, region


def weighed_losses(
    logits: Tensor, target: Tensor, region: Tensor, weights: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return S + w0 C + w1 M, then S, C, M and the share of accepted voxels; gradients reach logits from the first.

    Shapes: logits (3 B, 2, X, Y, Z), targets and regions (3 B, X, Y, Z) as `set_targets` has them. S is cross-entropy
    plus squared Dice loss of labelled crops, C cross-entropy of strong views per voxel, M the loss of mixtures.
    """
    losses: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    losses = _Losses.apply(logits, target, region, weights)  # type: ignore[no-untyped-call]
    return losses


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, region: Tensor, weights: tuple[float, float]
    ) -> tuple[Tensor, ...]:
        logits, ctx.last = dense(logits)
        sums, crops = pair_sums(logits, ctx.last, target, region, 2), len(logits) // 3
        losses, slopes = torch.empty(5, device=logits.device), torch.empty(3 * crops, 2, 7, device=logits.device)
        device.weigh_sums[(1,)](
            sums, losses, slopes, crops, float(target.numel() // 3), *map(float, weights),
            SHARP=1e-10, SMOOTH=1e-5, PSEUDO=0.5, BLOCK=power_of_two(6 * crops), num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(logits, target, region, slopes)
        total, *others = losses.unbind()
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return total, *others

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, region, slopes = ctx.saved_tensors
        return pair_gradient(gradient * slopes, logits, ctx.last, target, region), None, None, None
