"""The architecture of a U-shaped network as a drawing: stages with their gates, skips, and one block beside them.

The width of the box of a stage is proportional to its channels. All names and numbers are those of the network.
"""

from collections.abc import Sequence
from itertools import pairwise

from fheat.figures.block import WIDTH as BLOCK_WIDTH
from fheat.figures.block import block_elements, block_height
from fheat.figures.gate_mark import STATES, gate_mark, state_mark
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.svg import Anchor, Point, box, circle, drawing, path, text
from fheat.gates.architecture import Architecture, Part, Skip
from fheat.system.text import grid_name

_WIDEST, _HEIGHT = 104.0, 40.0
"""Width of the box of the stage with the most channels, and height of all boxes, in pixels."""
_LEFT, _RIGHT, _TOP, _STEP = 214.0, 470.0, 108.0, 104.0
"""Middle of the boxes on the way down and on the way up, height of the first level, and distance between levels."""
_SIGN = 9.0
"""Radius of the circle around the sign of a skip."""
_BLOCK_LEFT, _MARGIN = 690.0, 16.0


def architecture_picture(network: Architecture, name: str = "architecture") -> Picture:
    """Return the drawing of a network; `name` is that of the file and unique in a page.

    The caption states parameters, levels and gates.
    """
    picture = _Drawing(network, name)
    caption = architecture_words(network)
    return svg_picture(name, drawing(name, caption, picture.width, picture.height, picture.elements()), caption)


def architecture_words(network: Architecture) -> str:
    """Return the numbers of a network in sentences."""
    levels = ", ".join(f"{grid_name(level.grid)} with {level.channels} channels" for level in network.levels)
    words = (
        f"{network.name}: {network.parameters:,} parameters, input {grid_name(network.input)}, output "
        f"{grid_name(network.output)}. Levels: {levels}."
    )
    gates = [gate for stage in network.stages for gate in stage.gates]
    open_ = [f"{gate.site} (D = {gate.D:.4f}, alpha = {gate.alpha:.4f})" for gate in gates if gate.state == "open"]
    words += f" Open gates: {', '.join(open_)}." if open_ else ""
    for state in ("closed", "retired"):
        sites = [gate.site for gate in gates if gate.state == state]
        words += f" {state.capitalize()} gates: {', '.join(sites)}." if sites else ""
    return words if gates else f"{words} It has no gates."


