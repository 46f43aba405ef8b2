"""A record as one picture: a panel for each part of it. Matplotlib is imported on use."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any


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


def _operator(axes: Any, found: dict[str, Any]) -> None:
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


def _step(axes: Any, found: dict[str, Any]) -> None:
    _bars(axes, found["per_second"], f"{found['method']} step, {found['patch']}", "iterations per second")


def _window(axes: Any, found: dict[str, Any]) -> None:
    first = next(iter(found["ratio"]))
    _bars(axes, found["ratio"], f"one window, {found['patch']}", f"time over {first}")


def _sizes(axes: Any, found: dict[str, Any]) -> None:
    times = {f"{name}, p = {found['exponent'][name]:.2f}": values for name, values in found["milliseconds"].items()}
    millions = [voxels / 1e6 for voxels in found["voxels"]]
    _lines(axes, millions, times, "one window: time ~ voxels^p", "million voxels")


def _channels(axes: Any, found: dict[str, Any]) -> None:
    times = {f"gate, p = {found['exponent']:.2f}": found["milliseconds"]}
    _lines(axes, found["channels"], times, f"one gate on {found['grid']}: time ~ channels^p", "channels")


def _batches(axes: Any, found: dict[str, Any]) -> None:
    _lines(axes, found["batches"], found["milliseconds"], f"one forward pass, {found['patch']}", "windows in a batch")


def _scan(axes: Any, found: dict[str, Any]) -> None:
    first = next(iter(found["ratio"]))
    _bars(axes, found["ratio"], f"one scan, {found['shape']}", f"time over {first}")


_PANELS: dict[str, Callable[[Any, Any], None]] = {
    "operator": _operator,
    "step": _step,
    "window": _window,
    "sizes": _sizes,
    "channels": _channels,
    "batches": _batches,
    "scan": _scan,
}
