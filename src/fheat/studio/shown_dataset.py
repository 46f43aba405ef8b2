"""The dataset that the service shows: images, labels and predictions case by case, the worst prediction first."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from fheat.data.case import Case, Dataset
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image, read_label
from fheat.io import read_volume, write_nifti
from fheat.io.volume import Volume
from fheat.studio.answers import Refused
from fheat.studio.asking import Asking
from fheat.studio.reading import VIEWED, Files, coarser
from fheat.studio.settings import StudioSettings
from fheat.system.errors import BadInput

Part = Literal["image", "label", "prediction"]
AT_ONCE: Final = 8
"""Cases that one process scores; a page sees their scores together."""
SCORING: Final = 600.0
"""Seconds for scoring them."""


class ShownDataset:
    """The cases of a dataset folder by their place in it. Scores are computed once, in the background."""

    def __init__(self, settings: StudioSettings, folder: Path, files: Files, asking: Asking) -> None:
        self._root, self._predictions = settings.dataset, settings.predictions
        self._folder, self._files, self._asking = folder, files, asking
        self._dataset: Dataset | None = None
        self._scores: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        """Tasks in the background: the one that scores the dataset, once `cases` was called."""

    async def cases(self) -> list[dict[str, Any]]:
        """Return all cases, those with the lowest mean Dice first and those without one last."""
        dataset = await self._open()
        if not self.tasks:
            self.tasks.append(asyncio.create_task(self._score(dataset)))
        rows = [self._row(number, case) for number, case in enumerate(dataset.cases)]
        return sorted(rows, key=lambda row: (row["dice"] is None, _mean(row["dice"]), row["case"]))

    async def file(self, number: int, part: Part) -> Path:
        """Return a file with the voxels and the affine of a part of a case, or raise `Refused`."""
        dataset = await self._open()
        if not 0 <= number < len(dataset.cases):
            raise Refused(404, "there is no such case", "GET /api/dataset lists them")
        case, target = dataset.cases[number], self._folder / f"{number}-{part}.nii"
        source = {"image": case.images[0], "label": case.label, "prediction": self._prediction(case)}[part]
        if source is None:
            raise Refused(404, f"the case has no {part}", "GET /api/dataset says which cases have one")
        if not target.exists():
            await self._files.run(case.id, _write, case, part, source, target)
        await asyncio.to_thread(os.utime, target)
        return target

    async def expire(self, keep: float) -> None:
        """Delete the copies that nobody has looked at for so many seconds."""
        await asyncio.to_thread(_remove_old, self._folder, keep)

    async def _open(self) -> Dataset:
        if self._root is None:
            raise Refused(404, "no dataset was given", "start with --dataset FOLDER")
        if self._dataset is None:
            self._dataset = await self._files.run("the dataset", open_dataset, self._root)
        assert self._dataset is not None
        return self._dataset

    async def _score(self, dataset: Dataset) -> None:
        predictions = [None if (path := self._prediction(case)) is None else str(path) for case in dataset.cases]
        for first in range(0, len(predictions), AT_ONCE):
            some = predictions[first : first + AT_ONCE]
            arguments = {"dataset": str(self._root), "first": first, "predictions": some}
            try:
                self._scores += await self._asking.ask("dataset", arguments, seconds=SCORING)
            except Refused as error:
                self._scores += [error.detail] * len(some)

    def _row(self, number: int, case: Case) -> dict[str, Any]:
        here = f"/api/dataset/{number}"
        score = self._scores[number] if number < len(self._scores) else None
        row = {
            "case": case.id,
            "split": case.split,
            "image": f"{here}/image.nii.gz",
            "label": None if case.label is None else f"{here}/label.nii.gz",
            "prediction": None if self._prediction(case) is None else f"{here}/prediction.nii.gz",
            "dice": score if isinstance(score, dict) else None,
        }
        return row | {"error": score} if isinstance(score, str) else row

    def _prediction(self, case: Case) -> Path | None:
        if self._predictions is None:
            return None
        path = self._predictions / f"{case.id}.nii.gz"
        return path if path.is_file() else None


def _mean(scores: dict[str, float] | None) -> float:
    return sum(scores.values()) / len(scores) if scores else 0.0


def _write(case: Case, part: Part, source: Path, target: Path) -> None:
    """Read a part of a case and write its voxels and affine."""
    read: dict[Part, Callable[[], Volume | None]] = {
        "image": lambda: read_image(case),
        "label": lambda: read_label(case),
        "prediction": lambda: read_volume(source),
    }
    volume = read[part]()
    if volume is None:
        raise BadInput(source, f"holds no {part}", "look at the dataset with fheat data check")
    write_nifti(coarser(volume, VIEWED), target)


def _remove_old(folder: Path, keep: float) -> None:
    for file in folder.glob("*.nii"):
        if time.time() - file.stat().st_mtime > keep:
            file.unlink()
