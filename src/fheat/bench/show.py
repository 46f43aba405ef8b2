"""A record as tables, as one picture with a panel for each part, and as files."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fheat.gates.cost import giga
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file


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


def picture(record: dict[str, Any]) -> bytes | None:
    """Return the PNG of a record, or None where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    results = record["results"]
    panels: list[tuple[Callable[[Any, Any], None], Any]] = []
    for name, found in results.items():
        each = found if name == "step" else [found]
        panels += [(_PANELS[name], one) for one in each]
    figure = Figure(figsize=(5.6 * len(panels), 4.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for index, (draw, found) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        draw(axes, found)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(record["machine"]["name"], fontsize=9)
    page = io.BytesIO()
    figure.savefig(page, format="png", metadata={"Software": None})
    return page.getvalue()


def _bars(axes: Any, values: Mapping[str, float], title: str, label: str) -> None:
    names = list(values)[::-1]
    bars = axes.barh(names, [values[name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    wide = max(values.values()) > 20 * min(values.values())  # short bars have no length to compare without zero
    axes.set(title=title, xlabel=label, xscale="log" if wide else "linear")
    axes.margins(x=0.15)


def _lines(axes: Any, sizes: Sequence[float], times: Mapping[str, Sequence[float]], title: str, label: str) -> None:
    for name, values in times.items():
        axes.plot(sizes, values, "o-", label=name)
    low = min(values[0] for values in times.values())
    axes.plot(sizes, [low * size / sizes[0] for size in sizes], "--", color="tab:grey", label="linear")
    axes.set(title=title, xlabel=label, ylabel="milliseconds", xscale="log", yscale="log")
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.xaxis.set_minor_formatter("")
    axes.legend(frameon=False, fontsize=8)


def _draw_operator(axes: Any, found: dict[str, Any]) -> None:
    values = {
        f"{gate['channels']} x {gate['grid']} {name.replace('_', ' ')}": gate[name]["ratio"]["auto"]
        for gate in found["gates"]
        for name in ("forward", "with_backward")
    }
    names = list(values)[::-1]
    axes.barh(names, [values[name] for name in names], color="tab:blue")
    axes.axvline(1.0, color="tab:grey", linestyle="--")
    axes.tick_params(axis="y", labelsize=6)
    axes.set(title="gate: auto over plain products", xlabel="ratio")


def _draw_step(axes: Any, found: dict[str, Any]) -> None:
    _bars(axes, found["per_second"], f"{found['method']} step, {found['patch']}", "iterations per second")


def _draw_window(axes: Any, found: dict[str, Any]) -> None:
    first = next(iter(found["ratio"]))
    _bars(axes, found["ratio"], f"one window, {found['patch']}", f"time over {first}")


def _draw_sizes(axes: Any, found: dict[str, Any]) -> None:
    times = {f"{name}, p = {found['exponent'][name]:.2f}": values for name, values in found["milliseconds"].items()}
    millions = [voxels / 1e6 for voxels in found["voxels"]]
    _lines(axes, millions, times, "one window: time ~ voxels^p", "million voxels")


def _draw_channels(axes: Any, found: dict[str, Any]) -> None:
    times = {f"gate, p = {found['exponent']:.2f}": found["milliseconds"]}
    _lines(axes, found["channels"], times, f"one gate on {found['grid']}: time ~ channels^p", "channels")


def _draw_batches(axes: Any, found: dict[str, Any]) -> None:
    _lines(axes, found["batches"], found["milliseconds"], f"one forward pass, {found['patch']}", "windows in a batch")


def _draw_scan(axes: Any, found: dict[str, Any]) -> None:
    first = next(iter(found["ratio"]))
    _bars(axes, found["ratio"], f"one scan, {found['shape']}", f"time over {first}")


_PANELS: dict[str, Callable[[Any, Any], None]] = {
    "operator": _draw_operator,
    "step": _draw_step,
    "window": _draw_window,
    "sizes": _draw_sizes,
    "channels": _draw_channels,
    "batches": _draw_batches,
    "scan": _draw_scan,
}


RECORD, PICTURE = "bench.json", "bench.png"


def check_target(folder: Path, record: str | None = RECORD) -> None:
    """Refuse, before anything is measured, a folder that holds a `record` already, or a file in its place."""
    check_folder(folder)
    if record is not None and (folder / record).exists():
        raise BadInput(folder / record, "exists already", "choose another folder or remove it")


def write_record(folder: Path, record: dict[str, Any]) -> list[Path]:
    """Write the record and its picture; return what was written: without matplotlib the record alone."""
    written = [folder / RECORD]
    write_file(written[0], (json.dumps(record, indent=1) + "\n").encode())
    drawn = picture(record)
    if drawn is not None:
        written.append(folder / PICTURE)
        write_file(written[1], drawn)
    return written
