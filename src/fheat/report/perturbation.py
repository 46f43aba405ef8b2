"""What happened after a run was disturbed: whether gates that were closed opened, and closed again to exactly zero."""

from dataclasses import dataclass
from math import isfinite, nan

from fheat.figures.page import Section, paragraph, table
from fheat.figures.plots import Mark
from fheat.training.runs import RunHistory
from fheat.training.settings import ResearchSettings


@dataclass(frozen=True)
class After:
    """D of a gate in the last logged iteration before a disturbance (NaN where there is none), in the first one that
    felt it, and in the last of the run; and from which iteration on it is closed to the end, None for an open one."""

    site: str
    before: float
    right_after: float
    end: float
    closed_at: int | None

    @property
    def reopened(self) -> bool:
        """Whether the disturbance opened a closed gate."""
        return self.before == 0 and self.right_after != 0

    @property
    def reabsorbed(self) -> bool:
        """Whether a gate that the disturbance opened is back at exactly 0."""
        return self.reopened and self.end == 0

    @property
    def outcome(self) -> str:
        """The same in words."""
        if self.reopened:
            return f"back at exactly 0 from {self.closed_at:,} on" if self.reabsorbed else "stays open"
        if self.before == 0:
            return "stays at exactly 0" if self.end == 0 else "opened later"
        return f"closed at {self.closed_at:,}" if self.closed_at is not None else "was open, is open"


def marks_of(research: ResearchSettings) -> list[Mark]:
    """Return the marks of the disturbances of a run, in order, each at the last iteration before it: closed gates
    opened at random, a rate multiplied for some iterations."""
    marks = [] if research.noise_at is None else [(research.noise_at, f"noise {research.noise:g}")]
    if research.spike_at is not None:
        marks.append((research.spike_at, f"rate x {research.spike:g} for {research.spike_for:,}"))
    return sorted(marks)


def after(record: RunHistory, iteration: int) -> list[After]:
    """Return what became of every gate; `iteration` is the last before the disturbance.

    Empty where the log does not reach it.
    """
    earlier = [step for step in record.steps if step["iteration"] <= iteration]
    later = [step for step in record.steps if step["iteration"] > iteration]
    if not later:
        return []
    return [
        After(
            site,
            earlier[-1][f"D.{site}"] if earlier else nan,
            later[0][f"D.{site}"],
            later[-1][f"D.{site}"],
            record.closed_at(site),
        )
        for site in record.sites
    ]


def after_section(record: RunHistory, mark: Mark) -> Section:
    """Return the words and the table of what happened after a disturbance."""
    iteration, label = mark
    title = f"Perturbed after iteration {iteration:,}: {label}"
    gates = after(record, iteration)
    if not gates:
        return Section(title, paragraph("The run has not come that far."))
    reopened = [gate for gate in gates if gate.reopened]
    closed = sum(gate.before == 0 for gate in gates)
    back = sum(gate.reabsorbed for gate in reopened)
    words = f"{len(reopened)} of {closed} closed gates opened"
    words += f", {back} of them went back to exactly D = 0. " if reopened else ", all held at exactly D = 0. "
    words = words if closed else "No gate was closed before. "
    head = ("site", "D before", "right after", "at the end", "outcome")
    rows = [(gate.site, *map(_number, (gate.before, gate.right_after, gate.end)), gate.outcome) for gate in gates]
    return Section(title, paragraph(words + _validation(record, iteration)) + table(head, rows))


def _validation(record: RunHistory, iteration: int) -> str:
    earlier = [found for found in record.validations if found.iteration <= iteration]
    later = [found for found in record.validations if found.iteration > iteration]
    parts = [(earlier[-1], "before")] if earlier else []
    parts += [(later[0], "the first after")] if len(later) > 1 else []
    parts += [(later[-1], "at the end")] if later else []
    said = [f"{found.mean:.4f} {when} (iteration {found.iteration:,})" for found, when in parts]
    return f"Validation Dice: {', '.join(said)}." if said else "The run was not validated."


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.4f}" if isfinite(value) else ""
