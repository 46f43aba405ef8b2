"""What the probes of a run saw: the pairing of every gate, what it lets through backwards, and whether the sign of
the pairing told the end.

P > 0 at D = 0 says that the loss falls when the gate opens; P < 0 that it rises, and the gate closes.
"""

from collections.abc import Sequence
from math import ceil, isfinite, log10, nan

from matplotlib.ticker import NullLocator

from fheat.figures.page import Section, figure, paragraph, row, table
from fheat.figures.plots import INK, Mark, Plot, draw_marks, gate_styles, plain, plot
from fheat.training.runs import ProbeAt, RunHistory

SURE = 2.0
"""Standard errors from which on a sign is taken as one."""
_CLEAR = f"beyond {SURE:g} errors"
_NOTHING = ProbeAt(nan, nan, nan, nan, nan)


def probes_section(record: RunHistory, marks: Sequence[Mark] = ()) -> Section:
    """Return the figures, the sentence and the table of the probes; there is at least one probe."""
    drawn = row(pairings(record, marks), attenuations(record, marks))
    return Section("Probes", paragraph(foretold(record)) + drawn + _pairing_table(record))


def agreement(record: RunHistory, sure: float = 0.0) -> dict[int, tuple[int, int]]:
    """Return, for each probed iteration, at how many gates the sign of P agrees with the last logged state, and how
    many have a sign. A gate agrees that is open with P > 0, or closed with P < 0; one without mixing has P = 0. With
    `sure` only those count whose P is more than so many standard errors from zero."""
    survivors = record.survivors
    counts = {}
    for iteration, found in record.probes.items():
        signs = {
            site: at.pairing > 0
            for site, at in found.items()
            if isfinite(at.pairing) and at.pairing != 0 and (not sure or abs(at.pairing) > sure * at.error)
        }
        counts[iteration] = sum(wants == (site in survivors) for site, wants in signs.items()), len(signs)
    return counts


def foretold(record: RunHistory) -> str:
    """Say whether the sign of P told which gates are open in the end, at the first probe and at the last."""
    counts = agreement(record)
    first, last = min(counts), max(counts)
    agreed, signs = counts[first]
    words = f"At iteration {first:,} the sign of the pairing P agrees with the last state of {agreed} of {signs} gates"
    words += f" ({_misses(record, first)})" if agreed < signs else ""
    words += f"; at {last:,} with that of {counts[last][0]} of {counts[last][1]}" if last > first else ""
    return f"{words}. P > 0: the loss falls when the gate opens."


