"""Sections of a report on the run's network at work: validation scans with contours, and what it does inside."""

from fheat.figures.page import PageSection, figure, paragraph, planes, row
from fheat.figures.preview import contour_pngs
from fheat.studies.inside.figures import map_pictures, pictures
from fheat.studies.inside.measure import analyse_run
from fheat.studies.validation import ComparedScan, segment_validation_scans
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.training.runs import RunHistory, Saved


def validation_section(history: RunHistory, saved: Saved, scans: int, progress: Progress = silent) -> PageSection:
    """Return the section with the first validation scans, or with the reason why they are left out."""
    title = "Validation scans"
    try:
        segmented = segment_validation_scans(saved.model, history.settings.data, scans, progress)
        figures = [scan_figure(scan) for scan in segmented]
    except BadInput as error:
        return PageSection(title, paragraph(f"Left out, because the dataset of the run cannot be read: {error}."))
    except ValueError as error:  # the scans have other channels than the network, or its weights diverged
        return PageSection(title, paragraph(f"Left out, because the network cannot segment them: {error}."))
    if not figures:
        return PageSection(title, paragraph("Left out: the dataset has no validation scans, or none were asked for."))
    words = f"By the network in {saved.part}, full sliding window, no component removed."
    return PageSection(title, paragraph(words) + "\n".join(figures))


def scan_figure(scan: ComparedScan) -> str:
    """Return the figure of three planes of a scan with both contours, and the Dice of every class."""
    scores = ", ".join(f"{name} {score:.4f}" for name, score in scan.dice.items())
    caption = f"{scan.case}: prediction in orange, reference in blue. Dice on the scan's own grid: {scores}."
    return figure(planes(contour_pngs(scan.image, scan.predicted, scan.reference)), caption)


def inside_section(history: RunHistory, saved: Saved, progress: Progress = silent) -> PageSection:
    """Return the section with residual spectra and attention over all validation scans, or the reason without them."""
    title = "Inside the network"
    try:
        analysis, attention_planes = analyse_run(saved, history.settings.data, progress)
    except (BadInput, ValueError) as error:  # no scans, or a network without such blocks or attention
        return PageSection(title, paragraph(f"Left out: {error}."))
    maps = map_pictures(analysis, {0: attention_planes})
    drawn = row(*(picture.html for picture in pictures(analysis)))
    return PageSection(title, drawn + "\n".join(picture.html for picture in maps))
