"""The JSON and CSV files of a table of scores: their fields, and a `ValueError` of one line for a wrong one."""

import csv
import io
import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, PairKind, Unit

FORMAT: Final = 1
COLUMNS: Final = ("case", "class", *METRICS, "kind", "unit", "tolerance")
DEFINITIONS: Final = {
    "dice": "2 |P and R| / (|P| + |R|); 1 where both are empty",
    "jaccard": "|P and R| / |P or R|; 1 where both are empty",
    "hd95": "95th percentile of both directed surface distances pooled (medpy)",
    "hd95_max": "larger of the two directed 95th percentiles of surface distances (MONAI)",
    "asd": "mean distance from the surface of the prediction to that of the reference (medpy asd)",
    "assd": "mean of both directed surface distances pooled (medpy 0.5 assd)",
    "surface_dice": "share of the surface voxels of both masks within the tolerance of the other surface",
    "sd": "standard deviation with ddof = 1, over the n cases in which the metric is defined",
    "kind": "both: neither is empty; missed: prediction empty; spurious: reference empty; both_empty",
}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Line(_Strict):
    """The scores of one class in one case."""

    case: str = Field(min_length=1)
    label: str = Field(min_length=1, alias="class")
    dice: float = Field(ge=0, le=1)
    jaccard: float = Field(ge=0, le=1)
    hd95: float | None = Field(ge=0)
    hd95_max: float | None = Field(ge=0)
    asd: float | None = Field(ge=0)
    assd: float | None = Field(ge=0)
    surface_dice: float | None = Field(ge=0, le=1)
    kind: PairKind


class CsvLine(Line):
    """A row of a CSV file, which repeats the unit and the tolerance."""

    unit: Unit
    tolerance: float = Field(ge=0)


class JsonFile(_Strict):
    """The content of a JSON file. `summary` follows from the rows and is not read."""

    format: Literal[1]
    versions: dict[str, str]
    prediction: str
    reference: str
    unit: Unit
    tolerance: float = Field(ge=0)
    definitions: dict[str, str]
    rows: list[Line]
    summary: dict[str, Any]
    refused: dict[str, str]
    notes: list[str]


def json_file(text: str) -> JsonFile:
    """Return the content of a JSON file; numbers must be numbers, not texts."""
    try:
        return JsonFile.model_validate(json.loads(text), strict=True)
    except ValidationError as error:
        raise ValueError(f"field {_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None


def csv_lines(text: str) -> list[CsvLine]:
    """Return the rows of a CSV file with a header; the columns may have any order."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        head = list(reader.fieldnames or ())
        for name in COLUMNS:
            if head.count(name) != 1:
                raise ValueError(f"column {name} is {'there twice' if name in head else 'missing'}")
        return [_csv_line(cells, row) for row, cells in enumerate(reader, start=1)]
    except csv.Error as error:
        raise ValueError(f"is not CSV ({error})") from None


def _csv_line(cells: dict[str | Any, Any], row: int) -> CsvLine:
    if None in cells or None in cells.values():  # how csv reports a row with too many or too few cells
        raise ValueError(f"row {row} does not have one cell per column")
    values = {name: None if text == "" and name in NEEDS_SURFACES else text for name, text in cells.items()}
    try:
        return CsvLine.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"row {row}, column {_fault(error)}") from None


def _fault(error: ValidationError) -> str:
    """Return the first wrong field and what is wrong with it."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "at the top"
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"{where} is {ascii(first['input'])[:40]}: {first['msg']}"
