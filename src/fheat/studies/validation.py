"""Scans with labels, such as the validation scans of a run, segmented and compared with their references."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from fheat.data.case import Case
from fheat.data.read import read_image, read_label
from fheat.inference.predictor import Predictor
from fheat.io.volume import Volume
from fheat.metrics.masks import dice
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.training.scans import open_run_dataset
from fheat.training.settings import DataSettings


@dataclass(frozen=True)
class ComparedScan:
    """One scan with its predicted mask, its reference mask and the Dice of every class on the scan's own grid."""

    case: str
    image: Volume
    predicted: Volume
    reference: Volume
    dice: dict[str, float]


def segment_validation_scans(
    model: nn.Module, data: DataSettings, count: int, progress: Progress = silent
) -> Iterator[ComparedScan]:
    """Yield the first `count` validation scans of a run, see `segment_cases`."""
    yield from segment_cases(Predictor(model), open_run_dataset(data).split("validation")[:count], progress)


def segment_cases(predictor: Predictor, cases: Sequence[Case], progress: Progress = silent) -> Iterator[ComparedScan]:
    """Yield scans that have a label, segmented by a network with its full sliding window.

    One scan is in memory at a time. Raises `BadInput` where a scan cannot be read or has no label, and `ValueError`
    where the network cannot segment it.
    """
    for done, case in enumerate(cases, start=1):
        image = read_image(case)
        reference = read_label(case, image)
        if reference is None:
            raise BadInput(case.images[0], "has no label to compare with", "choose another scan")
        predicted = predictor.segment(image, check=False)  # its Dice says more about the scan than a warning
        scores = {
            name: dice(np.isin(predicted.data, values), np.isin(reference.data, values))
            for name, values in predictor.classes.items()
        }
        yield ComparedScan(case.id, image, predicted, reference, scores)
        progress(done, len(cases))
