r"""Proposition 1 as a tool: whether a site wants global mixing, from one forward and one backward pass.

The loss changes with the diffusion time tau of a gate, at tau = 0, by minus the pairing

.. math::  P = \langle (-\Delta)^{\alpha/4} v, (-\Delta)^{\alpha/4} g \rangle = \sum_k r^\alpha \hat v(k) \hat g(k),

v what enters the gate and g = dL/dz the gradient of what leaves it. P > 0: opening the gate lowers the loss.
"""

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from fheat.gates.spectra import Loss, Sums, measure
from fheat.gates.table import Rows, State, state_of
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from fheat.system.progress import Progress, silent

Others = Literal["closed", "trained"]
Measured = list[dict[str, Sums]]
"""Of each batch, by site."""


@dataclass(frozen=True)
class Finding:
    """What one site wants. Numbers are means over the batches, `error` and `slope_error` their standard errors
    (deviation / sqrt(n)), None for a single batch.

    `pairing` is P = -dL/dtau at tau = 0; exactly 0 where the loss does not reach the gate. `slope` is -dL/dtau at the
    tau that training left: near 0 where an open gate has settled, P again where it is closed and so are the others.
    `attenuation` is |m g^| / |g^| away from the constant mode, over all batches together: what the gate leaves of the
    gradient. It is exactly 1 for a closed gate, and None for an open one that no gradient reaches.
    """

    site: str
    alpha: float
    D: float
    state: State
    pairing: float
    error: float | None
    slope: float
    slope_error: float | None
    attenuation: float | None
    predicted: Literal["open", "closed"]
    """By the sign of the pairing: open where P > 0."""
    agrees: bool | None
    """Whether training did what is predicted; a retired gate is closed. None where P is exactly 0: a grid of one voxel
    has nothing to mix, and a gate that the loss does not reach nothing to gain."""


class Probe(Rows[Finding]):
    """The gates of a network in order; indexable by position or site, printable, exportable."""

    head = ("site", "alpha", "D", "state", "pairing", "error", "slope", "error", "attenuation", "predicted", "agrees")

    @property
    def agreement(self) -> float | None:
        """Fraction of the sites whose pairing has a sign where that predicts what training did; None without any."""
        signs = [row.agrees for row in self.rows if row.agrees is not None]
        return sum(signs) / len(signs) if signs else None

    def cells(self, row: Finding) -> tuple[str, ...]:
        """Return a row as it is printed."""
        numbers = (row.pairing, row.error, row.slope, row.slope_error)
        pairing, error, slope, slope_error = ("-" if value is None else f"{value:.3g}" for value in numbers)
        left = "-" if row.attenuation is None else f"{row.attenuation:.4f}"
        fit = "-" if row.agrees is None else "yes" if row.agrees else "no"
        gate = row.site, f"{row.alpha:.4f}", f"{row.D:.4f}", row.state
        return (*gate, pairing, error, slope, slope_error, left, row.predicted, fit)


