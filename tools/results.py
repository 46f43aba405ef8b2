"""The schema of the files in benchmarks/results, the one way to write such a file, and the one way to read it.

Every stored result begins with the same head, so that a reader knows where a number comes from: `name` (that of the
file), `title` (what the result says, in one line), `command`, `machine`, `versions`, `seed`, `date` and `note`. A fact
that nobody recorded is null. `settings` says how the measurement was made (units, rounds, data), and `results` holds
what came out.
"""

import argparse
import datetime
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RUNS = ROOT / "studies" / "runs"
"""Run folders that hold only the settings and the log of a training run."""


class Machine(BaseModel):
    """The processor or GPU that measured; null where nobody recorded it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    device: str | None
    """Device as PyTorch names it, `cpu` or `cuda`."""
    name: str | None
    """Model of the processor or GPU."""
    threads: int | None
    """Number of threads that PyTorch used."""
    cores: int | None = None
    """Number of processor cores."""


class Result(BaseModel):
    """The content of one file. Every field is required; only those that may be unknown can be null."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    title: str = Field(min_length=10, pattern=r"^[^\n|]+$")
    command: str | None
    machine: Machine
    versions: dict[str, str]
    seed: int | list[int] | None
    date: str | None = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    note: str | None
    settings: dict[str, Any]
    results: dict[str, Any] = Field(min_length=1)


HEAD = ("name", "title", "command", "machine", "versions", "seed", "date", "note")


def from_root(path: Path) -> Path:
    """Return a path as commands of stored results name it: from the root of the repository, where it lies inside."""
    whole = path.resolve()
    return whole.relative_to(ROOT.resolve()) if whole.is_relative_to(ROOT.resolve()) else path


def result_names() -> list[str]:
    """Return the names of all stored results in alphabetical order."""
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def read_result(name: str) -> Result:
    """Return the stored result of this name, checked against the schema."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"there is no stored result {name}; there are {', '.join(result_names())}")
    return Result.model_validate_json(path.read_bytes())


def write_result(
    name: str,
    *,
    title: str,
    command: str,
    seed: int | list[int] | None,
    results: dict[str, Any],
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
    machine: dict[str, Any] | None = None,
    note: str | None = None,
    out: Path | None = None,
) -> Path:
    """Write a stored result with today's date and return its path, which is `out` or benchmarks/results/NAME.json.

    `machine` is what `fheat.system.machine.machine` returns; it describes this machine and `device` if it is left out.
    """
    if machine is None:
        from fheat import __version__
        from fheat.system.machine import machine as describe

        machine = {**describe(device), "fheat": __version__}
    path = out or RESULTS / f"{name}.json"
    hardware, versions = split_machine(machine)
    content = {
        "name": name,
        "title": title,
        "command": command,
        "machine": hardware,
        "versions": versions,
        "seed": seed,
        "date": datetime.date.today().isoformat(),
        "note": note,
        "settings": settings or {},
        "results": results,
    }
    path.write_text(result_text(content))
    return path


def result_text(content: dict[str, Any]) -> str:
    """Return the text of a result file after checking it: one field per line, but a list of numbers on one line."""
    text = json.dumps(content, indent=1)
    Result.model_validate_json(text)
    return re.sub(r"\[\n[^][{}]*\]", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + re.sub(r"\n\s*", " ", found[0][1:-1]).strip() + "]"


def split_machine(machine: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the hardware and the versions of a description that holds both in one mapping."""
    hardware = {field: machine[field] for field in Machine.model_fields if field in machine}
    return hardware, {package: version for package, version in machine.items() if package not in hardware}


def arguments(
    description: str | None, name: str, *, rounds: int, data: str | None = None, **words: str
) -> argparse.Namespace:
    """Read --device, --rounds and --out from the command line; `out` is benchmarks/results/NAME-DEVICE.json by default.

    With `data`, which says what the folder holds, --data is read as well, and so is an option for each of `words`, with
    its help. The attribute `name` is NAME-DEVICE.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, help=f"result file (default: benchmarks/results/{name}-DEVICE.json)")
    if data is not None:
        parser.add_argument("--data", type=Path, help=data)
    for word, meaning in words.items():
        parser.add_argument(f"--{word}", help=meaning)
    options = parser.parse_args()
    options.name = f"{name}-{options.device}"
    options.out = options.out or RESULTS / f"{options.name}.json"
    return options
