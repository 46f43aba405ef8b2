"""The mark of a gate in a drawing: a full circle if it is open, barred if it is closed, dashed if it is retired."""

from html import escape

from fheat.figures.svg import INK, QUIET_INK, Point, circle, line_colour, path
from fheat.gates.table import GateRow, State

RADIUS = 6.0
STATES: dict[State, str] = {
    "open": "open gate",
    "closed": "closed gate, D = 0",
    "retired": "retired gate, gone from the graph",
}
"""Meaning of the mark of each state."""


def gate_mark(gate: GateRow, at: Point) -> str:
    """Return the mark of a gate, with its site and state as attributes and its numbers as a tooltip."""
    words = f"{gate.site}: {gate.state}, D = {gate.D:.4f}, alpha = {gate.alpha:.4f}"
    shapes = "".join(state_mark(gate.state, at))
    begin = f'<g data-gate="{escape(gate.site)}" data-state="{gate.state}">'
    return f"{begin}<title>{escape(words)}</title>{shapes}</g>"


def state_mark(state: State, at: Point) -> list[str]:
    """Return the shapes of the mark of a state."""
    if state == "open":
        return [circle(at, RADIUS, fill=line_colour(0), stroke=line_colour(0))]
    if state == "retired":
        return [circle(at, RADIUS, stroke=QUIET_INK, dashed=True)]
    x, y = at
    return [circle(at, RADIUS), path([(x - RADIUS, y), (x + RADIUS, y)], colour=INK)]
