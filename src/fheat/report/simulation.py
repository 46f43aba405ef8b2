"""The picture of a simulation, as Fig. 3 of the paper: interchangeable gates, one planted site, strengths that lock."""

import io
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PICTURE = "simulation.png"
_PLANTED = "tab:red"
_IDLE = "tab:gray"


def simulation_picture(record: dict[str, Any]) -> bytes:
    """Return the PNG of a record, its panels side by side; without controls the last one is left out."""
    shown = record["trajectories"]
    panels = [_interchangeable, _differentiated, *([_locking] if "softplus" in shown else [])]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.7 * len(panels), 3.7), dpi=120, layout="constrained")
    try:
        for each, draw in zip(axes, panels, strict=True):
            draw(each, record)
            each.set_xscale("symlog", linthresh=1)
            ticks = [0, *(10**power for power in range(8) if 10**power <= shown["iterations"][-1])]
            each.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            each.set(xlabel="iteration", xlim=(0, shown["iterations"][-1]))
            each.spines[["top", "right"]].set_visible(False)
            each.grid(alpha=0.25)
        page = io.BytesIO()
        figure.savefig(page, format="png", metadata={"Software": None})
    finally:
        plt.close(figure)
    return page.getvalue()


def _interchangeable(axes: Any, record: dict[str, Any]) -> None:
    shown, found = record["trajectories"], record["interchangeable"]
    for site, values in enumerate(_by_site(shown["interchangeable"])):
        axes.plot(shown["iterations"], values, color="tab:blue", alpha=0.7, label="eight gates" if site == 0 else None)
    axes.axhline(found["exact"], color="black", linestyle=":", label=f"even share {found['exact']:.3g}")
    title = f"(a) interchangeable: D = {found['runs'][0]['mean']:.3f} ± {found['runs'][0]['sd']:.3f}"
    axes.set(title=title, ylabel="strength D", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _differentiated(axes: Any, record: dict[str, Any]) -> None:
    shown = record["trajectories"]
    run = _shown_run(record)
    label: str | None = f"target = signal, P = 0: D = {max(_others(run)):.3g}"
    for site, values in enumerate(_by_site(shown["differentiated"]), start=1):
        if site != run["planted"]:
            axes.plot(shown["iterations"], values, color=_IDLE, label=label)
            label = None
    planted = run["planted"] - 1
    label = f"site {run['planted']}, P = {run['pairing'][planted]:.0f}: D = {run['D'][planted]:.3f}"
    axes.plot(shown["iterations"], _by_site(shown["differentiated"])[planted], color=_PLANTED, label=label)
    axes.axhline(run["best"], color="black", linestyle=":", label=f"best fit {run['best']:.3f}")
    axes.set(title="(b) differentiated: one site is to blur", ylabel="strength D", ylim=(-0.02, None))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.92))


def _locking(axes: Any, record: dict[str, Any]) -> None:
    shown, planted = record["trajectories"], _shown_run(record)["planted"]
    idle = 0 if planted != 1 else 1
    ends = []
    for name, field, colour in (
        ("relu", "differentiated", _IDLE),
        ("softplus", "softplus", "tab:green"),
        ("exp", "exp", "tab:orange"),
    ):
        values = _by_site(shown[field])[idle]
        style = "--" if name == "exp" else "-"
        label = f"{name}: {values[-1]:.1e}" if values[-1] else f"{name}: exactly 0"
        axes.plot(shown["iterations"], values, style, color=colour, label=label)
        ends += [value for value in values if value > 0]
    axes.set(title="(c) a site with P = 0, by kind of strength", ylabel="strength D")
    axes.set_yscale("symlog", linthresh=min(ends))
    axes.set_ylim(-0.2 * min(ends), None)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 0.12))


def _by_site(rows: list[list[float]]) -> list[list[float]]:
    """Turn (kept, sites) into (sites, kept)."""
    return [list(values) for values in zip(*rows, strict=True)]


def _shown_run(record: dict[str, Any]) -> dict[str, Any]:
    """Return the run that the trajectories are of: the first seed with the planted site that the record names."""
    planted = record["trajectories"]["planted"]
    return next(run for run in record["differentiated"]["runs"] if run["planted"] == planted)


def _others(run: dict[str, Any]) -> list[float]:
    return [value for site, value in enumerate(run["D"], start=1) if site != run["planted"]]
