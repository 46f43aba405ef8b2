"""Times of forward passes: a gate with each algorithm of its transform, networks on a window, and growth with size.

Growth is the exponent of a power law, or the ratio of times where a size doubles.
"""

import math
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from fheat.bench.plan import Networks, in_its_way
from fheat.bench.timing import Candidate, Timer, ratios
from fheat.gates.cost import cost
from fheat.gates.dry_run import gate_calls
from fheat.inference.windows import Triple
from fheat.networks.registry import create_model
from fheat.ops.heat import FractionalHeat
from fheat.system.text import grid_name

GATED_NETWORKS: Final = ("fheat_seg", "fheat_seg_l")
"""Networks whose grids a gate is timed on."""
PATCHES: Final[tuple[Triple, ...]] = ((112, 112, 80), (96, 96, 96))
TRANSFORMS: Final = ("product", "auto", "split", "fft")
"""Algorithms of the cosine transform; times are divided by that of the first."""
GATE_GRID: Triple = (28, 28, 20)
"""Grid of the last gate of FHEAT-Seg, on which a gate is timed for growing numbers of channels."""


def operator_times(timer: Timer, patches: tuple[Triple, ...] = PATCHES, batch: int = 1) -> dict[str, Any]:
    """Return times of one gate on random input, forward alone and with backward; ratios are to `product`."""
    torch.manual_seed(timer.seed)
    rows = []
    for (channels, grid), where in gate_grids(patches).items():
        x = torch.randn(batch, channels, *grid, device=timer.device)
        gates = {transform: FractionalHeat(transform=transform).to(timer.device) for transform in TRANSFORMS}
        forward = timer.times({transform: timer.forward(gate, x) for transform, gate in gates.items()})
        both = timer.times({transform: _with_backward(gate, x) for transform, gate in gates.items()})
        rows.append(
            {
                "where": where,
                "channels": channels,
                "grid": grid_name(grid),
                "forward": {"milliseconds": forward, "ratio": ratios(forward)},
                "with_backward": {"milliseconds": both, "ratio": ratios(both)},
            }
        )
    return {"batch": batch, "unit": "milliseconds of one gate", "gates": rows}


def gate_grids(patches: tuple[Triple, ...]) -> dict[tuple[int, tuple[int, ...]], list[str]]:
    """Return the gates of the networks on these patches, grouped by (number of channels, grid) of their input."""
    grids: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name in GATED_NETWORKS:
        for patch in patches:
            inputs = (torch.empty(1, 1, *patch, device="meta"),)
            for site, calls in gate_calls(create_model(name, patch_size=patch), inputs).items():
                grids.setdefault((calls[0].channels, calls[0].grid), []).append(f"{name} {grid_name(patch)} {site}")
    return grids


def window_times(timer: Timer, networks: Networks, patch: Triple, batch: int) -> dict[str, Any]:
    """Return times of one forward pass of every network, its parameters and cost; ratios are to the first network."""
    x = _input(timer, patch, batch)
    runs = {name: in_its_way(name, timer.forward(network, x)) for name, network in networks.built.items()}
    times = timer.times(runs, warm_up=1)
    costs = {name: cost(network, (1, 1, *patch)) for name, network in networks.built.items()}
    return {
        "patch": grid_name(patch),
        "batch": batch,
        "unit": "milliseconds of one forward pass",
        "milliseconds": times,
        "ratio": ratios(times),
        "parameters": {name: counted.parameters for name, counted in costs.items()},
        "macs": {name: counted.macs for name, counted in costs.items()},
    }


def size_times(timer: Timer, networks: Networks, patches: Sequence[Triple], batch: int) -> dict[str, Any]:
    """Return times on windows of growing size, all measured in one run, and p of time ~ voxels^p for each network.

    `macs` has the multiply-adds of one window for each network, in the order of the sizes.
    """
    tensors = [_input(timer, patch, batch) for patch in patches]
    times = _times_by_size(timer, networks, {grid_name(patch): x for patch, x in zip(patches, tensors, strict=True)})
    voxels = [prod(patch) for patch in patches]
    return {
        "patches": [grid_name(patch) for patch in patches],
        "voxels": voxels,
        "batch": batch,
        "macs": {
            name: [cost(network, (1, 1, *patch)).macs for patch in patches] for name, network in networks.built.items()
        },
        "milliseconds": times,
        "exponent": {name: exponent(voxels, values) for name, values in times.items()},
    }


def batch_times(timer: Timer, networks: Networks, patch: Triple, batches: Sequence[int]) -> dict[str, Any]:
    """Return times on batches of growing size, all measured in one run, and the ratio for each doubling."""
    tensors = [_input(timer, patch, batch) for batch in batches]
    times = _times_by_size(timer, networks, {str(batch): x for batch, x in zip(batches, tensors, strict=True)})
    return {
        "patch": grid_name(patch),
        "batches": list(batches),
        "milliseconds": times,
        "doubling": {name: doublings(batches, values) for name, values in times.items()},
    }


def growth_over_channels(timer: Timer, channels: tuple[int, ...], batch: int) -> dict[str, Any]:
    """Return times of one gate for growing numbers of channels, and p of time ~ channels^p."""
    times = list(channel_times(timer, channels, GATE_GRID, batch).values())
    return {
        "grid": grid_name(GATE_GRID),
        "batch": batch,
        "channels": list(channels),
        "milliseconds": times,
        "exponent": exponent(channels, times),
    }


def channel_times(timer: Timer, channels: tuple[int, ...], grid: Triple, batch: int) -> dict[str, float]:
    """Return the milliseconds of one gate on one grid, by its number of channels."""
    torch.manual_seed(timer.seed)
    gate = FractionalHeat().to(timer.device)
    tensors = {str(count): torch.randn(batch, count, *grid, device=timer.device) for count in channels}
    return timer.times({count: timer.forward(gate, x) for count, x in tensors.items()})


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return p of time ~ size^p, by least squares on the logarithms; linear growth has p = 1."""
    if len(sizes) != len(times) or len(set(sizes)) < 2:
        raise ValueError(f"{len(sizes)} sizes and {len(times)} times: give two or more different sizes, one time each")
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)


def doublings(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """Return time(2 n) / time(n) wherever both were measured, named `n to 2n`; linear growth has 2."""
    by_size = dict(zip(sizes, times, strict=True))
    return {f"{size} to {2 * size}": by_size[2 * size] / by_size[size] for size in sizes if 2 * size in by_size}


def _times_by_size(timer: Timer, networks: Networks, inputs: dict[str, Tensor]) -> dict[str, list[float]]:
    candidates: dict[str, Candidate] = {
        f"{name} on {size}": in_its_way(name, timer.forward(network, x))
        for name, network in networks.built.items()
        for size, x in inputs.items()
    }
    times = timer.times(candidates, warm_up=1)
    return {name: [times[f"{name} on {size}"] for size in inputs] for name in networks.built}


def _input(timer: Timer, patch: Triple, batch: int) -> Tensor:
    torch.manual_seed(timer.seed)
    return torch.randn(batch, 1, *patch, device=timer.device)


def _with_backward(gate: FractionalHeat, x: torch.Tensor) -> Candidate:
    def run() -> None:
        gate(x.clone().requires_grad_()).sum().backward()

    return run