def probe(
    model: nn.Module,
    loss_fn: Loss,
    *batches: Any,
    others: Others = "closed",
    progress: Progress = silent,
) -> Probe:
    """Measure for every gate of any network whether the loss wants it open.

    Everything runs on copies, in the mode the network is in: its weights, buffers, gradients and flags stay, and so do
    the states of torch's random generators. All passes over a batch draw the same random numbers. What `loss_fn` keeps
    of its own, such as the buffers of a training method, is its own affair.

    Args:
        model: with `FractionalHeat` modules, on any device; retired and frozen gates are probed too.
        loss_fn: (network, batch) -> scalar tensor. It must use the network it is given, a copy of `model`; gates
            called under `torch.no_grad` do not count.
        batches: whatever `loss_fn` takes. Results are averaged over them.
        others: which network the pairing of an open gate is measured in. `closed`: all gates closed at once, in two
            passes per batch, or in one if no gate is open. `trained`: that gate alone is closed and the others are as
            training left them, which is the network it knew; in one pass per batch and open gate, and one more.
        progress: called with the passes done and their total.

    >>> found = probe(FractionalHeat(dims=1), lambda network, x: network(x).square().mean(), torch.randn(2, 1, 32))
    >>> found["gate"].predicted
    'open'
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    gates = gates_of(model)
    if others not in get_args(Others):
        raise ValueError(f"others={others!r} is unknown: use 'closed' or 'trained'")
    if not gates:
        raise ValueError(f"{type(model).__name__} has no gates to probe: put fheat.FractionalHeat into it")
    if not batches:
        raise ValueError("there is no batch to probe with: give probe(model, loss_fn, batch) at least one")
    now = frozenset(site for site, gate in gates.items() if gate.closed)
    without = {site: frozenset(gates) if others == "closed" else now | {site} for site in gates}
    passes = list(dict.fromkeys([now, *without.values()]))
    found = _measured(model, loss_fn, batches, passes, progress)
    if not any(sums.reached for sites in found[now] for sums in sites.values()):
        raise ValueError("the loss reaches no gate: loss_fn must use the network that it is handed, not another one")

    def sums_of(site: str, closed: frozenset[str]) -> list[Sums]:
        return [sites[site] for sites in found[closed]]

    return Probe(
        [_finding(site, gate, sums_of(site, without[site]), sums_of(site, now)) for site, gate in gates.items()]
    )


def _measured(
    model: nn.Module,
    loss_fn: Loss,
    batches: Sequence[Any],
    passes: Sequence[frozenset[str]],
    progress: Progress,
) -> dict[frozenset[str], Measured]:
    """Run every batch through the network with each of these sets of sites closed."""
    found: dict[frozenset[str], Measured] = {closed: [] for closed in passes}
    # Gates must be called, which fused kernels do not do.
    with torch.inference_mode(False), torch.enable_grad(), kernels.use("never"), _own_numbers(model):
        for batch in batches:
            for closed in passes:
                # The last pass leaves the generators where the next batch begins.
                with nullcontext() if closed == passes[-1] else _own_numbers(model):
                    found[closed].append(measure(_closed(model, closed), loss_fn, batch))
                progress(sum(map(len, found.values())), len(batches) * len(passes))
    return found


@contextmanager
def _own_numbers(model: nn.Module) -> Iterator[None]:
    """Leave torch's random generators, on the host and where the network lies, as they were before the block."""
    devices = {tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices.add(torch.cuda.current_device())
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


def _closed(model: nn.Module, sites: frozenset[str]) -> nn.Module:
    """Return a copy in which the gates of these sites pass their input on, whatever their kind."""
    copied = copy.deepcopy(model)
    for site, gate in gates_of(copied).items():
        if site in sites:
            gate.bypass(gate.alpha.item())
    return copied


def _finding(site: str, gate: FractionalHeat, at_zero: Sequence[Sums], now: Sequence[Sums]) -> Finding:
    if not all(math.isfinite(number) for sums in (*at_zero, *now) for number in (sums.slope, sums.arriving)):
        raise ValueError(f"the gradient at {site} is not finite: probe in float32, or with a smaller loss")
    pairing, error = _mean([sums.slope for sums in at_zero])
    slope, slope_error = _mean([sums.slope for sums in now])
    arriving, leaving = sum(sums.arriving for sums in now), sum(sums.leaving for sums in now)
    state = state_of(gate)
    attenuation = math.sqrt(leaving / arriving) if arriving > 0 else None if state == "open" else 1.0
    predicted: Literal["open", "closed"] = "open" if pairing > 0 else "closed"
    return Finding(
        site=site,
        alpha=gate.alpha.item(),
        D=gate.strength.item(),
        state=state,
        pairing=pairing,
        error=error,
        slope=slope,
        slope_error=slope_error,
        attenuation=attenuation,
        predicted=predicted,
        agrees=None if pairing == 0 else (predicted == "open") == (state == "open"),
    )


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error, None for one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error
