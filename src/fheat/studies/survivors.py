"""Table I: the gates that each of several runs left open, one row per run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fheat.gates.table import allocation
from fheat.system.text import printable
from fheat.training.runs import Saved

HEAD = ("model", "survivors", "D", "alpha", "closed", "validation Dice", "seed")


@dataclass(frozen=True)
class Survivor:
    """A gate that training left open, on a grid of more than one voxel."""

    site: str
    D: float
    alpha: float


@dataclass(frozen=True)
class SurvivorRow:
    """The gates, validation Dice and seed of one run or model."""

    name: str
    network: str
    part: str | None
    """`final` or `best` of a run folder; None for a model folder."""
    iteration: int | None
    """Iteration at which the network was saved."""
    gates: int
    """Number of gates."""
    survivors: tuple[Survivor, ...]
    idle: tuple[str, ...]
    """Sites of open gates on a grid of a single voxel, which have nothing to mix."""
    validation_dice: float | None
    """Last validation Dice of the run for its final network; for others the one that the model card states."""
    best_validation_dice: float | None
    """Highest validation Dice of the run for its final network; for others the one that the model card states."""
    seed: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def survivor_row(saved: Saved) -> SurvivorRow:
    """Return the row of a network, from its gates, its card and, where there is one, the log of its run."""
    card, spec = saved.card, getattr(saved.model, "spec", None)
    last = best = card.metrics.get("validation_dice")
    if saved.part == "final" and saved.record is not None:
        means = [validation.mean for validation in saved.record.validations]
        last, best = (means[-1], max(means)) if means else (None, None)
    gates = allocation(saved.model)
    return SurvivorRow(
        name=saved.name,
        network=getattr(spec, "name", type(saved.model).__name__),
        part=saved.part,
        iteration=_whole(card.training.get("iteration")),
        gates=len(gates),
        survivors=tuple(
            Survivor(site, gates[site].D, gates[site].alpha) for site in gates.open if site not in gates.idle
        ),
        idle=tuple(site for site in gates.open if site in gates.idle),
        validation_dice=last,
        best_validation_dice=best,
        seed=card.seed,
    )


def markdown(rows: Sequence[SurvivorRow]) -> str:
    """Return the rows as a Markdown table; several survivors share a cell, in the order of the network."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)])


def _cells(row: SurvivorRow) -> tuple[str, ...]:
    name = printable(row.name).replace("|", "\\|")
    return (
        f"{name} ({row.part})" if row.part else name,
        ", ".join(survivor.site for survivor in row.survivors) or ("none" if row.gates else "no gates"),
        ", ".join(f"{survivor.D:.3f}" for survivor in row.survivors) or "-",
        ", ".join(f"{survivor.alpha:.3f}" for survivor in row.survivors) or "-",
        _closed(row) if row.gates else "-",
        "-" if row.validation_dice is None else f"{row.validation_dice:.4f}",
        "-" if row.seed is None else str(row.seed),
    )


def _closed(row: SurvivorRow) -> str:
    words = f"{row.gates - len(row.survivors) - len(row.idle)} of {row.gates}"
    return f"{words}, {len(row.idle)} on one voxel" if row.idle else words


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
