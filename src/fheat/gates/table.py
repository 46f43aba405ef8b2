"""The allocation: where training left global mixing, gate by gate, as a table that prints and exports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import nn

from fheat.gates.cost import gate_macs
from fheat.gates.dry_run import GateCall, Inputs, device_of, example_inputs, gate_calls
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from fheat.system.text import aligned, grid_name

State = Literal["open", "closed", "retired"]
"""`open`, `closed` (D = 0, still in the graph) or `retired` (gone from the graph)."""


class _HasSite(Protocol):
    @property
    def site(self) -> str: ...


RowKind = TypeVar("RowKind", bound=_HasSite)


class Rows(Sequence[RowKind]):
    """A table with one row for each gate of a network, in order; each row is a frozen dataclass with a `site`."""

    head: tuple[str, ...]
    """Titles of the columns that are printed."""

    def __init__(self, rows: Sequence[RowKind]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowKind]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the row at a position or, for a text, the row of that site."""
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
        return aligned([self.head, *(self.cells(row) for row in self.rows)])

    def cells(self, row: RowKind) -> tuple[str, ...]:
        """Return the cells of a row as they are printed, one for each title in `head`."""
        raise NotImplementedError


def state_of(gate: FractionalHeat) -> State:
    """Return the state that training left a gate in. Reads its strength from the device."""
    return "retired" if gate.retired else "closed" if gate.closed else "open"


def closed_from(iterations: Sequence[int], strengths: Sequence[float]) -> int | None:
    """Return the first iteration from which the strength of a gate is 0 to the end, or None if it ends open."""
    closed = None
    for iteration, strength in zip(iterations, strengths, strict=True):
        if strength != 0:
            closed = None
        elif closed is None:
            closed = iteration
    return closed


def closing_text(iteration: int) -> str:
    """Return when a gate closed, in words: at an iteration, or from the beginning for 0, which is before the first."""
    return f"at iteration {iteration:,}" if iteration else "from the beginning"


@dataclass(frozen=True)
class GateRow:
    """One gate: its site, the grid and channels of its input, its parameters, its state and its cost."""

    site: str
    grid: tuple[int, ...] | None
    channels: int | None
    D: float
    alpha: float
    tau: float
    state: State
    retired: bool
    macs: int | None
    """Number of multiply-adds in one forward pass."""


class Allocation(Rows[GateRow]):
    """The gates of a network in order; indexable by position or site, printable, exportable."""

    head = ("site", "grid", "channels", "D", "alpha", "tau", "state", "macs")

    @property
    def open(self) -> list[str]:
        """Sites of the open gates."""
        return [row.site for row in self.rows if row.state == "open"]

    @property
    def idle(self) -> list[str]:
        """Sites whose grid is a single voxel: open or closed, their gates have nothing to mix."""
        return [row.site for row in self.rows if row.grid is not None and all(length == 1 for length in row.grid)]

    def cells(self, row: GateRow) -> tuple[str, ...]:
        """Return the cells of a row as they are printed; a value that depends on an unknown input is `?`."""
        grid = "?" if row.grid is None else grid_name(row.grid)
        channels = "?" if row.channels is None else str(row.channels)
        macs = "?" if row.macs is None else f"{row.macs:,}"
        return row.site, grid, channels, f"{row.D:.4f}", f"{row.alpha:.4f}", f"{row.tau:.4f}", row.state, macs


def allocation(model: nn.Module, shape: Inputs | None = None) -> Allocation:
    """Return the table of the gates of any network.

    Args:
        model: the network; it is not changed.
        shape: input shape (N, C, *grid), or a tuple of example inputs. By default the input that the network states.

    Grid, channels and multiply-adds depend on the input and are None where no input is known. A gate that is never
    called has no grid either.
    """
    inputs = example_inputs(model, shape)
    return allocation_at(model, None if inputs is None else gate_calls(model, inputs))


def allocation_at(model: nn.Module, calls: Mapping[str, list[GateCall]] | None) -> Allocation:
    """Return the table of the gates of a network whose calls, by site, are known already, or not at all."""
    device_type = device_of(model).type
    return Allocation(
        [
            _row(site, gate, None if calls is None else calls[site], device_type)
            for site, gate in gates_of(model).items()
        ]
    )


def _row(site: str, gate: FractionalHeat, calls: list[GateCall] | None, device_type: str) -> GateRow:
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
