"""Count multiply-adds the way fvcore does, on torch's own counter.

fvcore's rules: one per multiply-add of convolutions and matrix products (a transposed convolution by its input grid,
which is its true cost), 5 per element of a group, layer or instance norm (4 without scale and shift), 2 per element of
a batch norm in evaluation mode (1 without), nothing for the rest. A test compares the two on every network.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

COUNTER: Final = "fvcore rules (convolutions, matrix products and norms; 1 multiply-add = 1)"

_aten = torch.ops.aten


def count_macs(run: Callable[[], object]) -> int:
    """Return the multiply-adds of everything `run` does."""
    with FlopCounterMode(display=False, custom_mapping=_NORMS) as counter:
        run()
    return int(counter.get_total_flops()) // 2


def parameters(model: nn.Module) -> int:
    """Return the number of scalars in parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


# The counter works in flops, two to a multiply-add.
def _group_norm(x: torch.Size, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * (4 if weight is None else 5)


def _layer_norm(x: torch.Size, shape: Any, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return _group_norm(x, weight)


def _batch_norm(x: torch.Size, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * (1 if weight is None else 2)


_NORMS = {
    _aten.native_group_norm: _group_norm,
    _aten.native_layer_norm: _layer_norm,
    _aten._native_batch_norm_legit: _group_norm,  # what an instance norm becomes
    _aten.native_batch_norm: _batch_norm,
    _aten._native_batch_norm_legit_no_training: _batch_norm,
}
