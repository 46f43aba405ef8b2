"""Virtual adversarial training: the prediction should not change along the direction in which it changes most.

After Miyato et al., 2018, with the Dice distance of SS-Net instead of a divergence.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fheat.system import processes


def dice_distance(one: Tensor, other: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return 1 - (2 sum pq + e) / (sum p + sum q + e), sums over all classes and voxels of the batch of all processes.

    p and q are probabilities, (B, K, X, Y, Z). It is 0 for equal predictions that are certain, and larger otherwise.
    """
    group = processes.current()
    overlap, mass = group.sum((one * other).sum()), group.sum(one.sum() + other.sum())
    return 1 - (2 * overlap + epsilon) / (mass + epsilon)


def smoothness_loss(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    clean: Tensor,
    start: Tensor,
    *,
    probe: float,
    radius: float,
    weights: Iterable[nn.Parameter] = (),
) -> Tensor:
    """Return the distance of the prediction on perturbed images from `clean`, the constant prediction on the images.

    The perturbation of each image has L2 norm `radius`. Its direction is the gradient of the distance with respect to
    the perturbation at `probe` times the direction of `start`: one step of the power method. Shapes: images and start
    (B, C, X, Y, Z), clean and what `predict` returns (B, K, X, Y, Z). With a radius of 0 nothing is perturbed.
    `weights` are those of the predicting network: no gradients of them are computed on the way to the direction.
    """
    direction = unit(start).requires_grad_()
    with _constant(weights):
        distance = dice_distance(predict(images + probe * direction), clean)
    with torch.autocast(images.device.type, enabled=False):  # as for every other backward pass
        (gradient,) = torch.autograd.grad(distance, direction)
    return dice_distance(predict(images + radius * unit(gradient)), clean)


@contextmanager
def _constant(weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within the block nothing is learned about these weights."""
    learned = [weight for weight in weights if weight.requires_grad]
    for weight in learned:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learned:
            weight.requires_grad_(True)


def unit(images: Tensor) -> Tensor:
    """Scale every image (B, ...) to L2 norm 1; one that is 0 stays 0."""
    flat = images.detach().flatten(1)
    largest = flat.abs().amax(dim=1, keepdim=True)
    flat = flat / torch.where(largest > 0, largest, 1.0)  # whose squares can neither vanish nor overflow
    length = flat.norm(dim=1, keepdim=True)
    return (flat / torch.where(length > 0, length, 1.0)).view_as(images)


def uniform_noise(images: Tensor) -> Tensor:
    """Draw noise, uniform in [-0.5, 0.5), like the images and for those of all processes together."""
    group = processes.current()
    shape = group.size * len(images), *images.shape[1:]
    return group.rows(torch.rand(shape, dtype=images.dtype, device=images.device)) - 0.5


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Within the block batch norms use the statistics of the batch and leave their running statistics as they are."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
