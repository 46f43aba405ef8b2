"""The backward pass of functions of which only the first output has a gradient.

Their forward pass calls `ctx.set_materialize_grads(False)`: autograd would else fill a tensor with zeros for each other
output, in every backward pass.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch.autograd.function import once_differentiable

Gradients = tuple[Tensor | None, ...]


def first_gradient(backward: Callable[[Any, Tensor], Gradients]) -> Callable[..., Gradients]:
    """Return `backward(ctx, gradient)` as autograd calls it, with a gradient for each output.

    Where nothing arrives at the first output, nothing is passed on, and `backward` is not called.
    """

    @wraps(backward)
    def called(ctx: Any, gradient: Tensor | None, *_: None) -> Gradients:
        return (None,) * len(ctx.needs_input_grad) if gradient is None else backward(ctx, gradient)

    made: Callable[..., Gradients] = once_differentiable(called)
    return made
