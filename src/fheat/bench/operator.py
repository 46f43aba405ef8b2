"""The gate's transform on every grid of the FHEAT networks: each algorithm against plain matrix products."""

from typing import Any, Final

import torch

from fheat.bench.plan import Conditions, Triple, named
from fheat.bench.timing import Work, ratios
from fheat.gates.sites import visits
from fheat.networks.registry import create_model
from fheat.ops.heat import FractionalHeat

NETWORKS: Final = ("fheat_seg", "fheat_seg_l")
PATCHES: Final[tuple[Triple, ...]] = ((112, 112, 80), (96, 96, 96))
METHODS: Final = ("product", "auto", "split", "fft")


def operator_times(settings: Conditions, patches: tuple[Triple, ...] = PATCHES, batch: int = 1) -> dict[str, Any]:
    """Time one gate on random input, forward and with backward; ratios are to `product`."""
    torch.manual_seed(settings.seed)
    rows = []
    for (channels, grid), where in gate_grids(patches).items():
        x = torch.randn(batch, channels, *grid, device=settings.device)
        gates = {method: FractionalHeat(transform=method).to(settings.device) for method in METHODS}
        forward = settings.times({method: settings.forward(gate, x) for method, gate in gates.items()})
        both = settings.times({method: _with_backward(gate, x) for method, gate in gates.items()})
        rows.append(
            {
                "where": where,
                "channels": channels,
                "grid": named(grid),
                "forward": {"milliseconds": forward, "ratio": ratios(forward)},
                "with_backward": {"milliseconds": both, "ratio": ratios(both)},
            }
        )
    return {"batch": batch, "unit": "milliseconds of one gate", "gates": rows}


def gate_grids(patches: tuple[Triple, ...]) -> dict[tuple[int, tuple[int, ...]], list[str]]:
    """Return (channels, grid) of every gate when the networks see these patches, and which gates those are."""
    found: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name in NETWORKS:
        for patch in patches:
            inputs = (torch.empty(1, 1, *patch, device="meta"),)
            for site, calls in visits(create_model(name, patch_size=patch), inputs).items():
                found.setdefault((calls[0].channels, calls[0].grid), []).append(f"{name} {named(patch)} {site}")
    return found


def channel_times(settings: Conditions, channels: tuple[int, ...], grid: Triple, batch: int) -> dict[str, float]:
    """Return milliseconds of one gate on one grid, by its number of channels."""
    torch.manual_seed(settings.seed)
    gate = FractionalHeat().to(settings.device)
    tensors = {str(count): torch.randn(batch, count, *grid, device=settings.device) for count in channels}
    return settings.times({count: settings.forward(gate, x) for count, x in tensors.items()})


def _with_backward(gate: FractionalHeat, x: torch.Tensor) -> Work:
    def run() -> None:
        gate(x.clone().requires_grad_()).sum().backward()

    return run
