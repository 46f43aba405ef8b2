"""`fheat models --cost`: parameters and multiply-adds by one counter beside the published ones, and why they differ."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from fheat.cli.main import UsageError
from fheat.experiments.items.cost import compared, cost_rows
from fheat.gates.cost import COUNTER
from fheat.networks.base import checked_patch_size
from fheat.system.progress import counted_steps, progress_bar
from fheat.system.text import grid_name

SIZES = ((112, 112, 80), (96, 96, 96))
"""Patch sizes of the published costs, Table IV and Table V."""
WIDTH = 124
"""Columns of a terminal that the table needs with words whole."""
UNITS = {"parameters": "M parameters", "macs": "G MAC", "macs_open": "G MAC, gates open"}


def print_costs(size: tuple[int, int, int] | None, *, as_json: bool) -> None:
    """Print one table for each size, or one JSON object."""
    if size is not None:
        try:
            checked_patch_size(size)
        except ValueError as error:
            raise UsageError(str(error).replace("patch_size", "--size", 1)) from None
    tables: dict[str, list[dict[str, Any]]] = {}
    wanted = [row for one in ((size,) if size else SIZES) for row in cost_rows(one)]
    with progress_bar("building networks") as show:
        for row in counted_steps(wanted, show):
            tables.setdefault(grid_name(row.patch_size), []).append(compared(row))
    if as_json:
        print(json.dumps({"counter": COUNTER, "sizes": tables}, indent=1))
        return
    for grid, rows in tables.items():
        _print(grid, rows)
    print(f"MAC by {COUNTER}; gates closed unless said otherwise. 1 channel, 2 classes.")


def _print(grid: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"cost of one window of {grid}")
    table.add_column("network", no_wrap=True)
    for unit in UNITS.values():
        for heading in (unit, "paper", "differs"):
            table.add_column(heading, justify="right")
    for row in rows:
        cells = [
            text
            for name in UNITS
            for text in (
                _number(row.get("ours", {}).get(name)),
                _number(row["published"].get(name), published=True),
                _per_cent(row.get("differs", {}).get(name)),
            )
        ]
        table.add_row(_called(row), *cells)
    Console(width=max(Console().width, WIDTH)).print(table)
    for row in rows:
        if why := row.get("state") or row["reason"]:
            print(f"{row['name']}: {why}")
        if more := row.get("ours", {}).get("fourier"):
            print(f"{row['name']}: Fourier transforms, which fvcore does not count, would add {_number(more)} G")


def _called(row: dict[str, Any]) -> str:
    """Return the name of a row with the network, where that has another name, and with the options that it has."""
    words = [] if row["network"] in ("", row["name"].replace("-", "_")) else [row["network"]]
    words += [f"{option}={value}" for option, value in row["options"].items()]
    return f"{row['name']} ({', '.join(words)})" if words else str(row["name"])


def _number(value: float | None, *, published: bool = False) -> str:
    """Return a count with the digits that papers print; a published one with its own."""
    if value is None:
        return "-"
    return f"{value:,}" if published else f"{value:.3f}" if value < 10 else f"{value:,.2f}"


def _per_cent(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f} %"  # + 0.0 has no negative zero
