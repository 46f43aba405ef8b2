"""The page of an evaluation: how every metric is spread over the cases, and the worst cases first, with pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fheat.figures.page import PageSection, figure, page, paragraph, planes, row, table
from fheat.figures.plots import colours, plot
from fheat.figures.preview import contour_pngs
from fheat.io import read_volume
from fheat.io.volume import Volume, grid_difference
from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES
from fheat.metrics.grids import on_one_grid
from fheat.metrics.pairs import Pair
from fheat.metrics.statistics import mean
from fheat.metrics.table import Table, number
from fheat.metrics.table_format import DEFINITIONS
from fheat.system.errors import BadInput
from fheat.system.patterns import files_by_id
from fheat.system.progress import Progress, silent
from fheat.system.text import counted

PICTURES: Final = 8
"""Number of cases that are shown, the worst ones."""
_ENDINGS: Final = (".nii.gz", ".nii", ".nrrd", "_0000.nii.gz", "_0000.nii", "_0000.nrrd", "")
"""Endings that may follow the name of a case in that of its scan; empty for the folder of a DICOM series."""


@dataclass(frozen=True)
class CaseFiles:
    """The files of the cases by their names: pairs of masks, and scans where they are known."""

    pairs: Mapping[str, Pair]
    images: Mapping[str, Path] = field(default_factory=dict)


def scans_of(cases: Sequence[str], folder: Path, pattern: str | None = None) -> dict[str, Path]:
    """Return the scan of each case in a folder, by its name or by a pattern; cases without one are left out.

    Raises `BadInput` if there is a scan for none of them.
    """
    if pattern is not None:
        found = {case: files[0] for case, files in files_by_id(folder, pattern).items() if case in cases}
    else:
        places = {case: [folder / f"{case}{ending}" for ending in _ENDINGS] for case in cases}
        found = {case: file for case, files in places.items() for file in files[::-1] if file.exists()}
    if not found:
        raise BadInput(folder, "has no scan for any of the cases", "name scans as the masks are, or give a pattern")
    return found


def evaluation_page(
    scores: Table, files: CaseFiles | None = None, *, pictures: int = PICTURES, progress: Progress = silent
) -> str:
    """Return the page as HTML that needs no other file; the same scores and scans give the same bytes.

    Args:
        scores: the table of an evaluation.
        files: where the masks and scans are, for the pictures; without scans there are none.
        pictures: number of cases that are shown.
        progress: called with the number of pictures done and their total.
    """
    sections = [_summary_section(scores)] if scores.rows else []
    if scores.rows:
        sections += [_spread_section(scores), _cases_section(scores)]
    if files is not None and files.images:
        sections.append(_pictures_section(scores, files, pictures, progress))
    sections += [_remarks_section(scores), _definitions_section(scores)]
    classes = f"{len(scores.labels)} {'class' if len(scores.labels) == 1 else 'classes'}"
    lead = f"{counted(len(scores.cases), 'case')}, {classes}."
    lead += f" Predictions in {scores.prediction}, references in {scores.reference}." if scores.prediction else ""
    return page("Evaluation", lead, sections, _outcome(scores))


def worst_first(scores: Table) -> list[str]:
    """Return the cases by the mean of their Dice over the classes, the lowest first; equal ones keep their order."""
    held = {case: [one.scores.dice for one in scores.rows if one.case == case] for case in scores.cases}
    return sorted(held, key=lambda case: mean(held[case]))


def _outcome(scores: Table) -> str:
    """Return the result in a sentence."""
    if not scores.rows:
        return "No case could be scored."
    parts = [f"{label} {number(scores.mean('dice', label))}" for label in scores.labels]
    refused = f" {counted(len(scores.refused), 'case')} could not be scored." if scores.refused else ""
    return f"Mean Dice: {', '.join(parts)}. The worst case is {worst_first(scores)[0]}.{refused}"


def _summary_section(scores: Table) -> PageSection:
    rows = []
    for label, summary in scores.summary().items():
        cells = [
            f"{number(one.mean)} ± {number(one.sd)}" if one.sd is not None else number(one.mean)
            for one in summary.metrics.values()
        ]
        kinds = summary.kinds
        rows.append([label, *cells, str(summary.metrics["hd95"].n), str(kinds["missed"]), str(kinds["spurious"])])
    head = ("class", *(_title(name, scores) for name in METRICS), "n of distances", "missed", "spurious")
    words = "Mean ± standard deviation over the cases. A distance is not defined where a mask is empty; n says so."
    return PageSection("Summary", paragraph(words) + table(head, rows))


def _spread_section(scores: Table) -> PageSection:
    figures = [_spread(scores, metric) for metric in METRICS]
    return PageSection("Distribution of every metric", row(*(one for one in figures if one)))


def _spread(scores: Table, metric: str) -> str:
    """Return the figure of one metric: a point for each case, and a line at the median of each class."""
    columns = {
        label: sorted(one[metric] for one in scores.scores(label).values() if one[metric] is not None)
        for label in scores.labels
    }
    drawn = {label: values for label, values in columns.items() if values}
    if not drawn:
        return ""
    facts = [
        f"{label}: median {np.median(values):.4f}, from {values[0]:.4f} to {values[-1]:.4f} (n = {len(values)})"
        for label, values in drawn.items()
    ]
    caption = f"{_title(metric, scores)}, {'; '.join(facts)}."
    with plot(f"spread-{metric.replace('_', '-')}", caption) as drawing:
        for place, (colour, values) in enumerate(zip(colours(len(drawn)), drawn.values(), strict=True)):
            beside = [place + offset for offset in _offsets(values)]
            drawing.axes.plot(beside, values, "o", color=colour, alpha=0.75, markeredgewidth=0)
            middle = float(np.median(values))
            drawing.axes.plot([place - 0.3, place + 0.3], [middle, middle], color=colour, linewidth=1.9)
        drawing.axes.set(ylabel=_title(metric, scores), xlim=(-0.6, len(drawn) - 0.4))
        drawing.axes.set_xticks(range(len(drawn)), list(drawn))
    return figure(drawing.svg, caption)


def _offsets(values: Sequence[float]) -> list[float]:
    """Return how far beside the middle each of sorted values is drawn, so that near ones do not hide each other."""
    near = (values[-1] - values[0]) / 25 or 1.0
    offsets: list[float] = []
    run = 0
    for index, value in enumerate(values):
        run = run + 1 if index and value - values[index - 1] < near else 0
        offsets.append((-1) ** run * ((run + 1) // 2) * 0.06 if run < 9 else (-1) ** run * 0.27)
    return offsets


def _cases_section(scores: Table) -> PageSection:
    rows = []
    for case in worst_first(scores):
        for one in scores.rows:
            if one.case == case:
                rows.append([case, one.label, *(number(one.scores[name]) for name in METRICS), one.scores.case])
    head = ("case", "class", *(_title(name, scores) for name in METRICS), "kind")
    words = (
        "Sorted by the mean Dice over the classes. A class is missed where only the reference has voxels, and spurious "
        "where only the prediction has."
    )
    return PageSection("Cases, worst first", paragraph(words) + table(head, rows))


def _pictures_section(scores: Table, files: CaseFiles, pictures: int, progress: Progress) -> PageSection:
    chosen = [case for case in worst_first(scores) if case in files.images and case in files.pairs][:pictures]
    drawn = []
    for done, case in enumerate(chosen, start=1):
        drawn.append(_case_figure(scores, case, files))
        progress(done, len(chosen))
    words = "Three planes through the middle of the reference, prediction in orange and reference in blue."
    return PageSection("Pictures, worst first", paragraph(words) + "\n".join(drawn))


def _case_figure(scores: Table, case: str, files: CaseFiles) -> str:
    dice = ", ".join(f"{one.label} {one.scores.dice:.4f}" for one in scores.rows if one.case == case)
    try:
        pictures = contour_pngs(*_volumes(files.images[case], files.pairs[case]))
    except BadInput as error:
        return paragraph(f"{case}: no picture, because {error}.")
    return figure(planes(pictures), f"{case}. Dice: {dice}.")


def _volumes(image: Path, pair: Pair) -> tuple[Volume, Volume, Volume]:
    """Return scan, prediction and reference on the grid of the scan, or raise `BadInput`."""
    scan = read_volume(image)
    grid = Volume(scan.data[..., 0] if scan.data.ndim == 4 else scan.data, scan.affine)
    masks = []
    for path in (pair.prediction, pair.reference):
        mask = read_volume(path)
        if path.suffix == ".dcm":
            try:
                mask = on_one_grid(mask, grid, (True, False))[0]
            except ValueError as error:
                raise BadInput(path, str(error), "give the scan of this mask") from None
        elif difference := grid_difference(grid, mask):
            reason = f"field {difference.field} is {difference.second}, that of the scan {difference.first}"
            raise BadInput(path, reason, "give the scan of this mask")
        masks.append(mask)
    return grid, masks[0], masks[1]


def _remarks_section(scores: Table) -> PageSection:
    parts = [paragraph(note) for note in scores.notes]
    if scores.refused:
        rows = [[case, reason] for case, reason in scores.refused.items()]
        parts.append(table(("case that was not scored", "reason"), rows, long=True))
    return PageSection(
        "Remarks", "\n".join(parts) or paragraph("All cases were scored, and nothing is odd about them.")
    )


def _definitions_section(scores: Table) -> PageSection:
    rows: list[Any] = [[name, DEFINITIONS[name]] for name in METRICS]
    versions = ", ".join(f"{name} {version}" for name, version in scores.versions.items())
    words = f"Surface Dice is within {scores.tolerance:g} {scores.unit}." + (
        f" Written by {versions}." if versions else ""
    )
    return PageSection("Definitions", table(("metric", "definition"), rows, long=True) + paragraph(words))


def _title(metric: str, scores: Table) -> str:
    return f"{metric} ({scores.unit})" if metric in NEEDS_SURFACES[:-1] else metric
