"""Figures of the analyses of trained networks, drawn from `analysis.json` alone, each with a caption in numbers."""

from collections.abc import Sequence

from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import colours, plot
from fheat.metrics.formatting import mean, moments
from fheat.studies.inside.record import Analysis, Attention, ModelAnalysis, Residual


def pictures(analysis: Analysis) -> list[Picture]:
    """Return the figures there are numbers for."""
    spectra = [(model, model.residual) for model in analysis.models if model.residual is not None]
    maps = [(model, model.attention) for model in analysis.models if model.attention is not None]
    found = [residual_picture(spectra)] if spectra else []
    return [*found, attention_picture(maps)] if maps else found


def residual_picture(spectra: Sequence[tuple[ModelAnalysis, Residual]]) -> Picture:
    """Draw the share of the residual's energy by normalised radius, every scan a thin line, white noise dashed."""
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
            label = f"white noise on {_grid(grid)}"
            axes.plot(residual.radius, flat, "--", color="tab:gray", linewidth=1.1, label=label)
        for cut in sorted({residual.cut for _, residual in spectra}):
            axes.axvline(cut, color="tab:red", linewidth=1.0, linestyle=":")
        axes.set(xlabel="normalised radius r / max r", ylabel="share of energy", xlim=(0, 1), ylim=(0, None))
        axes.legend()
    return svg_picture("residual", drawing.svg, caption)


def attention_picture(maps: Sequence[tuple[ModelAnalysis, Attention]]) -> Picture:
    """Draw the share of the attention inside the target, scan by scan, beside what even attention has."""
    caption = "Share of the attention inside the target, scan by scan; grey is the share of the voxels, which is what "
    caption += "even attention has. " + " ".join(_attention_words(model.name, found) for model, found in maps)
    with plot("attention", caption) as drawing:
        axes = drawing.axes
        names = list(dict.fromkeys(case.case for _, found in maps for case in found.cases))
        chance = {case.case: case.chance for _, found in reversed(maps) for case in found.cases}
        axes.bar(range(len(names)), [100 * chance[name] for name in names], color="tab:gray", alpha=0.45, width=0.7)
        for order, (colour, (model, found)) in enumerate(zip(colours(len(maps)), maps, strict=True)):
            shift = 0.5 * ((order + 0.5) / len(maps) - 0.5)
            places = [names.index(case.case) + shift for case in found.cases]
            axes.plot(places, [100 * share for share in found.shares], "o", color=colour, label=model.name)
        highest = max([*chance.values(), *(share for _, found in maps for share in found.shares)])
        axes.set(xlabel="scan", ylabel="inside the target, %", ylim=(0, 125 * highest))  # room for the legend
        axes.set_xticks(range(len(names)), [str(number) for number in range(1, len(names) + 1)])
        axes.legend()
    return svg_picture("attention", drawing.svg, caption)


def percent(values: list[float]) -> str:
    """Return mean and deviation over scans in words: `29.7% (SD 5.5, 8 scans)`."""
    spread = moments(values).sd
    count = f"{len(values)} scan{'s' if len(values) > 1 else ''}"
    deviation = "" if spread is None else f"SD {100 * spread:.1f}, "
    return f"{100 * mean(values):.1f}% ({deviation}{count})"


def _residual_words(name: str, residual: Residual) -> str:
    if sum(residual.modes) == 1:
        return f"{name}, {', '.join(residual.blocks)}: a grid of one voxel has no frequency but the constant."
    constant = mean([case.share_constant for case in residual.cases])
    return (
        f"{name}, {', '.join(residual.blocks)} on {_grid(residual.grid)}: {percent(residual.shares)} lies above "
        f"{residual.cut:g}, where white noise has {residual.modes_above:.1%}; the constant mode is counted and holds "
        f"{constant:.1%}."
    )


def _attention_words(name: str, found: Attention) -> str:
    chance, ratio = mean(found.chances), mean([case.over_chance for case in found.cases])
    return f"{name}: {percent(found.shares)} in {chance:.1%} of the voxels, {ratio:.2f} times as much as chance."


def _grid(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))
