"""The pairing of every gate along a run: does its sign predict which gates are open in the end?

The probes that a run logs hold the pairing P at D = 0 and the part of the gradient that passes each gate. P > 0 says
that the loss falls when the gate opens, P < 0 that it rises. Figures and table are parts of a page.
"""

from collections.abc import Sequence
from math import ceil, isfinite, log10, nan

from matplotlib.ticker import NullLocator

from fheat.figures.page import figure, table
from fheat.figures.plots import INK, Mark, Plot, draw_marks, gate_styles, plain, plot
from fheat.system.text import some_of
from fheat.training.runs import ProbeAt, RunHistory

CLEAR_ERRORS = 2.0
"""Number of standard errors beyond which the sign of P counts as clear."""
_NOT_PROBED = ProbeAt(nan, nan, nan, nan, nan)


def agreement(history: RunHistory, beyond_errors: float = 0.0) -> dict[int, tuple[int, int]]:
    """Return, for each probed iteration, the number of gates whose sign of P agrees with the last logged state, and the
    number of gates with a sign.

    A gate agrees if it is open with P > 0 or closed with P < 0. P is 0 at a gate that has nothing to mix. With
    `beyond_errors` only gates count whose P is more than this number of standard errors away from zero.
    """
    survivors = history.survivors
    counts = {}
    for iteration, probes in history.probes.items():
        positive = {
            site: at.pairing > 0
            for site, at in probes.items()
            if _has_sign(at) and (not beyond_errors or abs(at.pairing) > beyond_errors * at.error)
        }
        agreeing = sum(predicted_open == (site in survivors) for site, predicted_open in positive.items())
        counts[iteration] = agreeing, len(positive)
    return counts


def prediction_sentence(history: RunHistory) -> str:
    """Return a sentence on how many signs of P agree with the last state, at the first probe and at the last one."""
    counts = agreement(history)
    first, last = min(counts), max(counts)
    agreed, signs = counts[first]
    words = f"At iteration {first:,} the sign of the pairing P agrees with the last state of {agreed} of {signs} gates"
    words += f" ({_misses(history, first)})" if agreed < signs else ""
    words += f"; at {last:,} with that of {counts[last][0]} of {counts[last][1]}" if last > first else ""
    return f"{words}. P > 0: the loss falls when the gate opens."


