"""The study of the gates on LA, from the stored runs in studies/runs (docs/evidence/study.md)."""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from results import RUNS

from pages.common import stored, table

PAPER = {
    "base": "dec1 1.224 (0.900) alone",
    "noise": "3 of 7 stay open at about 0.4, Dice 90.26 to 87.22",
    "spike": "all retired stages hold at 0",
    "softplus": "",
}
WITH_ALPHA = ("base", "softplus")
"""Runs whose alpha the table states."""
CERTAIN = 2.0
"""Number of standard errors from which on the sign of a pairing counts as certain."""


@dataclass
class Log:
    """The log of a run: its iterations, validation Dice and probes in order."""

    steps: list[dict[str, float]] = field(default_factory=list)
    dice: dict[int, float] = field(default_factory=dict)
    probes: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)

    @property
    def survivors(self) -> list[str]:
        """Gates that are open in the last logged iteration."""
        last = self.steps[-1]
        return [name[2:] for name in last if name.startswith("D.") and last[name] != 0]


@cache
def _log(run: str) -> Log:
    log = Log()
    for text in (RUNS / f"la-4-{run}" / "log.jsonl").read_text().splitlines():
        line: dict[str, Any] = json.loads(text)
        if "probe" in line:
            log.probes[line["iteration"]] = line["probe"]
        elif "validation" in line:
            log.dice[line["iteration"]] = line["validation"]
        elif "per_second" not in line:
            log.steps.append(line)
    return log


def study_runs() -> str:
    """Return the table of the four runs: open gates at the end, last Dice, and what the paper says."""
    rows = []
    for run, paper in PAPER.items():
        last = _log(run).steps[-1]
        gates = [
            f"{site} {last[f'D.{site}']:.3f}" + (f" ({last[f'alpha.{site}']:.3f})" if run in WITH_ALPHA else "")
            for site in _log(run).survivors
        ]
        rows.append([run, ", ".join(gates), last_dice(run), paper])
    head = ["run", "open at the end: D (alpha)", "last Dice", "the paper, one run of 16,000 iterations"]
    return table(head, rows)


def study_signs() -> str:
    """Return the table of how many signs of P agree with the end, look by look."""
    rows = []
    for words, errors in (("signs that agree with the end", 0.0), ("the same beyond two standard errors", CERTAIN)):
        rows.append([words, *(f"{agreed} of {signs}" for agreed, signs in sign_counts("base", errors).values())])
    return table(["look at iteration", *(f"{iteration:,}" for iteration in _log("base").probes)], rows)


def sign_counts(run: str, errors: float) -> dict[int, tuple[int, int]]:
    """Return, by iteration, at how many gates the sign of P agrees with the end, and how many have a sign.

    A gate agrees if it is open with P > 0 or closed with P < 0. Only gates count whose P is not zero and more than
    `errors` standard errors away from it.
    """
    counts = {}
    for iteration, probe in _log(run).probes.items():
        signs = {
            site: at["pairing"] > 0
            for site, at in probe.items()
            if at["pairing"] != 0 and (not errors or abs(at["pairing"]) > errors * at["error"])
        }
        agreed = sum(positive == (site in _log(run).survivors) for site, positive in signs.items())
        counts[iteration] = agreed, len(signs)
    return counts


def pairing(run: str, iteration: str, site: str) -> str:
    """Return P at a gate with its standard error."""
    at = _log(run).probes[int(iteration)][site]
    return f"{at['pairing']:+.4f} +- {at['error']:.4f}"


def pairing_in_errors(run: str, iteration: str, site: str) -> str:
    """Return P at a gate in units of its standard error."""
    at = _log(run).probes[int(iteration)][site]
    return f"{at['pairing'] / at['error']:.1f}"


def attenuation(run: str, iteration: str, site: str, spec: str = ".3f") -> str:
    """Return what a gate leaves of the gradient."""
    return format(_log(run).probes[int(iteration)][site]["attenuation"], spec)


def strength(run: str, iteration: str, site: str, spec: str) -> str:
    """Return D of a gate in the last logged iteration up to the one given."""
    return format(_step(run, iteration)[f"D.{site}"], spec)


def order(run: str, iteration: str, site: str, spec: str) -> str:
    """Return alpha of a gate in the last logged iteration up to the one given."""
    return format(_step(run, iteration)[f"alpha.{site}"], spec)


def last_dice(run: str) -> str:
    """Return the validation Dice after the last iteration."""
    return f"{list(_log(run).dice.values())[-1]:.4f}"


def dice_at(run: str, iteration: str) -> str:
    """Return the validation Dice after an iteration."""
    return f"{_log(run).dice[int(iteration)]:.4f}"


def closed_from(run: str, site: str) -> str:
    """Return the iteration from which on a gate is closed to the end."""
    return f"{stored('la-4-study-cuda')['runs'][run]['gates'][site]['closed_after'] + 1:,}"


def skipped(run: str) -> str:
    """Return how many updates of a run were skipped because they were not finite."""
    return f"{stored('la-4-study-cuda')['runs'][run]['skipped']:,}"


def _step(run: str, iteration: str) -> dict[str, float]:
    return [step for step in _log(run).steps if step["iteration"] <= int(iteration)][-1]
