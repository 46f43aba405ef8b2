"""How time grows with size: the exponent of a power law, and what a doubling costs."""

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from fheat.bench.networks import Networks
from fheat.bench.operator import channel_times
from fheat.bench.plan import Conditions, Triple, named
from fheat.bench.timing import Work, ratios
from fheat.gates.cost import cost


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return p of time ~ size^p, by least squares on the logarithms: 1 is linear."""
    if len(sizes) != len(times) or len(set(sizes)) < 2:
        raise ValueError(f"{len(sizes)} sizes and {len(times)} times: give two or more different sizes, one time each")
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)


def doublings(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """Return time(2 n) / time(n) wherever both were measured, by the name `n to 2n`: 2 is no gain."""
    by_size = dict(zip(sizes, times, strict=True))
    return {f"{size} to {2 * size}": by_size[2 * size] / by_size[size] for size in sizes if 2 * size in by_size}


GATE_GRID: Triple = (28, 28, 20)
"""Where the last gate of FHEAT-Seg works; its channels are what grows."""


def window_times(settings: Conditions, networks: Networks, patch: Triple, batch: int) -> dict[str, Any]:
    """Time one forward pass of every network; ratios are to the first."""
    x = _input(settings, patch, batch)
    times = settings.times({name: settings.forward(network, x) for name, network in networks.built.items()}, warm_up=1)
    counted = {name: cost(network, (1, 1, *patch)) for name, network in networks.built.items()}
    return {
        "patch": named(patch),
        "batch": batch,
        "unit": "milliseconds of one forward pass",
        "milliseconds": times,
        "ratio": ratios(times),
        "parameters": {name: one.parameters for name, one in counted.items()},
        "macs": {name: one.macs for name, one in counted.items()},
    }


def size_times(settings: Conditions, networks: Networks, patches: Sequence[Triple], batch: int) -> dict[str, Any]:
    """Time windows of growing size, all in one interleaved run, and fit time ~ voxels^p to each network."""
    tensors = [_input(settings, patch, batch) for patch in patches]
    times = _grown(settings, networks, {named(patch): x for patch, x in zip(patches, tensors, strict=True)})
    voxels = [prod(patch) for patch in patches]
    return {
        "patches": [named(patch) for patch in patches],
        "voxels": voxels,
        "batch": batch,
        "milliseconds": times,
        "exponent": {name: exponent(voxels, values) for name, values in times.items()},
    }


def batch_times(settings: Conditions, networks: Networks, patch: Triple, batches: Sequence[int]) -> dict[str, Any]:
    """Time batches of growing size, all in one interleaved run: does doubling one cost less than double?"""
    tensors = [_input(settings, patch, batch) for batch in batches]
    times = _grown(settings, networks, {str(batch): x for batch, x in zip(batches, tensors, strict=True)})
    return {
        "patch": named(patch),
        "batches": list(batches),
        "milliseconds": times,
        "doubling": {name: doublings(batches, values) for name, values in times.items()},
    }


def growth_over_channels(settings: Conditions, channels: tuple[int, ...], batch: int) -> dict[str, Any]:
    """Time one gate over its channels and fit time ~ channels^p."""
    times = list(channel_times(settings, channels, GATE_GRID, batch).values())
    return {
        "grid": named(GATE_GRID),
        "batch": batch,
        "channels": list(channels),
        "milliseconds": times,
        "exponent": exponent(channels, times),
    }


def _grown(settings: Conditions, networks: Networks, inputs: dict[str, Tensor]) -> dict[str, list[float]]:
    candidates: dict[str, Work] = {
        f"{name} on {size}": settings.forward(network, x)
        for name, network in networks.built.items()
        for size, x in inputs.items()
    }
    times = settings.times(candidates, warm_up=1)
    return {name: [times[f"{name} on {size}"] for size in inputs] for name in networks.built}


def _input(settings: Conditions, patch: Triple, batch: int) -> Tensor:
    torch.manual_seed(settings.seed)
    return torch.randn(batch, 1, *patch, device=settings.device)