def pairing_figure(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of P of every gate over the iterations, on a scale that shows signs and small values."""
    last = max(history.probes)
    values = [f"{site} {_signed(at.pairing)}" for site, at in history.probes[last].items()]
    caption = (
        "Pairing P of every gate, with one standard error, above zero where mixing lowers the loss; at iteration "
        f"{last:,}: {', '.join(some_of(values))}."
    )
    sizes = [abs(at.pairing) for probes in history.probes.values() for at in probes.values()]
    sizes = [size for size in sizes if isfinite(size) and size > 0]
    with plot("pairing", caption) as drawing:
        _draw_lines(drawing, history, "pairing", "error")
        if sizes:
            _signed_scale(drawing, max(min(sizes), 1e-3 * max(sizes)), max(sizes))
        drawing.axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
        drawing.axes.set(xlabel="iteration", ylabel="pairing P")
        _spread_early_iterations(drawing, history)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def attenuation_figure(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of the part of the gradient that passes each gate, without the constant mode; 1 if closed."""
    caption = "What is left of the gradient behind each gate at all frequencies but zero, as a ratio. "
    caption += _attenuation_words(history)
    with plot("attenuation", caption) as drawing:
        _draw_lines(drawing, history, "attenuation")
        drawing.axes.set(xlabel="iteration", ylabel="gradient left")
        _spread_early_iterations(drawing, history)
        drawing.axes.set_ylim(bottom=0)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def pairing_table(history: RunHistory) -> str:
    """Return the table of P at every gate and probed iteration, with the number of signs that agree below."""
    head = ("site", "state", *(f"P at {iteration:,}" for iteration in history.probes))
    rows = []
    for site in history.sites:
        probes = [probes.get(site, _NOT_PROBED) for probes in history.probes.values()]
        cells = [_signed(at.pairing) + (f" ± {at.error:.1e}" if isfinite(at.error) else "") for at in probes]
        rows.append((site, "open" if site in history.survivors else "closed", *cells))
    clear = f"beyond {CLEAR_ERRORS:g} errors"
    for words, counts in (("signs that agree", agreement(history)), (clear, agreement(history, CLEAR_ERRORS))):
        rows.append((words, "", *(f"{agreed} of {signs}" if signs else "" for agreed, signs in counts.values())))
    return table(head, rows)


def _attenuation_words(history: RunHistory) -> str:
    """Return how the attenuation of the open gates changed, and whether closed gates stay at exactly 1."""
    parts = []
    for site in history.survivors:
        probed = [(at, probes[site].attenuation) for at, probes in history.probes.items() if site in probes]
        finite = [(at, value) for at, value in probed if isfinite(value)]
        if finite:
            (first, before), (last, now) = finite[0], finite[-1]
            moves = "deepens" if now < before else "rises" if now > before else "stays"
            where = f"{before:.4f} at iteration {first:,}"
            parts.append(
                f"{site} {moves} from {where} to {now:.4f} at {last:,}" if last > first else f"{site}: {where}"
            )
    parts = some_of(parts)
    after_closing = [
        probes[site].attenuation
        for at, probes in history.probes.items()
        for site in probes
        if (closed := history.closed_at(site)) is not None and at >= closed
    ]
    if after_closing and all(value == 1 for value in after_closing):
        parts.append("closed gates hold at exactly 1")
    elif after_closing:
        parts.append(f"closed gates lie between {min(after_closing):.6f} and {max(after_closing):.6f}")
    return f"{'; '.join(parts)}." if parts else "No gate is open and none was probed after it closed."


def _draw_lines(drawing: Plot, history: RunHistory, quantity: str, error: str | None = None) -> None:
    """Draw one line for each gate, with error bars where the field `error` is given."""
    iterations = list(history.probes)
    for site, style in gate_styles(history.sites, history.survivors).items():
        probes = [probes.get(site, _NOT_PROBED) for probes in history.probes.values()]
        values = [_finite(getattr(at, quantity)) for at in probes]
        drawing.axes.plot(iterations, values, marker="o", markersize=3, **style)
        if error is not None:
            spread = [abs(_finite(getattr(at, error))) for at in probes]
            drawing.axes.errorbar(iterations, values, spread, fmt="none", ecolor=style["color"], elinewidth=0.8)


def _spread_early_iterations(drawing: Plot, history: RunHistory) -> None:
    """Make the axis of iterations logarithmic where probes become far apart: gates close early in a run."""
    probed = [iteration for iteration in history.probes if iteration > 0]
    if probed and probed[-1] > 10 * probed[0]:
        drawing.axes.set_xscale("symlog", linthresh=probed[0], linscale=0.4)
        drawing.axes.set_xticks([0, *(at for n, at in enumerate(probed) if n == 0 or at >= 1.9 * probed[n - 1])])
        drawing.axes.xaxis.set_major_formatter(plain)
        drawing.axes.xaxis.set_minor_locator(NullLocator())


def _signed_scale(drawing: Plot, least: float, largest: float) -> None:
    """Make the scale linear around zero and logarithmic beyond `least`, with a tick at every power of ten."""
    drawing.axes.set_yscale("symlog", linthresh=least, linscale=0.6)
    powers = [10.0**power for power in range(ceil(log10(least) + 0.3), ceil(log10(largest)) + 1)]
    drawing.axes.set_yticks([*(-power for power in reversed(powers)), 0, *powers])
    drawing.axes.yaxis.set_major_formatter(plain)
    drawing.axes.set_ylim(-2 * largest, 2 * largest)


def _misses(history: RunHistory, iteration: int) -> str:
    """Return the gates whose sign of P at an iteration does not agree with their last state, in words."""
    survivors = history.survivors
    wrong = [
        f"{site} has P = {_signed(at.pairing)} and is {'open' if site in survivors else 'closed'}"
        for site, at in history.probes[iteration].items()
        if _has_sign(at) and (at.pairing > 0) != (site in survivors)
    ]
    return ", ".join(some_of(wrong))


def _has_sign(at: ProbeAt) -> bool:
    return isfinite(at.pairing) and at.pairing != 0


def _finite(value: float) -> float:
    return value if isfinite(value) else nan


def _signed(value: float) -> str:
    return f"{value:+.2e}" if isfinite(value) else ""
