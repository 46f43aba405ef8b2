"""How the network of a run is scored: on which scans of its dataset, with which windows, in which unit."""

from pathlib import Path
from typing import Literal

from torch import nn

from fheat import __version__
from fheat.data.case import Case
from fheat.data.read import read_image, read_label
from fheat.inference.predictor import Predictor
from fheat.inference.windows import Windows
from fheat.metrics.evaluate import evaluate_labels
from fheat.metrics.table import ScoreRow, Table
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.system.settings import Section, Triple
from fheat.system.text import counted
from fheat.training.scans import open_run_dataset
from fheat.training.settings import DataSettings, TrainSettings


class Scoring(Section):
    """How the network of a run is scored."""

    split: Literal["validation", "test"] = "validation"
    """Scans that are segmented and compared with their labels."""
    network: Literal["best", "final"] = "best"
    """The network with the best validation Dice, or the one after the last iteration."""
    stride: Triple | None = None
    """Steps of the sliding window in voxels; those of the validation if none."""
    largest_component: bool = False
    """Whether only the largest component of each class is kept."""
    voxels: bool = True
    """Whether distances are in voxels, as the semi-supervised papers print them, instead of millimetres."""


def score(
    model: Path | nn.Module,
    settings: TrainSettings,
    scoring: Scoring,
    *,
    device: str | None = None,
    progress: Progress = silent,
) -> Table:
    """Segment the scans of a split with a network that has a card, and return the scores of every case and class."""
    cases = cases_to_score(settings.data, scoring.split)
    stride = scoring.stride or settings.validation.stride
    windows = None if stride is None else Windows(settings.data.patch_size, stride)
    predictor = Predictor(model, windows=windows, largest_component=scoring.largest_component, device=device)
    rows: list[ScoreRow] = []
    for done, case in enumerate(cases, start=1):
        image = read_image(case)
        label = read_label(case, image)
        assert label is not None  # see `cases_to_score`
        spacing = None if scoring.voxels else image.spacing
        scores = evaluate_labels(predictor.segment(image).data, label.data, predictor.classes, spacing)
        rows += [ScoreRow(case.id, name, of_class) for name, of_class in scores.items()]
        progress(done, len(cases))
    return Table(
        tuple(rows),
        unit="voxels" if scoring.voxels else "mm",
        prediction=f"{scoring.network} network",
        reference=f"{scoring.split} scans of {settings.data.folder}",
        versions={"fheat": __version__},
    )


def cases_to_score(data: DataSettings, split: str) -> tuple[Case, ...]:
    """Return the scans of a split of a run's dataset, or raise `BadInput` where it has none or one has no label."""
    dataset = open_run_dataset(data)
    cases = dataset.split(split)
    if not cases:
        raise BadInput(dataset.root, f"has no {split} scans to score a network on", "add that split")
    bare = [case.id for case in cases if case.label is None]
    if bare:
        reason = f"has {counted(len(bare), f'{split} scan')} without a label, such as {bare[0]}"
        raise BadInput(dataset.root, reason, "add the labels, or score on another split")
    return cases
