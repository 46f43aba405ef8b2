"""The record of a benchmark for readers: tables of text, and record and picture as files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fheat.bench.picture import picture
from fheat.gates.cost import giga
from fheat.system.files import write_file
from fheat.system.text import aligned, grid_name

RECORD, PICTURE = "bench.json", "bench.png"


def tables(record: dict[str, Any]) -> str:
    """Return the tables of a record, the networks that are not available, the notes and the machine."""
    results = record["results"]
    parts = [table(results[name]) for name, table in _TABLES.items() if name in results]
    parts += [f"{name}: not available ({reason})" for name, reason in record["not_available"].items()]
    where = record["machine"]
    threads = "" if where["device"].startswith("cuda") else f", {where['threads']} thread(s): ratios only"
    return "\n".join([*parts, *record["notes"], f"{where['name']}{threads}, torch {where['torch']}"])


def titled(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table under its title, the first column flush left and the others flush right."""
    lines = aligned([head, *rows], right=True).split("\n")
    return "\n".join([title, *(f"  {line}" for line in lines), ""])


def _table_operator(result: dict[str, Any]) -> str:
    methods = list(result["gates"][0]["forward"]["ratio"])
    head = ["gate", "channels", "grid", "pass", f"{methods[0]} ms", *methods[1:]]
    rows = []
    for gate in result["gates"]:
        first, more = gate["where"][0], len(gate["where"]) - 1
        where = f"{first} +{more}" if more else first
        for name in ("forward", "with_backward"):
            times, ratio = gate[name]["milliseconds"], gate[name]["ratio"]
            numbers = [f"{times[methods[0]]:.3f}", *(f"{ratio[method]:.2f} x" for method in methods[1:])]
            rows.append([where, str(gate["channels"]), gate["grid"], name.replace("_", " "), *numbers])
    return titled(f"operator: one gate, batch {result['batch']}, ratios to {methods[0]}", head, rows)


def _table_step(results: list[dict[str, Any]]) -> str:
    return "\n".join(
        titled(
            f"step: {one['method']}, batch {one['batch']}, patch {one['patch']}, {one['precision']}",
            ["network", "it/s", "ms", "ratio"],
            [
                [name, f"{one['per_second'][name]:.2f}", f"{time:.2f}", f"{one['ratio'][name]:.2f} x"]
                for name, time in one["milliseconds"].items()
            ],
        )
        for one in results
    )


def _table_window(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{result['parameters'][name]:,}",
            giga(result["macs"][name]),
            f"{time:.2f}",
            f"{result['ratio'][name]:.2f} x",
        ]
        for name, time in result["milliseconds"].items()
    ]
    title = f"window: {result['patch']}, batch {result['batch']}"
    return titled(title, ["network", "parameters", "G MAC", "ms", "ratio"], rows)


def _table_sizes(result: dict[str, Any]) -> str:
    rows = [
        [name, *(f"{time:.2f}" for time in times), f"{result['exponent'][name]:.2f}"]
        for name, times in result["milliseconds"].items()
    ]
    title = f"window: ms by size, batch {result['batch']}; time grows with voxels to the power p"
    return titled(title, ["network", *result["patches"], "p"], rows)


def _table_channels(result: dict[str, Any]) -> str:
    head = ["channels", *map(str, result["channels"]), "p"]
    row = ["ms", *(f"{time:.3f}" for time in result["milliseconds"]), f"{result['exponent']:.2f}"]
    return titled(
        f"one gate on {result['grid']}, batch {result['batch']}; time grows with channels to the power p", head, [row]
    )


def _table_batches(result: dict[str, Any]) -> str:
    steps = list(next(iter(result["doubling"].values())))
    rows = [
        [name, *(f"{time:.2f}" for time in times), *(f"{result['doubling'][name][step]:.2f} x" for step in steps)]
        for name, times in result["milliseconds"].items()
    ]
    head = ["network", *(f"batch {batch}" for batch in result["batches"]), *steps]
    return titled(f"window: {result['patch']}, ms by batch, and what a doubling costs", head, rows)


