"""Fig. 7: the image gradient along the boundaries of two tumour regions, in the scans as downloaded."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fheat import __version__
from fheat.data.layouts import open_dataset
from fheat.experiments.items.presented import Presented, notes_on, published_sheet
from fheat.experiments.plan import Plan, remedy
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult
from fheat.experiments.tables import NOTHING, Number
from fheat.metrics.statistics import TEST, MeanAndDeviation
from fheat.studies.contrast import (
    BETWEEN,
    ContrastRecord,
    contrast_picture,
    measure_contrast,
    read_contrast,
    regions_of,
)
from fheat.system.files import write_file


def stored_at(item: Item, plan: Plan) -> Path | None:
    """Return where the measurement of the scans that are given is stored; None without them."""
    folder = plan.data.get(str(item.dataset))
    if folder is None:
        return None
    cases = [case for case in open_dataset(folder).cases if case.label is not None]
    files = [file for case in cases for file in (*case.images, case.label) if file is not None]
    facts = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return plan.out / "measured" / f"{item.name}-{hashlib.sha256('/'.join(facts).encode()).hexdigest()[:12]}.json"


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the measured numbers beside the published ones, and the figure; only the published ones without data."""
    path = stored_at(item, plan)
    if path is None:
        problem = f"no data: {remedy(str(item.dataset))}"
        missing = [Number("", name, value, state=problem) for name, value in item.published.items()]
        return Presented((published_sheet(item, missing),), tuple(missing), notes=tuple(notes_on(item, results, plan)))
    record = read_contrast(path) if path.is_file() else _measured(path, plan.data[str(item.dataset)])
    ours = _quantities(record)
    numbers = tuple(Number("", name, value, ours.get(name, NOTHING)) for name, value in item.published.items())
    notes = (*notes_on(item, results, plan), f"{len(record.cases)} scans; p: {TEST}, here without correction.")
    drawn = replace(contrast_picture(record), file=f"{item.name}.svg")
    return Presented((published_sheet(item, numbers),), numbers, (drawn,), notes)


def _measured(path: Path, folder: Path) -> ContrastRecord:
    dataset = open_dataset(folder)
    record = measure_contrast(dataset, regions_of(dataset), BETWEEN, fheat=__version__)
    write_file(path, (json.dumps(record.content(), indent=1) + "\n").encode())
    return record


def _quantities(record: ContrastRecord) -> dict[str, MeanAndDeviation]:
    """Return our numbers by the names of the published ones: means of both regions, ratio and p of each modality."""
    found: dict[str, MeanAndDeviation] = {}
    for test in record.tests:
        values = {
            "tumour core": test.first_mean,
            "enhancing tumour": test.second_mean,
            "ratio": test.ratio,
            "p": test.p,
        }
        found |= {f"{test.modality}, {name}": MeanAndDeviation(value, None, test.n) for name, value in values.items()}
    return found
