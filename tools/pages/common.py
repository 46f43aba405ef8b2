"""What the texts of all pages share: reading stored results, formats and Markdown tables."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from statistics import fmean, stdev
from typing import Any

from results import Result, read_result, result_names

_READ: set[str] = set()
"""Names of the results that were read since `reading` began."""


@contextmanager
def reading() -> Iterator[set[str]]:
    """Collect the names of the stored results that are read inside the block."""
    _READ.clear()
    names: set[str] = set()
    yield names
    names.update(_READ)


def stored(name: str) -> Any:
    """Return the field `results` of a stored result."""
    return stored_head(name).results


def stored_value(path: str) -> Any:
    """Return one value of a stored result: `path` is its name and the keys that lead there, separated by `: `."""
    name, *keys = (part.strip() for part in path.split(": "))
    value = stored(name)
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def stored_head(name: str) -> Result:
    """Return a stored result with its head."""
    _READ.add(name)
    return _read(name)


def is_stored(name: str) -> bool:
    """Return whether there is a stored result of this name, for pages that say so where there is none yet."""
    return name in result_names()


def with_source(name: str, text: str) -> str:
    """Return a text about a stored result behind the command that makes it, with a link to its file below."""
    command = f"    {stored_head(name).command}"
    return "\n\n".join(
        (command, text, f"These are the numbers of the [stored result](../../benchmarks/results/{name}.json).")
    )


@cache
def _read(name: str) -> Result:
    return read_result(name)


def formatted(value: Any, spec: str) -> str:
    """Return a value in a format of Python, or in one of these.

    `giga` and `GB` divide by 1e9, `MiB` by 2**20; a format with `%` gives the number of per cent without the sign;
    `list` joins the elements of a list or the keys of a mapping.
    """
    if spec == "list":
        return ", ".join(map(str, value))
    if spec == "giga":
        return giga(value)
    if spec == "GB":
        return f"{value / 1e9:.1f}"
    if spec == "MiB":
        return f"{value / 2**20:,.0f}"
    return format(value, spec).removesuffix("%")


def giga(macs: float) -> str:
    """Return multiply-adds in units of 1e9 as the literature prints them: three decimals below ten, two above."""
    return f"{macs / 1e9:.3f}" if macs < 10e9 else f"{macs / 1e9:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    first, *others = (f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in (head, *rows))
    return "\n".join([first, f"|{'---|' * len(head)}", *others])


def span(values: Iterable[float], spec: str) -> str:
    """Return `low to high`, or one number where both read the same."""
    each = list(values)
    low, high = format(min(each), spec), format(max(each), spec)
    return low if low == high else f"{low} to {high}"


def per_cent(row: dict[str, float]) -> str:
    """Return a mean and its standard deviation in per cent."""
    return f"{100 * row['mean']:.1f} ({100 * row['sd']:.1f})"


def open_gates(gates: dict[str, dict[str, Any]]) -> str:
    """Return the gates that are open at the end of a run, with their D."""
    kept = {site: gate["D"] for site, gate in gates.items() if gate["closed_after"] is None}
    return ", ".join(f"{site} {strength:.2f}" for site, strength in kept.items()) or "none"


def with_deviation(values: Sequence[float]) -> str:
    """Return the mean and, where there are several values, their standard deviation: 90.27 ± 0.03."""
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
