"""Draw docs/images/architecture.svg from the import rules in tests/test_house.py: `python tools/architecture.py`.

Every room of `src/fheat` is a box; a room stands above all rooms that it may import. An arrow is an allowed import. An
import that also follows from a chain of arrows is not drawn, which leaves about as many arrows as rooms. The same rules
give the same bytes. `--check` writes nothing and exits with 1 if the picture is out of date.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from results import ROOT

HOUSE = ROOT / "tests" / "test_house.py"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
SUBJECTS = {
    "system": "errors, files, processes",
    "ops": "the maths and its kernels",
    "nn": "blocks made of ops",
    "networks": "one network per file",
    "models": "cards, folders, the zoo",
    "gates": "table, retire, cost, probe",
    "testing": "invariants to call",
    "io": "one format per file",
    "data": "cases, layouts, crops",
    "metrics": "overlap, surfaces, tables",
    "inference": "from a scan to a mask",
    "methods": "one training method per file",
    "training": "the trainer and its runs",
    "figures": "plots and pictures",
    "studies": "one study per file or folder",
    "report": "the page of a run",
    "experiments": "whole experiments",
    "export": "models as standard files",
    "studio": "the web page and service",
    "bench": "timing side by side",
    "cli": "one verb per file",
}
"""What each room is about, in a few words."""
WIDTH, HEIGHT, ROW = 176, 44, 84
"""Size of a box and distance from one row to the next, in pixels."""
GAP, LANE, MARGIN = 22, 26, 16
"""Distance between boxes, width that an arrow needs to pass a row, and margin of the picture, in pixels."""
SWEEPS = 24
"""Number of times that the order and the places of all rows are improved."""
BOX, EDGE, TITLE, WORDS, ARROW = "#dfe8f5", "#8fa6c6", "#12233d", "#3c5170", "#7a8699"
"""Colours that can be read on a white and on a black page."""

Rooms = dict[str, set[str]]
Node = tuple[str, ...]
"""A room as (name,), or the place at which an arrow passes a row as (from, to, row)."""


def read_rooms(path: Path = HOUSE) -> Rooms:
    """Return for every room the rooms that it may import, as the table ROOMS of the test says."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "ROOMS":
            table = statement.value
            assert isinstance(table, ast.Dict)
            pairs = zip(table.keys, table.values, strict=True)
            rooms = {ast.literal_eval(key): _names(value) for key, value in pairs if key is not None}
            return {room: allowed & rooms.keys() for room, allowed in rooms.items() if room != "__main__"}
    raise ValueError(f"{path} has no table ROOMS")


def _names(value: ast.expr) -> set[str]:
    return set() if isinstance(value, ast.Call) else set(ast.literal_eval(value))


def reachable(rooms: Rooms, room: str) -> set[str]:
    """Return all rooms that a chain of allowed imports reaches."""
    return rooms[room].union(*(reachable(rooms, other) for other in rooms[room]))


def arrows(rooms: Rooms) -> list[tuple[str, str]]:
    """Return the allowed imports that follow from no chain of others, in the order of the table."""
    return [
        (room, other)
        for room in rooms
        for other in rooms
        if other in rooms[room] and not any(other in reachable(rooms, between) for between in rooms[room] - {other})
    ]


def levels(rooms: Rooms) -> dict[str, int]:
    """Return the row of every room, counted from below: one above the highest room that it may import."""

    def level(room: str) -> int:
        return 1 + max((level(other) for other in rooms[room]), default=-1)

    return {room: level(room) for room in rooms}


