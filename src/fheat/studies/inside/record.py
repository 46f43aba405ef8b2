"""`analysis.json`: every number of the analyses of trained networks, enough to draw their figures again."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError
from pydantic import model_validator as check

from fheat.metrics.formatting import mean, moments
from fheat.system.errors import BadInput

Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
NAME = "analysis.json"
_REMEDY = "give a file written with --figures"


class Stored(BaseModel):
    """A part of the file: fields that fit, finite numbers, nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Kind = TypeVar("Kind", bound=Stored)


class ResidualCase(Stored):
    """The residual spectrum of one scan: energies averaged over channels, blocks and windows, then divided by total."""

    case: str
    windows: PositiveInt
    energy: tuple[Share, ...]
    """Share of every bin; they add up to 1."""
    share_above: Share
    share_constant: Share
    share_above_without_constant: Share | None


class Residual(Stored):
    """What the blocks at the bottom add, by normalised radius."""

    blocks: tuple[str, ...]
    """Module paths."""
    grid: tuple[PositiveInt, ...]
    radius: tuple[Share, ...]
    """Middle of every bin, r / max r of the grid's orthonormal DCT-II."""
    modes: tuple[int, ...]
    """In every bin."""
    cut: Share
    modes_above: Share
    """Share of the modes above the cut: what white noise has there."""
    constant_counted: Literal[True] = True
    """The constant mode is part of the total and of the first bin."""
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
        """Share of every bin, mean over the scans."""
        return [mean(column) for column in zip(*(case.energy for case in self.cases), strict=True)]

    @property
    def shares(self) -> list[float]:
        """Share above the cut, scan by scan."""
        return [case.share_above for case in self.cases]


class AttentionCase(Stored):
    """Attention inside the target of one scan."""

    case: str
    share: Share
    chance: Annotated[float, Field(gt=0, le=1)]
    """Share of the voxels that are target."""
    over_chance: NonNegativeFloat


class Attention(Stored):
    """How much of the attention lies inside the target."""

    upsampling: Literal["trilinear", "nearest"]
    cases: Annotated[tuple[AttentionCase, ...], Field(min_length=1)]

    @property
    def shares(self) -> list[float]:
        """Scan by scan."""
        return [case.share for case in self.cases]

    @property
    def chances(self) -> list[float]:
        """Scan by scan."""
        return [case.chance for case in self.cases]


class ModelAnalysis(Stored):
    """One network."""

    name: str
    network: str
    part: str | None
    iteration: int | None
    windows: dict[Literal["size", "stride"], tuple[PositiveInt, PositiveInt, PositiveInt]]
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None
    residual: Residual | None = None
    attention: Attention | None = None


class Analysis(Stored):
    """The content of the file."""

    format: Literal[1] = 1
    fheat: str
    dataset: str
    split: str
    models: Annotated[tuple[ModelAnalysis, ...], Field(min_length=1)]

    def text(self) -> str:
        """Return the JSON, with means and deviations beside what they are taken over."""
        content = self.model_dump(mode="json")
        return json.dumps({**content, "summary": self.summary()}, indent=1, allow_nan=False) + "\n"

    def summary(self) -> list[dict[str, Any]]:
        """Return mean and standard deviation (n - 1) over the scans, network by network."""
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
    """Return the analysis in a file, or raise `BadInput` naming the field that does not fit."""
    content = read_stored(path)
    content.pop("summary", None)  # follows from the rest
    return parsed(Analysis, content, path)


def read_stored(path: Path, what: str = "analysis", remedy: str = _REMEDY) -> dict[str, Any]:
    """Return the object in a JSON file, or raise `BadInput`.

    A file of benchmarks/results has a head and holds the object in its field `results`, under the name `what`.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        results = content.get("results")
        inner = results.get(what) if isinstance(results, dict) else None
        content = inner if isinstance(inner, dict) else content
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", remedy) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(path, f"is not a stored {what} ({error})", remedy) from None
    return content


def parsed(kind: type[Kind], content: dict[str, Any], path: Path, remedy: str = _REMEDY) -> Kind:
    """Return the content of a file as what it should be, or raise `BadInput` naming the field that does not fit."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "(top)"
        raise BadInput(path, f"field {field}: {first['msg']}", remedy) from None
