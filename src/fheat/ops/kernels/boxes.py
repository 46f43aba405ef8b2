"""The box of CSE, scored and chosen by two kernels. The plain twins are in `fheat.methods.cse`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fheat.ops.kernels.device import boxes as device


def score_boxes(attention: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the attention (B, 1, x, y, z) in each of 27 boxes, (27,) float32, added up over the batch.

    `weights` are (3, x), (3, y) and (3, z): how much each cell counts in the boxes of each place along an axis.
    """
    scores = torch.empty(27, device=attention.device)
    device.score_boxes[(27,)](
        attention.contiguous(),
        *weights,
        scores,
        attention.shape[:2].numel(),
        *attention.shape[2:],
        BLOCK=4096,
        num_warps=8,
    )
    return scores


def choose_box(scores: Tensor, waits: Tensor) -> Tensor:
    """Return the box i with the largest p_i / w_i, p the softmax of the scores brought to [0, 1], as one int64.

    Scores and waits are (27,). With waits that are drawn from an exponential distribution, p_i is the chance of box i.
    """
    choice = torch.empty((), dtype=torch.int64, device=scores.device)
    device.choose_box[(1,)](scores, waits, choice, BLOCK=32, num_warps=1)
    return choice
