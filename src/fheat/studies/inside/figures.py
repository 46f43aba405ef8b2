"""Figures of what networks do inside: residual spectra, attention inside the target, and maps of attention.

They are drawn from the stored files alone, and each caption states the numbers.
"""

from collections.abc import Sequence

from fheat.figures.picture import Picture, png_picture, svg_picture
from fheat.figures.plots import colours, plot, plt, png_bytes
from fheat.metrics.statistics import mean, moments
from fheat.studies.inside.record import Analysis, Attention, ModelAnalysis, Plane, PlanesByModel, Residual
from fheat.system.text import grid_name

_TARGET_COLOUR = "#35c9ff"


def pictures(analysis: Analysis) -> list[Picture]:
    """Return the figures of an analysis: residual spectra and attention, as far as they were measured."""
    spectra = [(model, model.residual) for model in analysis.models if model.residual is not None]
    maps = [(model, model.attention) for model in analysis.models if model.attention is not None]
    drawn = [residual_picture(spectra)] if spectra else []
    return [*drawn, attention_picture(maps)] if maps else drawn


def residual_picture(spectra: Sequence[tuple[ModelAnalysis, Residual]]) -> Picture:
    """Return the figure of the residual's energy by normalised radius: every scan a thin line, white noise dashed."""
    caption = "What the blocks at the bottom add (output minus input), share of its energy by normalised radius. "
    caption += " ".join(_residual_words(model.name, residual) for model, residual in spectra)
    with plot("residual", caption) as drawing:
        axes = drawing.axes
        for colour, (model, residual) in zip(colours(len(spectra)), spectra, strict=True):
            for case in residual.cases:
                axes.plot(residual.radius, case.energy, color=colour, linewidth=0.6, alpha=0.35)
            axes.plot(residual.radius, residual.energy, "o-", color=colour, markersize=4, label=model.name)
        for grid, residual in {residual.grid: residual for _, residual in spectra}.items():
            flat = [count / sum(residual.modes) for count in residual.modes]
            label = f"white noise on {grid_name(grid)}"
            axes.plot(residual.radius, flat, "--", color="tab:gray", linewidth=1.1, label=label)
        for cut in sorted({residual.cut for _, residual in spectra}):
            axes.axvline(cut, color="tab:red", linewidth=1.0, linestyle=":")
        axes.set(xlabel="normalised radius r / max r", ylabel="share of energy", xlim=(0, 1), ylim=(0, None))
        axes.legend()
    return svg_picture("residual", drawing.svg, caption)


def attention_picture(maps: Sequence[tuple[ModelAnalysis, Attention]]) -> Picture:
    """Return the figure of the share of attention inside the target, scan by scan, beside that of even attention."""
    caption = "Share of the attention inside the target, scan by scan; grey is the share of the voxels, which is what "
    caption += "even attention has. " + " ".join(_attention_words(model.name, attention) for model, attention in maps)
    with plot("attention", caption) as drawing:
        axes = drawing.axes
        names = list(dict.fromkeys(case.case for _, attention in maps for case in attention.cases))
        chance = {case.case: case.chance for _, attention in reversed(maps) for case in attention.cases}
        axes.bar(range(len(names)), [100 * chance[name] for name in names], color="tab:gray", alpha=0.45, width=0.7)
        for order, (colour, (model, attention)) in enumerate(zip(colours(len(maps)), maps, strict=True)):
            shift = 0.5 * ((order + 0.5) / len(maps) - 0.5)
            places = [names.index(case.case) + shift for case in attention.cases]
            axes.plot(places, [100 * share for share in attention.shares], "o", color=colour, label=model.name)
        highest = max([*chance.values(), *(share for _, attention in maps for share in attention.shares)])
        axes.set(xlabel="scan", ylabel="inside the target, %", ylim=(0, 125 * highest))  # room for the legend
        axes.set_xticks(range(len(names)), [str(number) for number in range(1, len(names) + 1)])
        axes.legend()
    return svg_picture("attention", drawing.svg, caption)


def map_pictures(analysis: Analysis, planes: PlanesByModel) -> list[Picture]:
    """Return one picture for every network that has planes, with its scans in a row."""
    return [_map_picture(place, analysis.models[place], scans) for place, scans in planes.items() if scans]


def percent(values: list[float]) -> str:
    """Return the mean and standard deviation over scans in words, such as `29.7% (SD 5.5, 8 scans)`."""
    spread = moments(values).sd
    count = f"{len(values)} scan{'s' if len(values) > 1 else ''}"
    deviation = "" if spread is None else f"SD {100 * spread:.1f}, "
    return f"{100 * mean(values):.1f}% ({deviation}{count})"


def _residual_words(name: str, residual: Residual) -> str:
    if sum(residual.modes) == 1:
        return f"{name}, {', '.join(residual.blocks)}: a grid of one voxel has no frequency but the constant."
    constant = mean([case.share_constant for case in residual.cases])
    return (
        f"{name}, {', '.join(residual.blocks)} on {grid_name(residual.grid)}: {percent(residual.shares)} lies above "
        f"{residual.cut:g}, where white noise has {residual.modes_above:.1%}; the constant mode is counted and holds "
        f"{constant:.1%}."
    )


def _attention_words(name: str, attention: Attention) -> str:
    chance, ratio = mean(attention.chances), mean([case.over_chance for case in attention.cases])
    return f"{name}: {percent(attention.shares)} in {chance:.1%} of the voxels, {ratio:.2f} times as much as chance."


def _map_picture(place: int, model: ModelAnalysis, planes: Sequence[Plane]) -> Picture:
    cases = () if model.attention is None else model.attention.cases
    shares = [f"{case.share:.1%}" for case in cases[: len(planes)]]
    caption = (
        f"Attention of {model.name}, each scan coloured from its least to its most, on the plane through the middle of "
        f"the target, whose contour is blue. Inside the target of the whole scan, from left to right: "
        f"{', '.join(shares)}."
    )
    aspect = 1.0 if model.spacing is None else model.spacing[1] / model.spacing[0]
    canvas, axes = plt.subplots(1, len(planes), figsize=(2.4 * len(planes), 2.6), dpi=100, squeeze=False)
    for panel, plane in zip(axes[0], planes, strict=True):
        panel.imshow(plane.image.T, "gray", origin="lower", vmin=0, vmax=255, aspect=aspect)
        panel.imshow(plane.attention.T, "inferno", origin="lower", alpha=0.55, aspect=aspect)
        if plane.target.any() and not plane.target.all():
            panel.contour(plane.target.T, [0.5], colors=[_TARGET_COLOUR], linewidths=1.2)
        panel.set_axis_off()
    canvas.subplots_adjust(0.005, 0.005, 0.995, 0.995, wspace=0.03)
    return png_picture(f"attention-maps-{place + 1}", png_bytes(canvas), caption)
