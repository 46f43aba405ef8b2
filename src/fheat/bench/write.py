"""The files of a run: `bench.json` and `bench.png`."""

import json
from pathlib import Path
from typing import Any

from fheat.bench.plot import picture
from fheat.errors import BadInput
from fheat.files import check_folder, write_file

RECORD, PICTURE = "bench.json", "bench.png"


def check_target(folder: Path, record: str | None = RECORD) -> None:
    """Refuse, before anything is measured, a folder that holds a `record` already, or a file in its place."""
    check_folder(folder)
    if record is not None and (folder / record).exists():
        raise BadInput(folder / record, "exists already", "choose another folder or remove it")


def write_record(folder: Path, record: dict[str, Any]) -> list[Path]:
    """Write the record and its picture; return what was written: without matplotlib the record alone."""
    written = [folder / RECORD]
    write_file(written[0], (json.dumps(record, indent=1) + "\n").encode())
    drawn = picture(record)
    if drawn is not None:
        written.append(folder / PICTURE)
        write_file(written[1], drawn)
    return written
