"""Finding the stage of an encoder that works on a given grid, in any network, by one pass with hooks."""

import math
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor, nn

SIDE = 64
"""Number of voxels along each axis of the pass; a power of two, so that no padding blurs how often it is halved."""


class Stage(NamedTuple):
    """A module of a network and the shape of what it returns, (N, channels, *grid), for crops of 64^3 voxels."""

    path: str
    module: nn.Module
    channels: int
    grid: tuple[int, ...]


def encoder_stage(network: nn.Module, channels: int, halvings: int = 3) -> Stage:
    """Return the stage of the encoder whose grid is halved nearest to so many times; of two equally near the finer.

    It is the last module that returns this grid before the network first reaches its coarsest one, so its output is
    what enters the next stage and what a skip carries. Where the coarsest grid is itself the nearest, it is the module
    with most parameters that returns it before the grid becomes finer. The network runs once on zeros (1, channels, 64,
    64, 64), in evaluation mode and without gradients, and is left as it was.

    Raises `ValueError` where no module returns a coarser grid than its input has.
    """
    seen = [(level, stage) for stage in _outputs(network, channels) if (level := _halvings(stage.grid))]
    if not seen:
        raise ValueError(f"{type(network).__name__} has no module that returns a coarser grid than its input")
    first = min(range(len(seen)), key=lambda place: math.prod(seen[place][1].grid))  # the first of equal ones
    nearest = min((level for level, _ in seen[: first + 1]), key=lambda level: (abs(level - halvings), level))
    if nearest == seen[first][0]:
        bottom = [stage for _, stage in takewhile(lambda one: one[0] == nearest, seen[first:])]
        return max(reversed(bottom), key=lambda stage: sum(value.numel() for value in stage.module.parameters()))
    return next(stage for level, stage in reversed(seen[:first]) if level == nearest)


def _outputs(network: nn.Module, channels: int) -> list[Stage]:
    """Return the modules that return maps like the images, in the order in which they end; an outer one ends last."""
    seen: list[Stage] = []
    paths = {module: path for path, module in network.named_modules() if path}

    def note(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == images.ndim and len(output) == len(images):
            seen.append(Stage(paths[module], module, output.shape[1], tuple(output.shape[2:])))

    hooks = [module.register_forward_hook(note) for module in paths]
    training = network.training
    images = next(network.parameters()).new_zeros(1, channels, SIDE, SIDE, SIDE)
    try:
        with torch.no_grad():
            network.eval()(images)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    return seen


def _halvings(grid: tuple[int, ...]) -> int:
    """Return how many times the axes were halved, on average and rounded; 0 for what is not a smaller grid.

    Where axes differ by more than one halving, the last one is not an axis of the grid: some networks work with
    channels last.
    """
    halved = [math.log2(SIDE / length) for length in grid]
    return 0 if max(halved) - min(halved) > 1 else max(round(sum(halved) / len(halved)), 0)
