"""Content of `run.json` in a folder of masks: the model, the settings, and what became of every scan."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from fheat import __version__
from fheat.data.appearance import Unusual
from fheat.data.case import Case
from fheat.inference.ledger import Journal, Making
from fheat.inference.predictor import Predictor
from fheat.models.folder import WEIGHTS, read_manifest
from fheat.models.zoo import find_folder
from fheat.system.machine import installed_version

_LIBRARIES: Final = ("numpy", "scipy", "nibabel", "pydicom", "highdicom", "onnxruntime", "openvino")
"""Packages beside torch that read scans, run networks or write masks."""


@dataclass(frozen=True)
class SegmentedScan:
    """Entry of `run.json` for one scan that has a mask."""

    id: str
    images: list[str]
    images_sha256: list[str]
    """Hash of each file, before it was read; of a DICOM series one for all."""
    mask: str
    mask_sha256: str
    maps_sha256: dict[str, str]
    """Hash of each file with probabilities or uncertainty, by its name."""
    shape: list[int]
    spacing: list[float]
    orientation: str
    windows: int
    """Number of windows."""
    runtime: str
    precision: str
    memory_bound_bytes: int
    memory_parts_bytes: dict[str, int]
    seconds: float
    millilitres: dict[str, float]
    unusual: list[Unusual]
    """In what the scan differs from the training scans of the model, the greatest difference first."""


class FoundAgain(SegmentedScan):
    """A scan that an earlier run segmented and did not record, because it was killed."""

    @classmethod
    def of(cls, entry: Mapping[str, Any], case: Case, mask: Path) -> "FoundAgain | None":
        """Return the entry of a journal, with its files where they are now; None if it is of another version."""
        try:
            unusual = [Unusual(**one) for one in entry["unusual"]]
            here = {"id": case.id, "images": [str(image) for image in case.images], "mask": str(mask)}
            return cls(**{**entry, **here, "unusual": unusual})
        except (TypeError, KeyError):
            return None


@dataclass
class PredictionRecord:
    """Content of `run.json`: the model, the settings, and what became of every scan."""

    model: str
    weights_sha256: str | None
    """Hash of the weight file, or of each of several; None for a network that was not loaded from a folder."""
    model_sha256: str
    """Hash of all that the model adds to a mask; see `Predictor.model_sha256`."""
    input: str
    settings: dict[str, Any]
    """All that was chosen and changes masks or the maps beside them."""
    versions: dict[str, str]
    device: str
    date: str
    """When the run began, in universal time."""
    command: str = ""
    """Command that was typed; empty for a run from Python."""
    complete: bool = False
    """Whether the run came to its end; an interrupted one lists what it had done."""
    cases: list[SegmentedScan] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Files among the scans that are no scans, such as the structures of a DICOM study, each with the reason."""
    kept: list[str] = field(default_factory=list)
    """Scans that had a mask of the same scan, model and settings already."""
    refused: dict[str, str] = field(default_factory=dict)
    """Scans that were not segmented, each with the reason in one line."""

    @property
    def scans(self) -> int:
        """Number of scans that were looked at."""
        return len(self.cases) + len(self.kept) + len(self.refused)

    @property
    def making(self) -> Making:
        """Facts that decide the voxels of all masks of the run."""
        return Making.of(self._head())

    def journal(self, folder: Path) -> Journal:
        """Return a new journal of this run in the folder."""
        return Journal(folder, self._head())

    def _head(self) -> dict[str, Any]:
        return {"model_sha256": self.model_sha256, "settings": self.settings, "device": self.device}

    def text(self) -> str:
        """Return the JSON."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1) + "\n"


def new_record(predictor: Predictor, source: str | Path) -> PredictionRecord:
    """Return the record of a run that has not segmented anything yet."""
    others = {name: found for name in _LIBRARIES if (found := installed_version(name)) is not None}
    hashes = [read_manifest(find_folder(source)).sha256[WEIGHTS] for source in predictor.sources]
    return PredictionRecord(
        model=", ".join(map(str, predictor.sources)) or type(predictor.network).__name__,
        weights_sha256=", ".join(hashes) or None,
        model_sha256=predictor.model_sha256,
        input=str(source),
        settings={
            "window": predictor.windows.size,
            "stride": predictor.windows.stride,
            "visited": predictor.windows.choice,
            "weights": predictor.weights,
            "flips": predictor.flips,
            "largest_component": predictor.largest_component,
            "probabilities": predictor.probabilities,
            "uncertainty": predictor.uncertainty,
            "allow": predictor.allow,
            "precision": predictor.wanted_precision,
            "runtime": predictor.wanted_runtime,
        },
        versions={"fheat": __version__, "python": platform.python_version(), "torch": torch.__version__, **others},
        device=str(predictor.device),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
