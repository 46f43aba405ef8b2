"""What the probes of a run saw: the pairing of every gate, what it lets through backwards, and whether the sign of
the pairing told the end.

P > 0 at D = 0 says that the loss falls when the gate opens; P < 0 that it rises, and the gate closes.
"""

from collections.abc import Sequence
from math import ceil, isfinite, log10, nan
from typing import Literal

from fheat.report.page import Section, figure, paragraph, row, table
from fheat.report.plots import INK, Mark, Plot, draw_marks, gate_styles, plain, plot
from fheat.report.record import ProbeAt, Record

_NOTHING = ProbeAt(nan, nan, nan, nan, nan, nan, nan)
Which = Literal["pairing", "alone"]
SURE = 2.0
"""Standard errors from which on a sign is taken as one."""
_IN: dict[Which, str] = {"pairing": "all gates closed", "alone": "only that gate closed"}


def probes_section(record: Record, marks: Sequence[Mark] = ()) -> Section:
    """Return the figures, the sentence and the table of the probes; there is at least one probe."""
    drawn = row(pairings(record, marks), pairings(record, marks, "alone"), attenuations(record, marks))
    told = (paragraph(foretold(record, which)) + _pairing_table(record, which) for which in _IN)
    return Section("Probes", drawn + "".join(told))


def agreement(record: Record, which: Which = "pairing", sure: float = 0.0) -> dict[int, tuple[int, int]]:
    """Return, for each probed iteration, at how many gates the sign of P agrees with the last logged state, and how
    many have a sign. A gate agrees that is open with P > 0, or closed with P < 0; one without mixing has P = 0. With
    `sure` only those count whose P is more than so many standard errors from zero."""
    survivors = record.survivors
    counts = {}
    for iteration, found in record.probes.items():
        values = {site: _value_and_error(at, which) for site, at in found.items()}
        signs = {
            site: value > 0
            for site, (value, error) in values.items()
            if isfinite(value) and value != 0 and (not sure or abs(value) > sure * error)
        }
        counts[iteration] = sum(wants == (site in survivors) for site, wants in signs.items()), len(signs)
    return counts


def foretold(record: Record, which: Which = "pairing") -> str:
    """Say whether the sign of P told which gates are open in the end, first probe first."""
    (first, (agreed, signs)), *later = agreement(record, which).items()
    words = f"With {_IN[which]}: at iteration {first:,} the sign of the pairing P agrees with the last state of "
    words += f"{agreed} of {signs} gates"
    words += f" ({_misses(record, first, which)})" if agreed < signs else ""
    for iteration, (agreed, signs) in later:
        words += f"; at {iteration:,} with {agreed} of {signs}"
    clear = {at: counts for at, counts in agreement(record, which, SURE).items() if counts[1]}
    if clear:
        words += f". Where P is more than {SURE:g} standard errors from zero: "
        words += "; ".join(f"at {at:,} {agreed} of {signs}" for at, (agreed, signs) in clear.items())
    return f"{words}. P > 0: the loss falls when the gate opens."


def pairings(record: Record, marks: Sequence[Mark] = (), which: Which = "pairing") -> str:
    """Return the figure of P of every gate over the iterations, on a scale that keeps signs and small values."""
    last = max(record.probes)
    values = [f"{site} {_signed(getattr(found, which))}" for site, found in record.probes[last].items()]
    caption = (
        f"Pairing P of every gate with {_IN[which]}, and one standard error, above zero where mixing lowers the loss; "
        f"at iteration {last:,}: {', '.join(values)}."
    )
    sizes = [abs(getattr(at, which)) for found in record.probes.values() for at in found.values()]
    sizes = [size for size in sizes if isfinite(size) and size > 0]
    with plot(which, caption) as drawing:
        _lines(drawing, record, which, "error" if which == "pairing" else "alone_error")
        if sizes:
            _signed_scale(drawing, max(min(sizes), 1e-3 * max(sizes)), max(sizes))
        drawing.axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
        drawing.axes.set(xlabel="iteration", ylabel="pairing P")
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def attenuations(record: Record, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of what every gate leaves of the gradient at the frequencies beside zero; a closed gate 1."""
    caption = (
        f"What is left of the gradient behind each gate at all frequencies but zero, as a ratio. {_deepening(record)}"
    )
    with plot("attenuation", caption) as drawing:
        _lines(drawing, record, "attenuation")
        drawing.axes.set(xlabel="iteration", ylabel="gradient left")
        drawing.axes.set_ylim(bottom=0)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def _deepening(record: Record) -> str:
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


def _lines(drawing: Plot, record: Record, what: str, error: str | None = None) -> None:
    at = list(record.probes)
    for site, style in gate_styles(record.sites, record.survivors).items():
        found = [seen.get(site, _NOTHING) for seen in record.probes.values()]
        values = [_finite(getattr(one, what)) for one in found]
        drawing.axes.plot(at, values, marker="o", markersize=3, **style)
        if error is not None:
            spread = [abs(_finite(getattr(one, error))) for one in found]
            drawing.axes.errorbar(at, values, spread, fmt="none", ecolor=style["color"], elinewidth=0.8)


def _signed_scale(drawing: Plot, least: float, largest: float) -> None:
    """Make the scale linear around zero and logarithmic beyond `least`, with a tick at every power of ten."""
    drawing.axes.set_yscale("symlog", linthresh=least, linscale=0.6)
    powers = [10.0**power for power in range(ceil(log10(least) + 0.3), ceil(log10(largest)) + 1)]
    drawing.axes.set_yticks([*(-power for power in reversed(powers)), 0, *powers])
    drawing.axes.yaxis.set_major_formatter(plain)
    drawing.axes.set_ylim(-2 * largest, 2 * largest)


def _pairing_table(record: Record, which: Which) -> str:
    head = ("site", "state", *(f"P at {iteration:,}" for iteration in record.probes))
    rows = []
    for site in record.sites:
        found = [seen.get(site, _NOTHING) for seen in record.probes.values()]
        pairs = [_value_and_error(at, which) for at in found]
        cells = [_signed(value) + (f" ± {error:.1e}" if isfinite(error) else "") for value, error in pairs]
        rows.append((site, "open" if site in record.survivors else "closed", *cells))
    return table(head, rows)


def _misses(record: Record, iteration: int, which: Which) -> str:
    found = {site: getattr(at, which) for site, at in record.probes[iteration].items()}
    wrong = [
        f"{site} has P = {_signed(value)} and is {'open' if site in record.survivors else 'closed'}"
        for site, value in found.items()
        if isfinite(value) and value != 0 and (value > 0) != (site in record.survivors)
    ]
    return ", ".join(wrong)


def _value_and_error(at: ProbeAt, which: Which) -> tuple[float, float]:
    return (at.pairing, at.error) if which == "pairing" else (at.alone, at.alone_error)


def _finite(value: float) -> float:
    return value if isfinite(value) else nan


def _signed(value: float) -> str:
    return f"{value:+.2e}" if isfinite(value) else ""
