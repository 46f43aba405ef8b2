"""Stored results of a look inside networks: `analysis.json` has every number, `attention-maps.npz` planes of scans.

The figures are drawn again from these two files alone.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic import model_validator as check

from fheat.metrics.statistics import mean, moments
from fheat.studies.stored import Stored, read_object, validated
from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped

ANALYSIS, MAPS = "analysis.json", "attention-maps.npz"
REMEDY = "give a file written with --figures"
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
_PLANES_REMEDY = "remove it, or run the analysis again"
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors that a damaged archive may raise."""


class ResidualCase(Stored):
    """The residual spectrum of one scan: energies averaged over channels, blocks and windows, divided by their sum."""

    case: str
    windows: PositiveInt
    """Number of windows that the blocks saw."""
    energy: tuple[Share, ...]
    """Share of the energy in every bin; the shares add up to 1."""
    share_above: Share
    """Share of the energy above the cut."""
    share_constant: Share
    """Share of the energy in the constant mode."""
    share_above_without_constant: Share | None
    """Share above the cut of the energy without the constant mode."""


class Residual(Stored):
    """Energy of what the blocks at the bottom of a network add to their input, by normalised radius."""

    blocks: tuple[str, ...]
    """Module paths of the blocks."""
    grid: tuple[PositiveInt, ...]
    radius: tuple[Share, ...]
    """Middle of every bin, in units of r / max r of the grid's orthonormal DCT-II."""
    modes: tuple[int, ...]
    """Number of modes in every bin."""
    cut: Share
    """Normalised radius above which energy counts as high-frequency."""
    modes_above: Share
    """Share of the modes above the cut, which is the share of the energy that white noise has there."""
    constant_counted: Literal[True] = True
    """Whether the constant mode is part of the total and of the first bin."""
    cases: Annotated[tuple[ResidualCase, ...], Field(min_length=1)]
    by_block: dict[str, Share | None]
    """Share above the cut of every block, energies averaged over all windows of all scans."""

    @check(mode="after")
    def _fits_its_bins(self) -> Self:
        if any(len(part) != len(self.radius) for part in (self.modes, *(case.energy for case in self.cases))):
            raise ValueError("radius, modes and energy must have one value per bin")
        return self

    @property
    def energy(self) -> list[float]:
        """Share of the energy in every bin, mean over the scans."""
        return [mean(column) for column in zip(*(case.energy for case in self.cases), strict=True)]

    @property
    def shares(self) -> list[float]:
        """Share of the energy above the cut, scan by scan."""
        return [case.share_above for case in self.cases]


class AttentionCase(Stored):
    """How much of the attention on one scan lies inside the target: the fields of `Concentration`."""

    case: str
    share: Share
    chance: Annotated[float, Field(gt=0, le=1)]
    """Share of the voxels that lie inside the target."""
    over_chance: NonNegativeFloat


class Attention(Stored):
    """How much of the attention of one network lies inside the target, scan by scan."""

    upsampling: Literal["trilinear", "nearest"]
    cases: Annotated[tuple[AttentionCase, ...], Field(min_length=1)]

    @property
    def shares(self) -> list[float]:
        """Share of the attention inside the target, scan by scan."""
        return [case.share for case in self.cases]

    @property
    def chances(self) -> list[float]:
        """Share of the voxels inside the target, scan by scan."""
        return [case.chance for case in self.cases]


class ModelAnalysis(Stored):
    """The results of one network."""

    name: str
    network: str
    part: str | None
    iteration: int | None
    windows: dict[Literal["size", "stride"], tuple[PositiveInt, PositiveInt, PositiveInt]]
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None
    residual: Residual | None = None
    attention: Attention | None = None


class Analysis(Stored):
    """The content of `analysis.json`."""

    format: Literal[1] = 1
    fheat: str
    dataset: str
    split: str
    models: Annotated[tuple[ModelAnalysis, ...], Field(min_length=1)]

    def text(self) -> str:
        """Return the JSON text, which has a summary beside the results."""
        content = self.model_dump(mode="json")
        return json.dumps({**content, "summary": self.summary()}, indent=1, allow_nan=False) + "\n"

    def summary(self) -> list[dict[str, Any]]:
        """Return the mean and standard deviation (ddof = 1) over the scans, network by network."""
        rows = []
        for model in self.models:
            row: dict[str, Any] = {"name": model.name}
            if model.residual is not None:
                row["residual_share_above"] = vars(moments(model.residual.shares))
                row["residual_white_noise"] = model.residual.modes_above
            if model.attention is not None:
                row["attention_share"] = vars(moments(model.attention.shares))
                row["attention_chance"] = vars(moments(model.attention.chances))
                ratios = [case.over_chance for case in model.attention.cases]
                row["attention_over_chance"] = vars(moments(ratios))
            rows.append(row)
        return rows


def read_analysis(path: Path) -> Analysis:
    """Return the analysis in a file that holds it alone, or under `analysis` as results of benchmarks do.

    Raises `BadInput` naming the field that is wrong.
    """
    content = read_object(path, "analysis", REMEDY)
    inner = content.get("analysis", content)
    content = dict(inner) if isinstance(inner, dict) else content
    content.pop("summary", None)  # it is computed from the other fields
    return validated(Analysis, content, path, REMEDY)


@dataclass(frozen=True)
class Plane:
    """The plane of one scan that is drawn: through the middle of the target, across the last axis, (X, Y)."""

    image: NDArray[np.uint8]
    """Grey values of the first channel, from its 1st to its 99th percentile."""
    attention: NDArray[np.float32]
    target: NDArray[np.bool_]


PlanesByModel = Mapping[int, Sequence[Plane]]
"""Planes of each network in the order of its scans, by the position of the network in the analysis."""
_PARTS: Mapping[str, Any] = {"image": np.uint8, "attention": np.float32, "target": np.bool_}


def planes_bytes(planes: PlanesByModel) -> bytes:
    """Return the content of `attention-maps.npz` with these planes."""
    arrays: dict[str, Any] = {}
    for model, scans in planes.items():
        for scan, plane in enumerate(scans):
            for part in _PARTS:
                arrays[f"{model}-{scan}-{part}"] = getattr(plane, part)
    archive = BytesIO()
    np.savez_compressed(archive, **arrays)
    return archive.getvalue()


def read_planes(path: Path, models: int) -> dict[int, list[Plane]]:
    """Return the planes in the `attention-maps.npz` of this number of networks, or raise `BadInput`.

    There are no planes where there is no file.
    """
    if not path.exists():
        return {}
    planes: dict[int, list[Plane]] = {}
    try:
        data = read_capped(path, TABLE_LIMIT)
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", _PLANES_REMEDY) from None
    try:
        with np.load(BytesIO(data)) as arrays:
            places = sorted({tuple(map(int, name.split("-")[:2])) for name in arrays.files})
            for model, scan in places:
                if model >= models:
                    raise ValueError("planes of a network that is not in the analysis")
                parts = {part: arrays[f"{model}-{scan}-{part}"].astype(kind) for part, kind in _PARTS.items()}
                if len({part.shape for part in parts.values()}) != 1 or parts["image"].ndim != 2:
                    raise ValueError("planes differ in shape")
                planes.setdefault(model, []).append(Plane(**parts))
    except _DAMAGED:  # what the libraries say is about their own options, not about this file
        raise BadInput(path, "is not a stored set of attention maps (damaged)", _PLANES_REMEDY) from None
    return planes
