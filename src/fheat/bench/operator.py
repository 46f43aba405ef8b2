"""The gate on every grid of the FHEAT networks: each algorithm of its transform against plain matrix products."""

from typing import Any, Final

import torch

from fheat.bench.plan import Triple
from fheat.bench.timing import Candidate, Timer, ratios
from fheat.gates.dry_run import gate_calls
from fheat.networks.registry import create_model
from fheat.ops.heat import FractionalHeat
from fheat.system.text import grid_name

NETWORKS: Final = ("fheat_seg", "fheat_seg_l")
PATCHES: Final[tuple[Triple, ...]] = ((112, 112, 80), (96, 96, 96))
TRANSFORMS: Final = ("product", "auto", "split", "fft")
"""Algorithms of the cosine transform; times are divided by that of the first."""


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
    for name in NETWORKS:
        for patch in patches:
            inputs = (torch.empty(1, 1, *patch, device="meta"),)
            for site, calls in gate_calls(create_model(name, patch_size=patch), inputs).items():
                grids.setdefault((calls[0].channels, calls[0].grid), []).append(f"{name} {grid_name(patch)} {site}")
    return grids


def channel_times(timer: Timer, channels: tuple[int, ...], grid: Triple, batch: int) -> dict[str, float]:
    """Return the milliseconds of one gate on one grid, by its number of channels."""
    torch.manual_seed(timer.seed)
    gate = FractionalHeat().to(timer.device)
    tensors = {str(count): torch.randn(batch, count, *grid, device=timer.device) for count in channels}
    return timer.times({count: timer.forward(gate, x) for count, x in tensors.items()})


def _with_backward(gate: FractionalHeat, x: torch.Tensor) -> Candidate:
    def run() -> None:
        gate(x.clone().requires_grad_()).sum().backward()

    return run
