"""The record of a benchmark for readers: tables of text, one picture with a panel for each part, and both as files."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fheat.gates.cost import giga
from fheat.system.files import write_file
from fheat.system.text import aligned

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


_TABLES: dict[str, Callable[[Any], str]] = {
    "operator": _table_operator,
    "step": _table_step,
    "window": _table_window,
    "sizes": _table_sizes,
    "channels": _table_channels,
    "batches": _table_batches,
    "scan": _table_scan,
}


def picture(record: dict[str, Any]) -> bytes | None:
    """Return the PNG of a record, or None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    results = record["results"]
    panels: list[tuple[Callable[[Any, Any], None], Any]] = []
    for name, result in results.items():
        each = result if name == "step" else [result]
        panels += [(_PANELS[name], one) for one in each]
    figure = Figure(figsize=(5.6 * len(panels), 4.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for index, (draw, result) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        draw(axes, result)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(record["machine"]["name"], fontsize=9)
    page = io.BytesIO()
    figure.savefig(page, format="png", metadata={"Software": None})
    return page.getvalue()


def _bars(axes: Any, values: Mapping[str, float], title: str, label: str) -> None:
    names = list(values)[::-1]
    bars = axes.barh(names, [values[name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    wide = max(values.values()) > 20 * min(values.values())  # on a linear axis the short bars would vanish
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


def _draw_operator(axes: Any, result: dict[str, Any]) -> None:
    values = {
        f"{gate['channels']} x {gate['grid']} {name.replace('_', ' ')}": gate[name]["ratio"]["auto"]
        for gate in result["gates"]
        for name in ("forward", "with_backward")
    }
    names = list(values)[::-1]
    axes.barh(names, [values[name] for name in names], color="tab:blue")
    axes.axvline(1.0, color="tab:grey", linestyle="--")
    axes.tick_params(axis="y", labelsize=6)
    axes.set(title="gate: auto over plain products", xlabel="ratio")


def _draw_step(axes: Any, result: dict[str, Any]) -> None:
    _bars(axes, result["per_second"], f"{result['method']} step, {result['patch']}", "iterations per second")


def _draw_window(axes: Any, result: dict[str, Any]) -> None:
    first = next(iter(result["ratio"]))
    _bars(axes, result["ratio"], f"one window, {result['patch']}", f"time over {first}")


def _draw_sizes(axes: Any, result: dict[str, Any]) -> None:
    times = {f"{name}, p = {result['exponent'][name]:.2f}": values for name, values in result["milliseconds"].items()}
    millions = [voxels / 1e6 for voxels in result["voxels"]]
    _lines(axes, millions, times, "one window: time ~ voxels^p", "million voxels")


def _draw_channels(axes: Any, result: dict[str, Any]) -> None:
    times = {f"gate, p = {result['exponent']:.2f}": result["milliseconds"]}
    _lines(axes, result["channels"], times, f"one gate on {result['grid']}: time ~ channels^p", "channels")


def _draw_batches(axes: Any, result: dict[str, Any]) -> None:
    _lines(
        axes, result["batches"], result["milliseconds"], f"one forward pass, {result['patch']}", "windows in a batch"
    )


def _draw_scan(axes: Any, result: dict[str, Any]) -> None:
    first = next(iter(result["ratio"]))
    _bars(axes, result["ratio"], f"one scan, {result['shape']}", f"time over {first}")


_PANELS: dict[str, Callable[[Any, Any], None]] = {
    "operator": _draw_operator,
    "step": _draw_step,
    "window": _draw_window,
    "sizes": _draw_sizes,
    "channels": _draw_channels,
    "batches": _draw_batches,
    "scan": _draw_scan,
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
