"""The views from which CSE learns, made from drawn numbers by one kernel.

The plain twins, which define what is computed, are in `fheat.methods.views` and `fheat.methods.cse`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fheat.ops.kernels.device import views as device

_BLOCK = 512
"""Number of voxels that a program works on."""


def change_and_mix(
    images: Tensor,
    weak: Tensor,
    bounds: tuple[Tensor, Tensor],
    numbers: tuple[Tensor, Tensor, Tensor, Tensor],
    kept: Tensor,
    choice: Tensor,
    boxes: Sequence[tuple[int, int]],
    levels: tuple[float, float, float],
    labelled: bool,
) -> tuple[Tensor, Tensor]:
    """Return the crops (3 B, C, X, Y, Z) that are learned from, and the mask (X, Y, Z) bool of the mixture.

    The first B crops are `images`, the next the strong view of `weak`, the last are `images` where the mask is set and
    `weak` elsewhere. The strong view is (b^g + d n) m with b = (x - low) / (high - low), at least 0, and m, between 0
    and 1, interpolated from the cells that are kept.

    Args:
        images, weak: (B, C, X, Y, Z).
        bounds: low and high, (B, C).
        numbers: the power g, the noise's strength and chance, each with B elements, and white noise n in the shape of
            `weak`; d is strength times the largest deviation where the chance is below the probability, else 0.
        kept: (B, 1, x, y, z), cells; those above the level of dropped ones are kept.
        choice: one whole number below 27, the place of the box.
        boxes: length and step of the box along each axis.
        levels: largest deviation, probability of noise, largest number of a dropped cell.
        labelled: whether the mask is set inside the box, or else outside.
    """
    (count, channels, *grid), cells, white = weak.shape, kept.shape[2:], numbers[3]
    out = torch.empty(3 * count, channels, *grid, device=weak.device)
    mask = torch.empty(grid, dtype=torch.uint8, device=weak.device)
    lengths, steps = zip(*boxes, strict=True)
    device.change_and_mix[-(-mask.numel() // _BLOCK), count](
        images.contiguous(), weak.contiguous(), *(bound.contiguous() for bound in bounds),
        *(number.contiguous() for number in numbers[:3]), white, kept.contiguous(), choice, out, mask,
        white.stride(0), white.stride(1), *grid, *cells, *lengths, *steps, *levels, labelled,
        C=channels, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out, mask.view(torch.bool)
