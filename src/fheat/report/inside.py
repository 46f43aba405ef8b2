"""The section of a report on how the run's network works inside: what its bottom blocks add, where it attends."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from fheat.data.layouts import open_dataset
from fheat.errors import BadInput
from fheat.report.analysis import Questions, analyse
from fheat.report.analysis_figures import pictures
from fheat.report.analysis_record import Analysis
from fheat.report.attention_maps import Plane, map_pictures
from fheat.report.page import Section, paragraph, row
from fheat.report.saved import open_saved

TITLE = "Inside the network"


def inside_section(run: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Section:
    """Return residual spectrum and attention over the validation scans of a run, or why they cannot be had."""
    try:
        saved = open_saved(str(run))
        assert saved.record is not None
        dataset = open_dataset(saved.record.config.data)
        cases = dataset.split("validation")
        if not cases:
            return Section(TITLE, paragraph("Left out: the dataset has no validation scans."))
        planes: list[Plane] = []
        found = analyse(saved, cases, Questions(), keep=planes.append, progress=progress)
    except (BadInput, ValueError) as error:  # no network, no data, or one without such blocks or attention
        return Section(TITLE, paragraph(f"Left out: {error}."))
    analysis = Analysis(fheat=version("fheat"), dataset=dataset.name, split="validation", models=(found,))
    maps = map_pictures(analysis, {0: planes})
    return Section(TITLE, row(*(one.html for one in pictures(analysis))) + "\n".join(one.html for one in maps))