class Picture:
    """Rows of boxes and of places where arrows pass, arranged so that few arrows cross."""

    def __init__(self, rooms: Rooms) -> None:
        self.level = levels(rooms)
        self.rows: list[list[Node]] = [[] for _ in range(1 + max(self.level.values()))]
        for room in rooms:
            self.rows[self.level[room]].append((room,))
        self.paths = [self._path(upper, lower) for upper, lower in arrows(rooms)]
        self.near: dict[Node, list[Node]] = {node: [] for row in self.rows for node in row}
        for path in self.paths:
            for first, second in pairwise(path):
                self.near[first].append(second)
                self.near[second].append(first)
        self.x: dict[Node, float] = {}
        self._arrange()

    def _path(self, upper: str, lower: str) -> list[Node]:
        """Return the nodes of an arrow from above to below, with a place in every row that it passes."""
        passed: list[Node] = [(upper, lower, str(row)) for row in range(self.level[upper] - 1, self.level[lower], -1)]
        for node in passed:
            self.rows[int(node[2])].append(node)
        return [(upper,), *passed, (lower,)]

    def _arrange(self) -> None:
        for row in self.rows:
            self._place(row, dict.fromkeys(row, 0.0))
        best: tuple[float, dict[Node, float]] | None = None
        for sweep in range(SWEEPS):
            for row in self.rows if sweep % 2 else reversed(self.rows):
                wish = {node: sum(self.x[other] for other in self.near[node]) / len(self.near[node]) for node in row}
                row.sort(key=wish.__getitem__)
                self._place(row, wish)
            length = sum(abs(self.x[a] - self.x[b]) for path in self.paths for a, b in pairwise(path))
            if best is None or length < best[0]:
                best = length, dict(self.x)
        assert best is not None
        self.x = best[1]

    def _place(self, row: list[Node], wish: dict[Node, float]) -> None:
        """Put the nodes of a row near their wishes, in this order and without overlap."""
        place, end = {}, float("-inf")
        for node in row:
            half = (WIDTH + GAP if len(node) == 1 else LANE) / 2
            place[node] = max(wish[node], end + half)
            end = place[node] + half
        shift = sum(wish[node] - place[node] for node in row) / len(row)
        self.x |= {node: place[node] + shift for node in row}

    def svg(self) -> str:
        """Return the picture."""
        boxes = [self.x[(room,)] for room in self.level]
        left = min(boxes) - WIDTH / 2 - MARGIN
        width, height = max(boxes) + WIDTH / 2 + MARGIN - left, ROW * len(self.rows) - (ROW - HEIGHT) + 2 * MARGIN
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} 0 {width:.0f} {height:.0f}" '
            'font-family="system-ui, sans-serif" text-anchor="middle" role="img">',
            "<title>The rooms of fheat: an arrow leads from a room to one that it may import</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8Z" fill="{ARROW}"/></marker></defs>',
            *self._arrows(),
            *self._boxes(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _top(self, row: int) -> int:
        return MARGIN + ROW * (len(self.rows) - 1 - row)

    def _arrows(self) -> Iterator[str]:
        for path in self.paths:
            row = self.level[path[0][0]]
            place = f"M{self.x[path[0]]:.0f} {self._top(row) + HEIGHT}"
            for before, node in pairwise(path):
                row -= 1
                start, end = self._top(row + 1) + HEIGHT, self._top(row)
                middle = (start + end) // 2
                place += f"C{self.x[before]:.0f} {middle} {self.x[node]:.0f} {middle} {self.x[node]:.0f} {end}"
                place += f"V{end + HEIGHT}" if len(node) > 1 else ""
            yield f'<path d="{place}" fill="none" stroke="{ARROW}" stroke-width="1.6" marker-end="url(#head)"/>'

    def _boxes(self) -> Iterator[str]:
        for room, row in self.level.items():
            x, y = self.x[(room,)], self._top(row)
            yield (
                f'<rect x="{x - WIDTH / 2:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{BOX}" '
                f'stroke="{EDGE}"/>'
            )
            yield f'<text x="{x:.0f}" y="{y + 19}" font-size="15" font-weight="600" fill="{TITLE}">{room}</text>'
            yield f'<text x="{x:.0f}" y="{y + 35}" font-size="11" fill="{WORDS}">{SUBJECTS[room]}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the picture is out of date")
    options = parser.parse_args()
    text = Picture(read_rooms()).svg()
    stale = not PICTURE.is_file() or PICTURE.read_text() != text
    if stale and not options.check:
        PICTURE.write_text(text)
    if stale:
        print(f"{PICTURE.relative_to(ROOT)}: {'is out of date; run make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
