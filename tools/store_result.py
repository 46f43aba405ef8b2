"""Store what a command of fheat printed with --json: `python tools/store_result.py bench-cpu bench.json --title "..."`.

The fields `command`, `machine` and `seed` of the file become part of the head. Of the others, `--results` names those
that are results; the rest are settings. With `--whole NAME` the file stays as it is under that name in `results`, so
that `fheat simulate --from` and `fheat allocation --from` can read the stored result.
"""

import json
from pathlib import Path
from typing import Annotated

import tyro
from results import read_result, result_names, write_result


def main(
    name: Annotated[str, tyro.conf.Positional],
    file: Annotated[Path, tyro.conf.Positional],
    /,
    title: str | None = None,
    command: str | None = None,
    results: tuple[str, ...] = ("results",),
    whole: str | None = None,
    device: str = "cpu",
    note: str | None = None,
) -> None:
    """Write benchmarks/results/NAME.json.

    Args:
        name: name of the stored result.
        file: JSON file that the command printed or wrote.
        title: what the result says, in one line; by default that of the earlier result of this name.
        command: the command, if the file does not state it.
        results: fields of the file that are results.
        whole: name under which the file is kept as it is.
        device: device of this machine, if the file does not describe its machine.
        note: what the other fields do not tell.
    """
    content = json.loads(file.read_text())
    if title is None and name in result_names():
        title = read_result(name).title
    if title is None:
        raise SystemExit(f"{name} is new: say what it shows with --title")
    head = {field: content.get(field) for field in ("command", "machine", "seed")}
    if whole is not None:
        kept, settings = {whole: content}, {}
    else:
        kept = {field: content[field] for field in results}
        settings = {field: value for field, value in content.items() if field not in (*results, *head)}
        if tuple(kept) == ("results",):
            kept = kept["results"]
    path = write_result(
        name,
        title=title,
        command=command or head["command"],
        seed=head["seed"],
        device=device,
        machine=head["machine"],
        note=note,
        settings=settings,
        results=kept,
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    tyro.cli(main)
