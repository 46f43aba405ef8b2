"""A record as text: one table for each part of it."""

from collections.abc import Callable, Sequence
from typing import Any

from fheat.allocation.cost import giga


def tables(record: dict[str, Any]) -> str:
    """Return the tables of a record, what could not be measured, and notes."""
    results = record["results"]
    parts = [text(results[name]) for name, text in _TEXTS.items() if name in results]
    parts += [f"{name}: not available ({reason})" for name, reason in record["not_available"].items()]
    where = record["machine"]
    threads = "" if where["device"].startswith("cuda") else f", {where['threads']} thread(s): ratios only"
    return "\n".join([*parts, *record["notes"], f"{where['name']}{threads}, torch {where['torch']}"])


def aligned(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column flush left and the others flush right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, *rows)
    ]
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines), ""])


def _operator(found: dict[str, Any]) -> str:
    methods = list(found["gates"][0]["forward"]["ratio"])
    head = ["gate", "channels", "grid", "pass", f"{methods[0]} ms", *methods[1:]]
    rows = []
    for gate in found["gates"]:
        first, more = gate["where"][0], len(gate["where"]) - 1
        where = f"{first} +{more}" if more else first
        for name in ("forward", "with_backward"):
            times, ratio = gate[name]["milliseconds"], gate[name]["ratio"]
            numbers = [f"{times[methods[0]]:.3f}", *(f"{ratio[method]:.2f} x" for method in methods[1:])]
            rows.append([where, str(gate["channels"]), gate["grid"], name.replace("_", " "), *numbers])
    return aligned(f"operator: one gate, batch {found['batch']}, ratios to {methods[0]}", head, rows)


def _step(found: list[dict[str, Any]]) -> str:
    return "\n".join(
        aligned(
            f"step: {one['method']}, batch {one['batch']}, patch {one['patch']}, {one['precision']}",
            ["network", "it/s", "ms", "ratio"],
            [
                [name, f"{one['per_second'][name]:.2f}", f"{time:.2f}", f"{one['ratio'][name]:.2f} x"]
                for name, time in one["milliseconds"].items()
            ],
        )
        for one in found
    )


def _window(found: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{found['parameters'][name]:,}",
            giga(found["macs"][name]),
            f"{time:.2f}",
            f"{found['ratio'][name]:.2f} x",
        ]
        for name, time in found["milliseconds"].items()
    ]
    title = f"window: {found['patch']}, batch {found['batch']}"
    return aligned(title, ["network", "parameters", "G MAC", "ms", "ratio"], rows)


def _sizes(found: dict[str, Any]) -> str:
    rows = [
        [name, *(f"{time:.2f}" for time in times), f"{found['exponent'][name]:.2f}"]
        for name, times in found["milliseconds"].items()
    ]
    title = f"window: ms by size, batch {found['batch']}; time grows with voxels to the power p"
    return aligned(title, ["network", *found["patches"], "p"], rows)


def _channels(found: dict[str, Any]) -> str:
    head = ["channels", *map(str, found["channels"]), "p"]
    row = ["ms", *(f"{time:.3f}" for time in found["milliseconds"]), f"{found['exponent']:.2f}"]
    return aligned(
        f"one gate on {found['grid']}, batch {found['batch']}; time grows with channels to the power p", head, [row]
    )


def _batches(found: dict[str, Any]) -> str:
    steps = list(next(iter(found["doubling"].values())))
    rows = [
        [name, *(f"{time:.2f}" for time in times), *(f"{found['doubling'][name][step]:.2f} x" for step in steps)]
        for name, times in found["milliseconds"].items()
    ]
    head = ["network", *(f"batch {batch}" for batch in found["batches"]), *steps]
    return aligned(f"window: {found['patch']}, ms by batch, and what a doubling costs", head, rows)


def _scan(found: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{seconds:.2f}",
            f"{found['ratio'][name]:.2f} x",
            f"scaled from {found['scaled'][name]} windows" if name in found["scaled"] else "",
        ]
        for name, seconds in found["seconds"].items()
    ]
    windows = f"{found['windows']} windows {found['window']} by {found['stride']}"
    title = f"scan: {found['shape']}, {windows}, batch {found['batch']}"
    return aligned(title, ["network", "s", "ratio", ""], rows)


_TEXTS: dict[str, Callable[[Any], str]] = {
    "operator": _operator,
    "step": _step,
    "window": _window,
    "sizes": _sizes,
    "channels": _channels,
    "batches": _batches,
    "scan": _scan,
}