def pairings(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of P of every gate over the iterations, on a scale that keeps signs and small values."""
    last = max(record.probes)
    values = [f"{site} {_signed(found.pairing)}" for site, found in record.probes[last].items()]
    caption = (
        "Pairing P of every gate, with one standard error, above zero where mixing lowers the loss; at iteration "
        f"{last:,}: {', '.join(values)}."
    )
    sizes = [abs(at.pairing) for found in record.probes.values() for at in found.values()]
    sizes = [size for size in sizes if isfinite(size) and size > 0]
    with plot("pairing", caption) as drawing:
        _lines(drawing, record, "pairing", "error")
        if sizes:
            _signed_scale(drawing, max(min(sizes), 1e-3 * max(sizes)), max(sizes))
        drawing.axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
        drawing.axes.set(xlabel="iteration", ylabel="pairing P")
        _early_looks_apart(drawing, record)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def attenuations(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of what every gate leaves of the gradient at the frequencies beside zero; a closed gate 1."""
    caption = (
        f"What is left of the gradient behind each gate at all frequencies but zero, as a ratio. {_deepening(record)}"
    )
    with plot("attenuation", caption) as drawing:
        _lines(drawing, record, "attenuation")
        drawing.axes.set(xlabel="iteration", ylabel="gradient left")
        _early_looks_apart(drawing, record)
        drawing.axes.set_ylim(bottom=0)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def _deepening(record: RunHistory) -> str:
    parts = []
    for site in record.survivors:
        seen = [(at, found[site].attenuation) for at, found in record.probes.items() if site in found]
        seen = [(at, value) for at, value in seen if isfinite(value)]
        if seen:
            (first, before), (last, now) = seen[0], seen[-1]
            moves = "deepens" if now < before else "rises" if now > before else "stays"
            where = f"{before:.4f} at iteration {first:,}"
            parts.append(
                f"{site} {moves} from {where} to {now:.4f} at {last:,}" if last > first else f"{site}: {where}"
            )
    held = [
        found[site].attenuation
        for at, found in record.probes.items()
        for site in found
        if (closed := record.closed_at(site)) is not None and at >= closed
    ]
    if held and all(value == 1 for value in held):
        parts.append("closed gates hold at exactly 1")
    elif held:
        parts.append(f"closed gates lie between {min(held):.6f} and {max(held):.6f}")
    return f"{'; '.join(parts)}." if parts else "No gate is open and none was probed after it closed."


def _lines(drawing: Plot, record: RunHistory, what: str, error: str | None = None) -> None:
    at = list(record.probes)
    for site, style in gate_styles(record.sites, record.survivors).items():
        found = [seen.get(site, _NOTHING) for seen in record.probes.values()]
        values = [_finite(getattr(one, what)) for one in found]
        drawing.axes.plot(at, values, marker="o", markersize=3, **style)
        if error is not None:
            spread = [abs(_finite(getattr(one, error))) for one in found]
            drawing.axes.errorbar(at, values, spread, fmt="none", ecolor=style["color"], elinewidth=0.8)


def _early_looks_apart(drawing: Plot, record: RunHistory) -> None:
    """Make iterations logarithmic from the first look on, where later ones are far apart: gates decide early."""
    looks = [at for at in record.probes if at > 0]
    if looks and looks[-1] > 10 * looks[0]:
        drawing.axes.set_xscale("symlog", linthresh=looks[0], linscale=0.4)
        drawing.axes.set_xticks([0, *(at for n, at in enumerate(looks) if n == 0 or at >= 1.9 * looks[n - 1])])
        drawing.axes.xaxis.set_major_formatter(plain)
        drawing.axes.xaxis.set_minor_locator(NullLocator())


def _signed_scale(drawing: Plot, least: float, largest: float) -> None:
    """Make the scale linear around zero and logarithmic beyond `least`, with a tick at every power of ten."""
    drawing.axes.set_yscale("symlog", linthresh=least, linscale=0.6)
    powers = [10.0**power for power in range(ceil(log10(least) + 0.3), ceil(log10(largest)) + 1)]
    drawing.axes.set_yticks([*(-power for power in reversed(powers)), 0, *powers])
    drawing.axes.yaxis.set_major_formatter(plain)
    drawing.axes.set_ylim(-2 * largest, 2 * largest)


def _pairing_table(record: RunHistory) -> str:
    head = ("site", "state", *(f"P at {iteration:,}" for iteration in record.probes))
    rows = []
    for site in record.sites:
        found = [seen.get(site, _NOTHING) for seen in record.probes.values()]
        cells = [_signed(at.pairing) + (f" ± {at.error:.1e}" if isfinite(at.error) else "") for at in found]
        rows.append((site, "open" if site in record.survivors else "closed", *cells))
    for words, counts in (("signs that agree", agreement(record)), (_CLEAR, agreement(record, SURE))):
        rows.append((words, "", *(f"{agreed} of {signs}" if signs else "" for agreed, signs in counts.values())))
    return table(head, rows)


def _misses(record: RunHistory, iteration: int) -> str:
    found, survivors = record.probes[iteration], record.survivors
    wrong = [
        f"{site} has P = {_signed(at.pairing)} and is {'open' if site in survivors else 'closed'}"
        for site, at in found.items()
        if isfinite(at.pairing) and at.pairing != 0 and (at.pairing > 0) != (site in survivors)
    ]
    return ", ".join(wrong)


def _finite(value: float) -> float:
    return value if isfinite(value) else nan


def _signed(value: float) -> str:
    return f"{value:+.2e}" if isfinite(value) else ""
