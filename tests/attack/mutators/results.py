"""Tables of scores in JSON and CSV: values outside their range, contradicting kinds, doubled rows, bytes."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, Scores
from fheat.metrics.table import ScoreRow, Table
from tests.attack.kinds import Kind, Made, Recipe, doubtful
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.mutators.trees import apply_tree, draw_tree, with_depth


@cache
def base() -> Table:
    """Return two cases of two classes, one of them missed."""
    both = dict.fromkeys(METRICS, 0.5)
    missed = {name: None if name in NEEDS_SURFACES else 0.0 for name in METRICS}
    rows = []
    for case in ("a", "b"):
        for label in ("atrium", "wall"):
            kind = "missed" if (case, label) == ("b", "wall") else "both"
            rows.append(ScoreRow(case, label, Scores(**(missed if kind == "missed" else both), case=kind, unit="mm")))
    return Table(tuple(rows), "mm", prediction="masks", reference="labels")


def _draw(ending: str):  # type: ignore[no-untyped-def]
    def draw(random: Random) -> Recipe:
        chance = random.random()
        steps: list[list[Any]] = draw_raw(random)
        if chance < 0.03:
            steps = []
        elif chance < 0.7:
            steps = draw_tree(random)
        return {"base": {"ending": ending}, "steps": steps}

    return draw


def _make(recipe: Recipe, folder: Path) -> Made:
    ending, steps = recipe["base"]["ending"], recipe["steps"]
    text = (base().to_json() if ending == "json" else base().to_csv()).encode()
    content = apply_raw(text, steps)
    if content == text and steps:
        content = _mutated(text, ending, steps)
    return Made({f"scores.{ending}": content}, doubtful("any scores may be meant", True))


def _mutated(text: bytes, ending: str, steps: list[list[Any]]) -> bytes:
    if ending == "json":
        return with_depth(json.dumps(apply_tree(json.loads(text), steps))).encode(errors="surrogatepass")
    rows = [line.split(",") for line in text.decode().splitlines()]
    changed = apply_tree(rows, steps)
    lines = [",".join(map(str, row)) if isinstance(row, list) else str(row) for row in changed]
    return ("\n".join(lines) + "\n").encode(errors="surrogatepass")


def _read(ending: str):  # type: ignore[no-untyped-def]
    def read(folder: Path) -> bool:
        """Return whether the table is possible: scores in range, distances where they exist, rows once, and stable."""
        table = Table.read(folder / f"scores.{ending}")
        keys = [(row.case, row.label) for row in table.rows]
        possible = all(
            0 <= row.scores["dice"] <= 1
            and 0 <= row.scores["jaccard"] <= 1
            and all((row.scores[name] is not None) == (row.scores.case == "both") for name in NEEDS_SURFACES)
            for row in table.rows
        )
        again = Table.from_json(table.to_json())
        str(table)
        return possible and len(set(keys)) == len(keys) and again == table

    return read


KINDS = tuple(Kind(f"scores.{ending}", _draw(ending), _make, _read(ending), weight=2) for ending in ("json", "csv"))
