"""Perturbed runs: did closed gates open after a perturbation, and did they close again to exactly zero?

A run may be perturbed by opening its closed gates at random, or by a larger learning rate for some iterations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from fheat.figures.plots import Mark
from fheat.training.runs import RunHistory
from fheat.training.settings import ResearchSettings


@dataclass(frozen=True)
class GateAfter:
    """Strength D of one gate before and after a perturbation."""

    site: str
    before: float
    """D in the last logged iteration before the perturbation; NaN where there is none."""
    right_after: float
    """D in the first logged iteration after it."""
    end: float
    """D in the last logged iteration of the run."""
    closed_at: int | None
    """First logged iteration from which the gate is closed to the end; None for an open gate."""

    @property
    def reopened(self) -> bool:
        """Whether the perturbation opened a closed gate."""
        return self.before == 0 and self.right_after != 0

    @property
    def reabsorbed(self) -> bool:
        """Whether a gate that the perturbation opened is back at exactly 0 in the end."""
        return self.reopened and self.end == 0

    @property
    def outcome(self) -> str:
        """Outcome for the gate in words, such as `stays open`."""
        if self.reopened:
            return f"back at exactly 0 from {self.closed_at:,} on" if self.reabsorbed else "stays open"
        if self.before == 0:
            return "stays at exactly 0" if self.end == 0 else "opened later"
        return f"closed at {self.closed_at:,}" if self.closed_at is not None else "was open, is open"


def perturbation_marks(research: ResearchSettings) -> list[Mark]:
    """Return the perturbations of a run in order, each with the last iteration before it and a label."""
    marks = [] if research.noise_at is None else [(research.noise_at, f"noise {research.noise:g}")]
    if research.spike_at is not None:
        marks.append((research.spike_at, f"rate x {research.spike:g} for {research.spike_for:,}"))
    return sorted(marks)


def gates_after(history: RunHistory, iteration: int) -> list[GateAfter]:
    """Return every gate before and after a perturbation; `iteration` is the last one before it.

    The list is empty where the log ends before the perturbation.
    """
    earlier = [step for step in history.steps if step["iteration"] <= iteration]
    later = [step for step in history.steps if step["iteration"] > iteration]
    if not later:
        return []
    return [
        GateAfter(
            site,
            earlier[-1][f"D.{site}"] if earlier else nan,
            later[0][f"D.{site}"],
            later[-1][f"D.{site}"],
            history.closed_at(site),
        )
        for site in history.sites
    ]


def outcome_sentence(gates: Sequence[GateAfter]) -> str:
    """Return how many closed gates the perturbation opened, and how many of these went back to exactly zero."""
    closed = sum(gate.before == 0 for gate in gates)
    if not closed:
        return "No gate was closed before."
    reopened = [gate for gate in gates if gate.reopened]
    back = sum(gate.reabsorbed for gate in reopened)
    words = f"{len(reopened)} of {closed} closed gates opened"
    return words + (f", {back} of them went back to exactly D = 0." if reopened else ", all held at exactly D = 0.")


def validation_sentence(history: RunHistory, iteration: int) -> str:
    """Return the validation Dice before a perturbation, first after it and at the end, in words."""
    earlier = [validation for validation in history.validations if validation.iteration <= iteration]
    later = [validation for validation in history.validations if validation.iteration > iteration]
    parts = [(earlier[-1], "before")] if earlier else []
    parts += [(later[0], "the first after")] if len(later) > 1 else []
    parts += [(later[-1], "at the end")] if later else []
    scores = [f"{validation.mean:.4f} {when} (iteration {validation.iteration:,})" for validation, when in parts]
    return f"Validation Dice: {', '.join(scores)}." if scores else "The run was not validated."
