"""AdamW's update of all parameters as one vector: few launches, where a kernel of torch takes 36 parameters at most."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fheat.ops import kernels
from fheat.ops.kernels.adamw import Vector, update_all


class OneVector:
    """All parameters, in float32 and dense, and the moments of AdamW one after the other, with a learning rate each.

    `moments` are parts of the vector in the shape of each parameter, by their names in `torch.optim.AdamW`. The
    parameters themselves stay where they are: they are copied into the vector, updated there, and copied back.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rates: Sequence[float]) -> None:
        self.parameters = list[Tensor](parameters)
        self.sizes, device = [parameter.numel() for parameter in parameters], parameters[0].device
        values, means, squares = (torch.zeros(sum(self.sizes), device=device) for _ in range(3))
        owner = torch.repeat_interleave(torch.arange(len(rates)), torch.tensor(self.sizes)).to(device, torch.int32)
        steps = torch.zeros(len(rates), device=device)
        self.vector = Vector(values, means, squares, owner, torch.tensor(rates, device=device), steps)
        named = zip(steps, self._parts(means), self._parts(squares), strict=True)
        self.moments = [{"step": step, "exp_avg": mean, "exp_avg_sq": square} for step, mean, square in named]

    def _parts(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, self.sizes)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def update(
        self, gradients: Sequence[Tensor], factor: Tensor, clip: float, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Update with one gradient per parameter; return its norm, and whether it is finite: else nothing changes.

        `options` are those of `torch.optim.AdamW`; learning rates are those of the vector times `factor`.
        """
        together = torch.cat([gradient.reshape(-1) for gradient in gradients])
        norm: Tensor = torch.linalg.vector_norm(together)
        torch.cat([parameter.reshape(-1) for parameter in self.parameters], out=self.vector.values)
        decay, betas, epsilon = options["weight_decay"], options["betas"], options["eps"]
        with kernels.on_device(together):
            update_all(self.vector, together, norm, factor, clip, decay, betas, epsilon)
        torch._foreach_copy_(self.parameters, self._parts(self.vector.values))
        finite = torch.isfinite(norm)
        self.vector.steps.add_(finite)
        return norm, finite
