"""Tables with one row per gate: looked up by position or site, printed, exported."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol, TypeVar

from fheat.ops.heat import FractionalHeat

State = Literal["open", "closed", "retired"]
"""`open`, `closed` (D = 0, still in the graph) or `retired` (gone from the graph)."""


class _Sited(Protocol):
    @property
    def site(self) -> str: ...


RowKind = TypeVar("RowKind", bound=_Sited)


class Rows(Sequence[RowKind]):
    """The gates of a network in order, each a frozen dataclass with a `site`."""

    head: tuple[str, ...]
    """Of the columns that are printed."""

    def __init__(self, rows: Sequence[RowKind]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowKind]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the row at a position, or of a site."""
        if not isinstance(key, str):
            return self.rows[key]
        for row in self.rows:
            if row.site == key:
                return row
        raise KeyError(f"no gate at {key!r}: the sites are {', '.join(row.site for row in self.rows)}")

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        return [asdict(row) for row in self.rows]  # type: ignore[call-overload]

    def __str__(self) -> str:
        lines = [self.head, *(self.cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def cells(self, row: RowKind) -> tuple[str, ...]:
        """Return a row as it is printed, one text for each of `head`."""
        raise NotImplementedError


def state_of(gate: FractionalHeat) -> State:
    """Return what training has left of a gate. Reads its strength from the device."""
    return "retired" if gate.retired else "closed" if gate.closed else "open"
