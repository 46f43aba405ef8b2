r"""Proposition 1 as a tool: does opening a gate lower the loss? One forward and one backward pass answer it.

At tau = 0 the gradient of the loss with respect to the diffusion time tau of a gate is minus the pairing

.. math::  P = \langle (-\Delta)^{\alpha/4} v, (-\Delta)^{\alpha/4} g \rangle = \sum_k r^\alpha \hat v(k) \hat g(k),

where v is the input of the gate and g = dL/dz the gradient with respect to its output z. P > 0 means that opening the
gate lowers the loss.
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

from fheat.gates.gradients import GateGradient, Loss, gate_gradients
from fheat.gates.table import Rows, State, state_of
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from fheat.system.progress import Progress, silent

Others = Literal["closed", "trained"]
"""Which network the pairing of an open gate is measured in: see `probe`."""
BatchGradients = list[dict[str, GateGradient]]
"""One mapping from site to gradient for each batch."""


@dataclass(frozen=True)
class Finding:
    """Result of a probe at one gate. Numbers are means over the batches."""

    site: str
    alpha: float
    D: float
    state: State
    pairing: float
    """P = -dL/dtau at tau = 0; exactly 0 where the loss does not depend on the gate."""
    error: float | None
    """Standard error of the pairing (deviation / sqrt(n)); None for a single batch."""
    slope: float
    """The negative gradient -dL/dtau at the tau that training left: near 0 where an open gate has settled, equal to P
    where this gate and all others are closed."""
    slope_error: float | None
    """Standard error of the slope; None for a single batch."""
    attenuation: float | None
    """|m g^| / |g^| without the constant mode, over all batches together: the part of the gradient that passes the
    gate. It is exactly 1 for a closed gate, and None for an open one that no gradient reaches."""
    predicted: Literal["open", "closed"]
    """State that the sign of the pairing predicts: open where P > 0."""
    agrees: bool | None
    """Whether training left the gate in the predicted state, a retired gate counting as closed. None where P is exactly
    0, because the grid has one voxel and nothing to mix, or because the loss does not depend on the gate."""


class Probe(Rows[Finding]):
    """The gates of a network in order; indexable by position or site, printable, exportable."""

    head = (
        *("site", "alpha", "D", "state"),
        *("pairing", "error", "-dL/dtau", "error", "attenuation", "predicted", "agrees"),
    )

    @property
    def agreement(self) -> float | None:
        """Fraction of the gates with P other than 0 whose state is the predicted one; None where there are none."""
        signs = [row.agrees for row in self.rows if row.agrees is not None]
        return sum(signs) / len(signs) if signs else None

    def cells(self, row: Finding) -> tuple[str, ...]:
        """Return the cells of a row as they are printed; `-` stands for a value that is None."""
        numbers = (row.pairing, row.error, row.slope, row.slope_error)
        pairing, error, slope, slope_error = ("-" if value is None else f"{value:.3g}" for value in numbers)
        attenuation = "-" if row.attenuation is None else f"{row.attenuation:.4f}"
        agrees = "-" if row.agrees is None else "yes" if row.agrees else "no"
        gate = row.site, f"{row.alpha:.4f}", f"{row.D:.4f}", row.state
        return (*gate, pairing, error, slope, slope_error, attenuation, row.predicted, agrees)


def probe(
    model: nn.Module,
    loss_fn: Loss,
    *batches: Any,
    others: Others = "closed",
    progress: Progress = silent,
) -> Probe:
    """Measure for every gate of any network whether opening it lowers the loss.

    Everything runs on copies, in the mode the network is in: its weights, buffers, gradients and flags stay as they
    are, and so do the states of torch's random generators. All passes over a batch draw the same random numbers. State
    that `loss_fn` keeps itself, such as the buffers of a training method, is not protected.

    Args:
        model: network with `FractionalHeat` modules, on any device; retired and frozen gates are probed too.
        loss_fn: (network, batch) -> scalar tensor. It must use the network it is given, a copy of `model`; gates
            called under `torch.no_grad` do not count.
        batches: whatever `loss_fn` takes. Results are averaged over them.
        others: which network the pairing of an open gate is measured in. `closed`: all gates are closed at once, in two
            passes per batch, or in one if no gate is open. `trained`: that gate alone is closed and the others are as
            training left them; this takes one pass per batch and open gate, and one more per batch.
        progress: called with the number of passes done and their total.

    >>> table = probe(FractionalHeat(dims=1), lambda network, x: network(x).square().mean(), torch.randn(2, 1, 32))
    >>> table["gate"].predicted
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
    closed_now = frozenset(site for site, gate in gates.items() if gate.closed)
    closed_at_zero = {site: frozenset(gates) if others == "closed" else closed_now | {site} for site in gates}
    passes = list(dict.fromkeys([closed_now, *closed_at_zero.values()]))
    measured = _measure(model, loss_fn, batches, passes, progress)
    if not any(gradient.reached for sites in measured[closed_now] for gradient in sites.values()):
        raise ValueError("the loss reaches no gate: loss_fn must use the network that it is handed, not another one")

    def gradients_of(site: str, closed: frozenset[str]) -> list[GateGradient]:
        return [sites[site] for sites in measured[closed]]

    return Probe(
        [
            _finding(site, gate, gradients_of(site, closed_at_zero[site]), gradients_of(site, closed_now))
            for site, gate in gates.items()
        ]
    )


def _measure(
    model: nn.Module,
    loss_fn: Loss,
    batches: Sequence[Any],
    passes: Sequence[frozenset[str]],
    progress: Progress,
) -> dict[frozenset[str], BatchGradients]:
    """Run every batch once for each set of sites in `passes`, with the gates of that set closed."""
    measured: dict[frozenset[str], BatchGradients] = {closed: [] for closed in passes}
    # Fused kernels do not call the gates, and hooks on gates need the calls.
    with torch.inference_mode(False), torch.enable_grad(), kernels.use("never"), _restored_generators(model):
        for batch in batches:
            for closed in passes:
                # Only the last pass moves the generators on to where the next batch begins.
                with nullcontext() if closed == passes[-1] else _restored_generators(model):
                    measured[closed].append(gate_gradients(_with_closed(model, closed), loss_fn, batch))
                progress(sum(map(len, measured.values())), len(batches) * len(passes))
    return measured


@contextmanager
def _restored_generators(model: nn.Module) -> Iterator[None]:
    """Restore torch's random generators, on the host and on the devices of the network, after the block."""
    devices = {tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices.add(torch.cuda.current_device())
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


def _with_closed(model: nn.Module, sites: frozenset[str]) -> nn.Module:
    """Return a copy of the network in which the gates of these sites return their input, whatever their kind."""
    copied = copy.deepcopy(model)
    for site, gate in gates_of(copied).items():
        if site in sites:
            gate.bypass(gate.alpha.item())
    return copied


def _finding(site: str, gate: FractionalHeat, at_zero: Sequence[GateGradient], now: Sequence[GateGradient]) -> Finding:
    """Return the means over the batches, from gradients with this gate closed and with all gates as they are."""
    if not all(math.isfinite(one.negative_gradient) and math.isfinite(one.arriving) for one in (*at_zero, *now)):
        raise ValueError(f"the gradient at {site} is not finite: probe in float32, or with a smaller loss")
    pairing, error = _mean([gradient.negative_gradient for gradient in at_zero])
    slope, slope_error = _mean([gradient.negative_gradient for gradient in now])
    arriving, leaving = sum(gradient.arriving for gradient in now), sum(gradient.leaving for gradient in now)
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
    """Return the mean and its standard error, which is None for one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error
