"""The base class of the segmentation networks, and the gates that they are built with."""

import operator
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat
from fheat.ops.parameterisation import theta_of

SMALLEST_AXIS = 32
"""Smallest number of voxels along an axis of an input or a patch."""
LARGEST_AXIS = 2048
"""Largest number of voxels along an axis of a patch."""
MOST_CHANNELS = 4096
"""Largest number of input or output channels."""


class Features(NamedTuple):
    """The outputs of a network for a batch.

    logits: (N, classes, X, Y, Z), on the grid of the input.
    attention: (N, 1, x, y, z), non-negative and detached, on the grid of the block that computes it.
    penultimate: (N, C, x', y', z'), the feature maps that enter the segmentation head.
    """

    logits: Tensor
    attention: Tensor
    penultimate: Tensor


class SegmentationNetwork(nn.Module):
    """Base class: `model(x)` returns logits, `model.forward_features(x)` returns attention and features as well.

    `patch_size` is the grid on which the network is trained; any other grid of at least 32 voxels per axis works too.
    """

    learning_rate: ClassVar[float] = 0.01
    """Learning rate of a run that names none; a network that needs another sets its own."""

    def __init__(self, in_channels: int, out_channels: int, patch_size: Sequence[int]) -> None:
        super().__init__()
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(count, int) or not 1 <= count <= MOST_CHANNELS:
                raise ValueError(
                    f"{name}={count!r} is not a channel count: use a whole number from 1 to {MOST_CHANNELS}"
                )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.patch_size = checked_patch_size(patch_size)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one patch as an input of the network."""
        return (1, self.in_channels, *self.patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, X, Y, Z) to logits (N, out_channels, X, Y, Z)."""
        return self.forward_features(x).logits

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, the attention map and the features that enter the head."""
        raise NotImplementedError

    def _check_input(self, x: Tensor) -> None:
        expected = f"(N, {self.in_channels}, X, Y, Z)"
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}: the network needs a floating tensor, call x.float()")
        if x.ndim != 5 or x.shape[1] != self.in_channels:
            raise ValueError(f"x has shape {tuple(x.shape)}: this network takes {expected}")
        grid = tuple(x.shape[2:])
        if min(grid) < SMALLEST_AXIS:
            padded = tuple(max(length, SMALLEST_AXIS) for length in grid)
            raise ValueError(f"x has grid {grid}, smaller than {SMALLEST_AXIS} on an axis: pad it to {padded}")


def checked_patch_size(patch_size: Sequence[int]) -> tuple[int, int, int]:
    """Return three lengths from 32 to 2048, or raise `ValueError`."""
    try:
        first, second, third = map(operator.index, patch_size)
    except (TypeError, ValueError):
        first = second = third = 0
    if min(first, second, third) < SMALLEST_AXIS or max(first, second, third) > LARGEST_AXIS:
        limits = f"three whole numbers of at least {SMALLEST_AXIS} and at most {LARGEST_AXIS}"
        raise ValueError(f"patch_size={patch_size} is not usable: give {limits}")
    return first, second, third


Gates = Literal["learnable", "closed", "final_only"] | str | Sequence[str]
Alpha = Literal["bounded", "softplus", "fixed"] | float


def build_gates(
    sites: Sequence[str], gates: Gates, alpha: Alpha, initial_alpha: float | None = None
) -> dict[str, FractionalHeat]:
    """Return one gate per site; the last site is the final decoder stage.

    `gates` says which of them learn: `learnable` all of them; `closed` none; `final_only` the last one; a list of sites
    (or their names joined by commas) those. The D of the others is frozen at 0: they are the identity and cost nothing.
    The order starts at `initial_alpha`, or at that of theta = -2 if it is None: 0.3715 for `bounded` and 0.4269 for
    `softplus`, which must be told to start elsewhere to be compared from the same start.
    """
    learnable = learnable_sites(sites, gates)
    theta = initial_theta(alpha, initial_alpha)
    return {
        site: FractionalHeat(alpha=alpha, strength="relu" if site in learnable else 0.0, initial_theta=theta)
        for site in sites
    }


def initial_theta(alpha: Alpha, initial_alpha: float | None) -> float:
    """Return the theta with which an order starts at `initial_alpha`, or -2 if that is None."""
    return -2.0 if initial_alpha is None else theta_of(alpha, initial_alpha)


def learnable_sites(sites: Sequence[str], gates: Gates) -> set[str]:
    """Return the sites whose gates learn, see `build_gates`."""
    presets = {"learnable": set(sites), "closed": set(), "final_only": {sites[-1]}}
    if isinstance(gates, str):
        if gates in presets:
            return presets[gates]
        gates = [name.strip() for name in gates.split(",")]
    if not isinstance(gates, Sequence):
        raise ValueError(f"gates={gates!r} is unknown: use {', '.join(presets)} or a list from {', '.join(sites)}")
    unknown = [str(name) for name in gates if name not in sites]
    if unknown:
        raise ValueError(
            f"gates names unknown sites {', '.join(unknown)}: "
            f"use {', '.join(presets)} or a list from {', '.join(sites)}"
        )
    return set(gates)
