"""External perturbations of a run: the only thing that can open a gate that training has closed."""

import torch

from fheat.ops.heat import FractionalHeat


def reopen(gates: dict[str, FractionalHeat], scale: float, seed: int) -> dict[str, float]:
    """Set D = scale |n| at every gate that is closed, n standard normal; return the new strengths by site.

    The draws have a generator of their own, so that the run's random numbers stay what they were. The optimiser keeps
    what it remembers of delta.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = scale * torch.randn(len(gates), generator=generator, dtype=torch.float64).abs()
    opened = {
        site: float(strength)
        for (site, gate), strength in zip(gates.items(), drawn, strict=True)
        if gate.delta is not None and gate.closed
    }
    for site, strength in opened.items():
        gates[site].set_strength(strength)
    return opened
