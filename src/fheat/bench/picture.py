"""The picture of a record: a panel for each part, and the plot of cost against work where windows were timed."""

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

MOST_BESIDE: Final = 4
"""Largest number of panels in a row."""
_MARKERS: Final = "osD^vP*X"
_DECADE: Final = 12.0
"""Ratio of the ends of a logarithmic axis up to which the numbers between powers of ten are written too."""


def picture(record: dict[str, Any]) -> bytes | None:
    """Return the PNG of a record, or None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    panels = panels_of(record["results"])
    down = -(-len(panels) // MOST_BESIDE)
    across = -(-len(panels) // down)
    figure = Figure(figsize=(5.6 * across, 4.0 * down), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for index, (draw, result) in enumerate(panels, start=1):
        axes = figure.add_subplot(down, across, index)
        draw(axes, result)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(record["machine"]["name"], fontsize=9)
    page = io.BytesIO()
    figure.savefig(page, format="png", metadata={"Software": None})
    return page.getvalue()


Panel = Callable[[Any, Any], None]
"""A function that draws a result on the axes of matplotlib."""


def panels_of(results: Mapping[str, Any]) -> list[tuple[Panel, Any]]:
    """Return for each part, in order, the function that draws it and the result that this function takes.

    Windows have two panels: the time of each network, and time against work, which is multiply-adds, for all of them.
    A record of an earlier version that states no multiply-adds has the first only.
    """
    panels: list[tuple[Panel, Any]] = []
    for name, result in results.items():
        panels += [(PANELS[name], one) for one in (result if name == "step" else [result])]
        if name in ("window", "sizes") and "macs" in result:
            panels.append((_draw_work, result))
    return panels


def work_points(result: Mapping[str, Any]) -> dict[str, tuple[list[float], list[float]]]:
    """Return for each network the multiply-adds of a pass in G and its milliseconds, one pair for each size.

    `macs` counts one window, and a pass has `batch` of them.
    """
    points = {}
    for name, milliseconds in result["milliseconds"].items():
        macs, times = (value if isinstance(value, list) else [value] for value in (result["macs"][name], milliseconds))
        points[name] = [result["batch"] * one / 1e9 for one in macs], list(times)
    return points


def _draw_work(axes: Any, result: dict[str, Any]) -> None:
    points = work_points(result)
    for (name, (macs, times)), marker in zip(points.items(), cycle(_MARKERS), strict=False):
        axes.plot(macs, times, f"{marker}-", label=name, markersize=5, linewidth=1)
    nearest = min((pair for macs, times in points.values() for pair in zip(macs, times, strict=True)))
    most = max(one for macs, _ in points.values() for one in macs)
    line = [nearest[1], nearest[1] * most / nearest[0]]
    axes.plot([nearest[0], most], line, "--", color="tab:grey", label="linear", linewidth=1)
    title = "one pass: time against work"
    axes.set(title=title, xlabel="G multiply-adds", ylabel="milliseconds", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}" if high < _DECADE * low else "")
    axes.tick_params(which="minor", labelsize=7)
    axes.legend(frameon=False, fontsize=7)


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


def start_bars(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the bars of starts: the seconds of each part, and below the starts of a network the scan itself."""
    bars: dict[str, dict[str, float]] = {}
    for name, found in result["networks"].items():
        bars |= {f"{name}\n{state}": parts for state, parts in found["parts_s"].items()}
        bars[f"{name}\nthe scan itself"] = {"scan, all ready": found["scan_s"]}
    return bars


def _draw_start(axes: Any, result: dict[str, Any]) -> None:
    """Draw the parts of each start one behind the other, and a mark at the time of the whole command."""
    bars = start_bars(result)
    names = list(bars)[::-1]
    ends = dict.fromkeys(names, 0.0)
    for part in dict.fromkeys(part for parts in bars.values() for part in parts):
        shown = [name for name in names if part in bars[name]]
        axes.barh(
            [names.index(name) for name in shown],
            [bars[name][part] for name in shown],
            left=[ends[name] for name in shown],
            label=part,
        )
        ends |= {name: ends[name] + bars[name][part] for name in shown}
    commands = {
        f"{name}\n{state}": seconds
        for name, found in result["networks"].items()
        for state, seconds in found["command_s"].items()
    }
    places = [names.index(name) for name in commands]
    axes.plot(list(commands.values()), places, "k|", markersize=14, markeredgewidth=2, label="whole command")
    axes.set_yticks(range(len(names)), names)
    axes.set(title=f"start: to the first mask of {result['shape']}", xlabel="seconds", xlim=(0, None))
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.4, -0.12))


def _draw_read(axes: Any, result: dict[str, Any]) -> None:
    threads = {f"{name}, {result['threads']} threads": value for name, value in result["threads_seconds"].items()}
    store = {f"into the store, {name}": value for name, value in result.get("store_seconds", {}).items()}
    title = f"read: {result['scans']} scans of {result['shape']}"
    _bars(axes, {**result["seconds"], **threads, **store}, title, "seconds")


def _draw_cohort(axes: Any, result: dict[str, Any]) -> None:
    values = {
        f"{name}\n{way}, busy {row['busy_share']:.0%}": row["scans_per_minute"]
        for name, found in result["networks"].items()
        for way, row in found["segmented"].items()
    }
    _bars(axes, values, f"cohort: {result['scans']} scans of {result['shape']}", "scans per minute")


PANELS: dict[str, Panel] = {
    "operator": _draw_operator,
    "step": _draw_step,
    "window": _draw_window,
    "sizes": _draw_sizes,
    "channels": _draw_channels,
    "batches": _draw_batches,
    "scan": _draw_scan,
    "start": _draw_start,
    "read": _draw_read,
    "cohort": _draw_cohort,
}
