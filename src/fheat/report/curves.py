"""Losses, validation and gates over the iterations of a run, each with a caption in numbers."""

from math import isfinite

from fheat.report.page import figure
from fheat.report.plots import colours, plot
from fheat.report.record import Record


def losses(record: Record) -> str:
    """Return the figure of every loss."""
    first = record.losses[0]
    values = record.column(first)
    caption = (
        f"Losses. The one that is minimised, {first}, was {values[0]:.4f} at iteration {record.iterations[0]:,} "
        f"and is {values[-1]:.4f} at iteration {record.iterations[-1]:,}"
    )
    others = [f"{name} {record.column(name)[-1]:.4f}" for name in record.losses[1:]]
    caption += f"; the others are at {', '.join(others)}." if others else "."
    with plot("losses", caption) as drawing:
        for colour, name in reversed(list(zip(colours(len(record.losses)), record.losses, strict=True))):
            drawing.axes.plot(record.iterations, record.column(name), color=colour, label=name)
        drawing.axes.set(xlabel="iteration", ylabel="value")
        drawing.axes.legend(reverse=True)
    return figure(drawing.svg, caption)


def validation(record: Record) -> str:
    """Return the figure of the validation Dice, mean and scan by scan."""
    best = max(record.validations, key=lambda found: found.mean)
    last = record.validations[-1]
    caption = (
        f"Validation Dice by full sliding window, mean of {len(last.cases)} scans, each scan a thin line. Best "
        f"{best.mean:.4f} at iteration {best.iteration:,}; {last.mean:.4f} at iteration {last.iteration:,}."
    )
    at = [found.iteration for found in record.validations]
    with plot("validation", caption) as drawing:
        for case in last.cases:
            scores = [found.cases.get(case, float("nan")) for found in record.validations]
            drawing.axes.plot(at, scores, color="tab:gray", linewidth=0.7, alpha=0.6)
        drawing.axes.plot(at, [found.mean for found in record.validations], marker="o", color=colours(1)[0])
        drawing.axes.set(xlabel="iteration", ylabel="Dice", xlim=(0, 1.02 * record.done), ylim=(0, 1))
    return figure(drawing.svg, caption)


def strengths(record: Record) -> str:
    """Return the figure of D of every gate."""
    closed = {site: at for site in record.sites if (at := record.closed_at(site)) is not None}
    open_ = [f"{site} with D = {record.steps[-1][f'D.{site}']:.4f}" for site in record.sites if site not in closed]
    caption = f"Strength D of every gate. {len(closed)} of {len(record.sites)} closed for good"
    caption += ": " + ", ".join(f"{site} at iteration {at:,}" for site, at in closed.items()) if closed else ""
    caption += f". Open: {', '.join(open_)}." if open_ else ". None is open."
    return _over_iterations(record, "D", "strength D", caption)


def orders(record: Record) -> str:
    """Return the figure of alpha of every gate."""
    values = [f"{site} {record.steps[-1][f'alpha.{site}']:.4f}" for site in record.sites]
    caption = (
        f"Order alpha of every gate; at iteration {record.iterations[-1]:,}: {', '.join(values)}. That of a closed "
        "gate has no effect."
    )
    return _over_iterations(record, "alpha", "order alpha", caption)


def _over_iterations(record: Record, what: str, label: str, caption: str) -> str:
    with plot(what, caption) as drawing:
        for colour, site in zip(colours(len(record.sites)), record.sites, strict=True):
            style = "-" if record.closed_at(site) is None else "--"
            values = [value if isfinite(value) else float("nan") for value in record.column(f"{what}.{site}")]
            drawing.axes.plot(record.iterations, values, style, color=colour, label=site)
        drawing.axes.set(xlabel="iteration", ylabel=label)
        drawing.axes.legend(ncols=2)
    return figure(drawing.svg, caption)
