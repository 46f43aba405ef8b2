"""Results of studies as JSON files: strict fields, and one line that names the field of a file that does not fit."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped


class Stored(BaseModel):
    """A part of a stored result: it is immutable, has no other fields and holds finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Kind = TypeVar("Kind", bound=Stored)


def read_object(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file, or raise `BadInput` with this remedy; `what` says what the file should be.

    A file of benchmarks/results has a head and holds the object in its field `results`, under the name `what`.
    """
    try:
        content = json.loads(read_capped(path, TABLE_LIMIT))
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


def validated(kind: type[Kind], content: dict[str, Any], path: Path, remedy: str) -> Kind:
    """Return the content of a file as an instance of `kind`, or raise `BadInput` naming the field that is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "(top)"
        raise BadInput(path, f"field {field}: {first['msg']}", remedy) from None
