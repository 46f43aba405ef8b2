"""The allocation: where training left global mixing, site by site."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn

from fheat.allocation.cost import gate_macs
from fheat.allocation.sites import Inputs, Visit, checked_inputs, device_of, visits
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat


@dataclass(frozen=True)
class Row:
    """One gate: where it sits, what it sees, what training made of it, what it costs per forward pass.

    `state` is `open`, `closed` (D = 0, still in the graph) or `retired` (gone from the graph).
    """

    site: str
    grid: tuple[int, ...] | None
    channels: int | None
    D: float
    alpha: float
    tau: float
    state: Literal["open", "closed", "retired"]
    retired: bool
    macs: int | None


class Allocation(Sequence[Row]):
    """The gates of a network in order; indexable by position or site, printable, exportable."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the row at a position, or of a site."""
        if not isinstance(key, str):
            return self.rows[key]
        for row in self.rows:
            if row.site == key:
                return row
        raise KeyError(f"no gate at {key!r}: the sites are {', '.join(row.site for row in self.rows)}")

    @property
    def open(self) -> list[str]:
        """Sites that still mix."""
        return [row.site for row in self.rows if row.state == "open"]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        head = ("site", "grid", "channels", "D", "alpha", "tau", "state", "macs")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


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


def _row(site: str, gate: FractionalHeat, calls: list[Visit] | None, device_type: str) -> Row:
    gate.check_parameters()
    return Row(
        site=site,
        grid=calls[0].grid if calls else gate.size,
        channels=calls[0].channels if calls else None,
        D=gate.strength.item(),
        alpha=gate.alpha.item(),
        tau=gate.tau.item(),
        state="retired" if gate.retired else "closed" if gate.closed else "open",
        retired=gate.retired,
        macs=None if calls is None else gate_macs(gate, calls, device_type),
    )


def _cells(row: Row) -> tuple[str, ...]:
    grid = "?" if row.grid is None else "x".join(map(str, row.grid))
    channels = "?" if row.channels is None else str(row.channels)
    macs = "?" if row.macs is None else f"{row.macs:,}"
    return row.site, grid, channels, f"{row.D:.4f}", f"{row.alpha:.4f}", f"{row.tau:.4f}", row.state, macs
