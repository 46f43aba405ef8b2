"""The allocation: where training left global mixing, site by site, as a table that prints and exports."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import nn

from fheat.gates.cost import gate_macs
from fheat.gates.sites import Inputs, Visit, checked_inputs, device_of, visits
from fheat.ops.gates import gates_of
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


@dataclass(frozen=True)
class GateRow:
    """One gate: where it sits, what it sees, what training made of it, what it costs per forward pass."""

    site: str
    grid: tuple[int, ...] | None
    channels: int | None
    D: float
    alpha: float
    tau: float
    state: State
    retired: bool
    macs: int | None


class Allocation(Rows[GateRow]):
    """The gates of a network in order; indexable by position or site, printable, exportable."""

    head = ("site", "grid", "channels", "D", "alpha", "tau", "state", "macs")

    @property
    def open(self) -> list[str]:
        """Sites that still mix."""
        return [row.site for row in self.rows if row.state == "open"]

    @property
    def idle(self) -> list[str]:
        """Sites that see a single voxel: open or closed, they have nothing to mix."""
        return [row.site for row in self.rows if row.grid is not None and all(length == 1 for length in row.grid)]

    def cells(self, row: GateRow) -> tuple[str, ...]:
        """Return a row as it is printed; what depends on an unknown input is a question mark."""
        grid = "?" if row.grid is None else "x".join(map(str, row.grid))
        channels = "?" if row.channels is None else str(row.channels)
        macs = "?" if row.macs is None else f"{row.macs:,}"
        return row.site, grid, channels, f"{row.D:.4f}", f"{row.alpha:.4f}", f"{row.tau:.4f}", row.state, macs


def allocation(model: nn.Module, shape: Inputs | None = None) -> Allocation:
    """Read the gates of any network.

    Grid, channels and multiply-adds depend on the input; they are None where neither `shape` is given, (N, C, *grid)
    or a tuple of example inputs, nor the network says what it is made for. A gate never called has no grid either.
    """
    inputs = checked_inputs(model, shape)
    seen = None if inputs is None else visits(model, inputs)
    kind = device_of(model).type
    return Allocation(
        [_row(site, gate, None if seen is None else seen[site], kind) for site, gate in gates_of(model).items()]
    )


def _row(site: str, gate: FractionalHeat, calls: list[Visit] | None, device_type: str) -> GateRow:
    gate.check_parameters()
    return GateRow(
        site=site,
        grid=calls[0].grid if calls else gate.size,
        channels=calls[0].channels if calls else None,
        D=gate.strength.item(),
        alpha=gate.alpha.item(),
        tau=gate.tau.item(),
        state=state_of(gate),
        retired=gate.retired,
        macs=None if calls is None else gate_macs(gate, calls, device_type),
    )
