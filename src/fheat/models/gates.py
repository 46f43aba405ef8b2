"""Which gates of a network may learn: the options of the paper's ablations, turned into gates."""

from collections.abc import Sequence
from typing import Literal

from fheat.ops.heat import FractionalHeat

Gates = Literal["learnable", "closed", "final_only"] | str | Sequence[str]
Alpha = Literal["bounded", "softplus", "fixed"] | float


def build_gates(sites: Sequence[str], gates: Gates, alpha: Alpha) -> dict[str, FractionalHeat]:
    """Return one gate per site, the last site being the final decoder stage.

    `learnable`: all; `closed`: none, every D frozen at 0; `final_only`: the last one; a list of sites (or their names
    joined by commas): those. Gates that may not learn are the identity and cost nothing.
    """
    learnable = _learnable_sites(sites, gates)
    return {site: FractionalHeat(alpha=alpha, strength="relu" if site in learnable else 0.0) for site in sites}


def _learnable_sites(sites: Sequence[str], gates: Gates) -> set[str]:
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
