"""One block of a network as a drawing: layers as boxes from top to bottom, functions as signs, results as arrows."""

from collections.abc import Sequence

from fheat.figures.gate_mark import gate_mark
from fheat.figures.svg import INK, Point, box, circle, path, text
from fheat.gates.block import Block, BlockStep
from fheat.system.text import grid_name

WIDTH, ROW, TOP = 386.0, 34.0, 78.0
"""Width of the drawing, distance from row to row, and height of the input above the first row, in pixels."""
_LAYER, _FUNCTION, _HEIGHT = 260.0, 52.0, 24.0
"""Width of the box of a layer and of a function, and height of both."""
_MAIN, _SIDE = 164.0, 338.0
"""Middle of the main column and of the column beside it."""
_SIGN = 9.0
"""Radius of the circle around a sign."""
_LANE = 11.0
"""Distance between residuals, which pass the layers on their left."""
_SIGNS = {"add": "+", "mul": "\N{MULTIPLICATION SIGN}"}
"""Functions that are drawn as a sign."""


def block_height(block: Block) -> float:
    """Return the height of the drawing of a block."""
    return TOP + ROW * (max(ranks(block)) + 1) + 24


def ranks(block: Block) -> list[int]:
    """Return the row of each step: one below the lowest step whose result it takes, the input being above row 0."""
    rows: list[int] = []
    for step in block.steps:
        rows.append(1 + max((rows[source] if source >= 0 else -1 for source in step.sources), default=-1))
    return rows


def columns(block: Block) -> list[int]:
    """Return the column of each step: in every row the step with the most steps behind it is in column 0."""
    behind = [0] * len(block.steps)
    for place, step in reversed(list(enumerate(block.steps))):
        for source in step.sources:
            if source >= 0:
                behind[source] = max(behind[source], behind[place] + 1)
    rows = ranks(block)
    order = {row: sorted(_in_row(rows, row), key=lambda place: (-behind[place], place)) for row in rows}
    return [order[row].index(place) for place, row in enumerate(rows)]


def block_elements(block: Block, corner: Point, drawing: str) -> list[str]:
    """Return the elements of a block whose upper left corner is at a point of the drawing of this name."""
    left, top = corner
    rows, beside = ranks(block), columns(block)
    places = [
        (left + _MAIN + column * (_SIDE - _MAIN), top + TOP + ROW * row)
        for row, column in zip(rows, beside, strict=True)
    ]
    start = left + _MAIN, top + TOP - ROW
    what = f"{grid_name(block.grid)}, {block.channels} channels"
    elements = [
        text(block.path, (left + _MAIN, top + 14), size=13, bold=True),
        text(f"{block.type} on {what}", (left + _MAIN, top + 30)),
        *_groups(block, places),
        *_arrows(block, places, start, rows, left, drawing),
    ]
    for step, place in zip(block.steps, places, strict=True):
        elements += _step(step, place)
    x, y = places[-1]
    return [*elements, path([(x, y + _reach(block.steps[-1])), (x, y + 28)], arrow=drawing)]


def sizes(step: BlockStep) -> str:
    """Return the sizes of a step in words: channels, and kernel and groups of a convolution."""
    words = f"{step.channels}" if step.taken == step.channels else f"{step.taken}→{step.channels}"
    words += f", {grid_name(step.kernel)}" if step.kernel else ""
    if step.groups > 1:
        words += " depthwise" if step.groups == step.taken else f" in {step.groups} groups"
    return words


def _in_row(rows: Sequence[int], row: int) -> list[int]:
    return [place for place, each in enumerate(rows) if each == row]


def _groups(block: Block, places: Sequence[Point]) -> list[str]:
    """Return a dashed box around the steps of every part of the block, with its name and class."""
    elements = []
    for name, kind in block.groups.items():
        inside = [place for step, place in zip(block.steps, places, strict=True) if step.group == name]
        if inside:
            x, first, last = inside[0][0], inside[0][1], max(y for _, y in inside)
            right = x - _MAIN + WIDTH - 10
            middle = (x - _LAYER / 2 - 8 + right) / 2, (first + last) / 2
            width, height = right - x + _LAYER / 2 + 8, last - first + _HEIGHT + 8
            elements.append(box(middle, width, height, name=name, dashed=True, fill=0.02))
            elements.append(text(f"{name}:", (x + _SIDE - _MAIN, first - 2), size=11))
            elements.append(text(kind, (x + _SIDE - _MAIN, first + 12), size=11, bold=True))
    return elements


def _step(step: BlockStep, place: Point) -> list[str]:
    x, y = place
    if not step.kind:
        if sign := _SIGNS.get(step.name):
            return [circle(place, _SIGN), text(sign, (x, y + 4.5), size=14)]
        return [box(place, _FUNCTION, _HEIGHT, name=step.name, fill=0), text(step.name, (x, y + 4), size=11)]
    name = step.name.removeprefix(f"{step.group}.")
    sides = x - _LAYER / 2 + 8, x + _LAYER / 2 - 8
    elements = [
        box(place, _LAYER, _HEIGHT, name=step.name),
        text(name, (sides[0], y + 4), size=11, anchor="start", bold=True),
        text(f"{step.kind} {sizes(step)}", (sides[1] - 20 * (step.gate is not None), y + 4), size=11, anchor="end"),
    ]
    return elements if step.gate is None else [*elements, gate_mark(step.gate, (sides[1] - 6, y))]


def _arrows(
    block: Block, places: Sequence[Point], start: Point, rows: Sequence[int], left: float, drawing: str
) -> list[str]:
    """Return an arrow for every result that a step takes; a result that passes other rows goes around them."""
    elements = [circle(start, 3, fill=INK)]
    lanes: list[tuple[int, int]] = []  # first and last row of every residual
    for step, (x, y), row in zip(block.steps, places, rows, strict=True):
        half = _half(step)
        for source in step.sources:
            from_x, from_y = places[source] if source >= 0 else start
            from_row = rows[source] if source >= 0 else -1
            if from_x < x:  # to the side column
                begin = from_x + (_half(block.steps[source]) if source >= 0 else 3)
                points = [(begin, from_y), (x, from_y), (x, y - _reach(step))]
            elif from_x > x:  # back from it
                points = [(from_x, from_y + _reach(block.steps[source])), (from_x, y), (x + half, y)]
            elif row == from_row + 1:
                begin = from_y + (_reach(block.steps[source]) if source >= 0 else 3)
                points = [(x, begin), (x, y - _reach(step))]
            else:
                lane = sum(first < row and from_row < last for first, last in lanes)
                lanes.append((from_row, row))
                side, leave = left + 20 - _LANE * lane, from_y + 14 * (source >= 0)
                points = [(x, leave), (side, leave), (side, y), (x - half, y)]
            elements.append(path(points, arrow=drawing))
    return elements


def _half(step: BlockStep) -> float:
    """Return half the width of the sign or box of a step."""
    return _LAYER / 2 if step.kind else _SIGN if step.name in _SIGNS else _FUNCTION / 2


def _reach(step: BlockStep) -> float:
    """Return half the height of the sign or box of a step."""
    return _SIGN if not step.kind and step.name in _SIGNS else _HEIGHT / 2