class _Drawing:
    """The places of all stages, and the elements of the drawing."""

    def __init__(self, network: Architecture, name: str) -> None:
        self.network, self.name = network, name
        self.scale = _WIDEST / max(stage.channels for stage in network.stages)
        self.place = _places(network)
        self.joined = {skip.target for skip in network.skips}
        deepest = len(network.levels) - 1
        self.bottom = _TOP + _STEP * deepest + (100 if self._alone(deepest) else 60)
        self.width = _BLOCK_LEFT + BLOCK_WIDTH + _MARGIN
        self.height = max(self.bottom + 80, block_height(network.block) + _MARGIN)

    def elements(self) -> list[str]:
        """Return the elements of the drawing: arrows first, so that boxes lie on top of them."""
        title = f"{self.network.name}, {self.network.parameters:,} parameters"
        elements = [text(title, (_MARGIN, 22), size=14, anchor="start", bold=True), *self._ends()]
        for before, stage in pairwise(self.network.stages):
            elements += self._way(before, stage)
        for skip in self.network.skips:
            elements += self._skip(skip)
        for stage in self.network.stages:
            elements += self._stage(stage)
        for number, level in enumerate(self.network.levels):
            elements.append(text(f"{grid_name(level.grid)}, {level.channels} channels", self._above(number), size=11))
        elements += self._legend()
        return [*elements, *block_elements(self.network.block, (_BLOCK_LEFT, _MARGIN), self.name)]

    def _edge(self, stage: Part, right: float = 0, down: float = 0) -> Point:
        """Return the middle of the right (1) or left (-1), or of the lower (1) or upper (-1) edge of a stage."""
        x, y = self.place[stage.name]
        return x + right * stage.channels * self.scale / 2, y + down * _HEIGHT / 2

    def _joint(self, stage: Part) -> Point:
        """Return the place at which a skip joins the way into a stage."""
        x, y = self._edge(stage, right=-1)
        return x - 24, y

    def _alone(self, level: int) -> bool:
        return sum(stage.level == level for stage in self.network.stages) == 1

    def _above(self, level: int) -> Point:
        """Return the place of the words about a level: above its only stage, or above the arrow between its two."""
        first, *others = (stage for stage in self.network.stages if stage.level == level)
        if not others:
            x, y = self._edge(first, down=-1)
            return x, y - 8
        (x, y), (end, _) = self._edge(first, right=1), self._into(others[0])
        return (x + end) / 2, y - 8

    def _into(self, stage: Part) -> Point:
        """Return where an arrow from the left ends: at the joint of a skip or at the stage itself."""
        return self._joint(stage) if stage.name in self.joined else self._edge(stage, right=-1)

    def _stage(self, stage: Part) -> list[str]:
        """Return the box of a stage with its gates, and its words on the outer side or, where it is alone, below."""
        x, y = self.place[stage.name]
        elements = [box((x, y), stage.channels * self.scale, _HEIGHT, name=stage.name)]
        for number, gate in enumerate(stage.gates):
            elements.append(gate_mark(gate, (x + 16 * (number - (len(stage.gates) - 1) / 2), y)))
        lines = [f"{stage.blocks} x {stage.block}", *_gate_lines(stage)]
        if stage.grid != self.network.levels[stage.level].grid:
            lines.append(f"padded to {grid_name(stage.grid)}")
        anchor: Anchor = "middle" if self._alone(stage.level) else "start" if x == _RIGHT else "end"
        outside = {"middle": 0, "start": 1, "end": -1}[anchor] * (_WIDEST / 2 + 8)
        first = y + _HEIGHT / 2 + 16 if anchor == "middle" else y + 5 - 7.5 * len(lines)
        elements.append(text(stage.name, (x + outside, first), size=13, anchor=anchor, bold=True))
        return elements + [
            text(words, (x + outside, first + 15 * number), size=11, anchor=anchor)
            for number, words in enumerate(lines, start=1)
        ]

    def _ends(self) -> list[str]:
        """Return the arrows from the input into the first stage and from the last stage to the output."""
        network = self.network
        names = {part.kind: part.name for part in network.parts}
        x, y = self._edge(network.stages[0], down=-1)
        end, top = self._edge(network.stages[-1], down=-1)
        return [
            text(f"input {grid_name(network.input)}", (x, y - 36), size=11),
            path([(x, y - 30), (x, y)], arrow=self.name),
            text(names.get("stem", ""), (x + 7, y - 12), size=11, anchor="start"),
            text(f"output {grid_name(network.output)}", (end, top - 36), size=11),
            path([(end, top), (end, top - 30)], arrow=self.name),
            text(names.get("head", ""), (end + 7, top - 12), size=11, anchor="start"),
        ]

    def _way(self, before: Part, stage: Part) -> list[str]:
        """Return the arrow from one stage to the next, with the names of the parts on the way."""
        names = self._between(before, stage)
        if before.level == stage.level:
            (x, y), (end, _) = self._edge(before, right=1), self._into(stage)
            below = [text(words, ((x + end) / 2, y + 16 + 14 * row), size=11) for row, words in enumerate(names)]
            return [path([(x, y), (end, y)], arrow=self.name), *below]
        points = self._way_down(before, stage) if before.level < stage.level else self._way_up(before, stage)
        x, y = self._edge(min(before, stage, key=lambda part: part.level), down=1)
        return [path(points, arrow=self.name), text(", ".join(names), (x + 7, y + 36), size=11, anchor="start")]

    def _way_down(self, before: Part, stage: Part) -> list[Point]:
        begin = self._edge(before, down=1)
        if self._alone(stage.level):
            return [begin, (begin[0], self.place[stage.name][1]), self._edge(stage, right=-1)]
        return [begin, self._edge(stage, down=-1)]

    def _way_up(self, before: Part, stage: Part) -> list[Point]:
        begin, end = self._edge(before, down=-1), self._edge(stage, down=1)
        if self._alone(before.level):
            begin = self._edge(before, right=1)
        points = [begin, (end[0], begin[1])] if begin[0] != end[0] else [begin]
        if stage.name not in self.joined:
            return [*points, end]
        x, y = self._joint(stage)
        return [*points, (end[0], end[1] + 14), (x, end[1] + 14), (x, y + _SIGN)]

    def _between(self, before: Part, stage: Part) -> list[str]:
        """Return the names of the parts that run between two stages, and of the parameters that are added there."""
        parts, names = self.network.parts, []
        for part in parts[parts.index(before) + 1 : parts.index(stage) + 1]:
            joined = [learned for learned in self.network.learned_inputs if learned.target == part.name]
            names += [f"{learned.how} {learned.name} {grid_name(learned.shape)}" for learned in joined]
            names += [part.name] if part is not stage else []
        return names

    def _skip(self, skip: Skip) -> list[str]:
        """Return the dashed arrow of a skip, the sign of its function, and the arrow from there into the stage."""
        stages = {stage.name: stage for stage in self.network.stages}
        if skip.source not in stages or skip.target not in stages:
            raise ValueError(f"the skip from {skip.source} to {skip.target} does not lead from stage to stage of a U")
        begin, end = self._edge(stages[skip.source], right=1), self._edge(stages[skip.target], right=-1)
        x, y = self._joint(stages[skip.target])
        sign, size = ("+", 14) if skip.how == "add" else (skip.how, 8)
        return [
            path([begin, (x - _SIGN, y)], arrow=self.name, dashed=True),
            circle((x, y), _SIGN),
            text(sign, (x, y + 4.5), size=size),
            path([(x + _SIGN, y), end], arrow=self.name),
        ]

    def _legend(self) -> list[str]:
        """Return what the widths mean, and the marks of gates as far as there are such."""
        states = {gate.state for stage in self.network.stages for gate in stage.gates}
        elements = [text("width of a box: channels", (_MARGIN, self.bottom), size=11, anchor="start")]
        for number, state in enumerate(state for state in STATES if state in states):
            x, y = _MARGIN + 6, self.bottom + 18 * (number + 1)
            elements += [*state_mark(state, (x, y)), text(STATES[state], (x + 12, y + 4), size=11, anchor="start")]
        return elements


def _places(network: Architecture) -> dict[str, Point]:
    """Return the middle of every stage: the first stage of a level on the left, the second on the right.

    A stage that is alone on its level stands between them.
    """
    places: dict[str, Point] = {}
    for number in range(len(network.levels)):
        stages = [stage for stage in network.stages if stage.level == number]
        if not 1 <= len(stages) <= 2:
            names = ", ".join(stage.name for stage in stages)
            raise ValueError(f"level {number + 1} has the stages {names}: a U has one or two on each level")
        across = [(_LEFT + _RIGHT) / 2] if len(stages) == 1 else [_LEFT, _RIGHT]
        for stage, x in zip(stages, across, strict=True):
            places[stage.name] = x, _TOP + _STEP * number
    return places


def _gate_lines(stage: Part) -> Sequence[str]:
    if len(stage.gates) > 1:
        return [f"{sum(gate.state == 'open' for gate in stage.gates)} of {len(stage.gates)} gates open"]
    return [
        f"D {gate.D:.4f}, alpha {gate.alpha:.4f}" if gate.state == "open" else f"gate {gate.state}"
        for gate in stage.gates
    ]