def _table_scan(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{seconds:.2f}",
            f"{result['ratio'][name]:.2f} x",
            f"scaled from {result['scaled'][name]} windows" if name in result["scaled"] else "",
        ]
        for name, seconds in result["seconds"].items()
    ]
    windows = f"{result['windows']} windows {result['window']} by {result['stride']}"
    title = f"scan: {result['shape']}, {windows}, batch {result['batch']}"
    return titled(title, ["network", "s", "ratio", ""], rows)


def _table_start(result: dict[str, Any]) -> str:
    """Return a row for each network and state of the cache: the command, its ratio to the scan itself, its parts."""
    first = next(iter(result["networks"].values()))
    parts = list(next(iter(first["parts_s"].values())))
    rows = []
    for name, found in result["networks"].items():
        for state, seconds in found["command_s"].items():
            split = [f"{found['parts_s'][state][part]:.2f}" for part in parts]
            rows.append([name, state, f"{seconds:.2f}", f"{found['ratio'][state]:.2f} x", *split])
        rows.append([name, "the scan itself", f"{found['scan_s']:.2f}", "1.00 x", *([""] * len(parts))])
    title = f"start: {result['shape']}, runtime {result['runtime']}; s from the command to the mask, and its parts"
    windows = [
        f"{name}: {found['windows']} windows {grid_name(found['window'])} by {grid_name(found['stride'])}"
        for name, found in result["networks"].items()
    ]
    return "\n".join([titled(title, ["network", "start", "s", "ratio", *parts], rows).rstrip(), *windows, ""])


def _table_read(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{seconds:.3f}",
            f"{result['ratio'][name]:.2f} x",
            f"{result['threads_seconds'][name]:.3f}",
            f"{result['threads_ratio'][name]:.2f} x",
        ]
        for name, seconds in result["seconds"].items()
    ]
    start = f"a confined process takes {result['start_s']:.2f} s to start"
    title = f"read: {result['scans']} scans of {result['shape']}; {start}"
    found = [titled(title, ["way", "s", "ratio", f"s, {result['threads']} threads", "ratio"], rows)]
    if "store_seconds" in result:
        rows = [
            [name, f"{seconds:.3f}", f"{result['store_ratio'][name]:.2f} x"]
            for name, seconds in result["store_seconds"].items()
        ]
        title = f"read: {result['store_scans']} scans with labels into the store, confined"
        found.append(titled(title, ["scans", "s", "ratio"], rows))
    return "\n".join(found)


def _table_cohort(result: dict[str, Any]) -> str:
    rows = []
    for name, found in result["networks"].items():
        for way, row in found["segmented"].items():
            numbers = [f"{row['wall_s']:.2f}", f"{row['scans_per_minute']:.1f}", f"{row['busy_share']:.0%}"]
            memory = [f"{row['peak_bytes'] / 2**20:.0f}", f"{row['peak_over_bound']:.2f}"]
            rows.append([name, way, *numbers, *memory, "same masks" if found["same_masks"] else "masks differ"])
    head = ["network", "scans", "s", "scans/min", "device busy", "peak MiB", "of the bound", ""]
    segmented = titled(f"cohort: {result['scans']} scans of {result['shape']}", head, rows)
    rows = [
        [
            name,
            f"{row['wall_s']:.2f}",
            f"{row['cases_per_minute']:.1f}",
            "same scores" if result["same_scores"] else "scores differ",
        ]
        for name, row in result["scored"].items()
    ]
    return f"{segmented}\n{titled('cohort: masks scored', ['masks', 's', 'masks/min', ''], rows)}"


_TABLES: dict[str, Callable[[Any], str]] = {
    "operator": _table_operator,
    "step": _table_step,
    "window": _table_window,
    "sizes": _table_sizes,
    "channels": _table_channels,
    "batches": _table_batches,
    "scan": _table_scan,
    "start": _table_start,
    "read": _table_read,
    "cohort": _table_cohort,
}


def write_record(folder: Path, record: dict[str, Any]) -> list[Path]:
    """Write `bench.json` and, where matplotlib is installed, `bench.png`; return the files that were written."""
    written = [folder / RECORD]
    write_file(written[0], (json.dumps(record, indent=1) + "\n").encode())
    png = picture(record)
    if png is not None:
        written.append(folder / PICTURE)
        write_file(written[1], png)
    return written
