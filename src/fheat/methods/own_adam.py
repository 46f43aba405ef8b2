"""Adam for what a method trains apart from the network, such as a discriminator. Its state is in buffers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fheat.system import processes


class OwnAdam(nn.Module):
    """p <- p - rate m / (sqrt(v) + epsilon), m and v the moving averages of the gradient and its square, unbiased.

    As `torch.optim.Adam` has it, with a constant rate, but in tensor code and with buffers, so that a graph can capture
    an update and checkpoints of the method hold what it remembers. Gradients are averaged over the processes. An update
    whose gradient is not finite changes nothing.
    """

    first: Tensor
    second: Tensor
    count: Tensor

    def __init__(
        self, parameters: Sequence[Tensor], rate: float, betas: tuple[float, float], epsilon: float = 1e-8
    ) -> None:
        super().__init__()
        self.rate, self.betas, self.epsilon = rate, betas, epsilon
        size = sum(parameter.numel() for parameter in parameters)
        for name in ("first", "second"):
            self.register_buffer(name, parameters[0].new_zeros(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64, device=parameters[0].device))

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update the parameters in place; they come in the order in which the constructor saw them."""
        gradient = processes.current().mean(torch.cat([one.flatten() for one in gradients]))
        usable = torch.isfinite(gradient).all()
        count, (keep, keep_square) = self.count + 1, self.betas
        first = keep * self.first + (1 - keep) * gradient
        second = keep_square * self.second + (1 - keep_square) * gradient.square()
        root = (second / (1 - keep_square**count)).sqrt() + self.epsilon
        change = torch.where(usable, self.rate * (first / (1 - keep**count)) / root, 0.0)
        for remembered, new in ((self.first, first), (self.second, second), (self.count, count)):
            remembered.copy_(torch.where(usable, new, remembered))
        parts = torch.split(change, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.sub_(part.view_as(parameter))
