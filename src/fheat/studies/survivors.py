"""Table I: what each of several runs left open, one row per run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fheat.gates.table import allocation
from fheat.metrics.formatting import printable
from fheat.training.runs import Saved

HEAD = ("model", "survivors", "D", "alpha", "closed", "validation Dice", "seed")


@dataclass(frozen=True)
class Survivor:
    """A gate that training left open, with something to mix."""

    site: str
    D: float
    alpha: float


@dataclass(frozen=True)
class SurvivorRow:
    """One run or model."""

    name: str
    network: str
    part: str | None
    """`final` or `best` of a run folder; None for a model folder."""
    iteration: int | None
    """At which the network was saved."""
    gates: int
    survivors: tuple[Survivor, ...]
    idle: tuple[str, ...]
    """Open gates on a grid of a single voxel."""
    validation_dice: float | None
    """Of a run's final network: its last validation. Of a best one and of a model folder: what the card states."""
    best_validation_dice: float | None
    seed: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def survivor_row(saved: Saved) -> SurvivorRow:
    """Read what training decided from a network and, where there is one, the log of its run."""
    card, spec = saved.card, getattr(saved.model, "spec", None)
    reached = best = card.metrics.get("validation_dice")
    if saved.part == "final" and saved.record is not None:
        means = [found.mean for found in saved.record.validations]
        reached, best = (means[-1], max(means)) if means else (None, None)
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
        validation_dice=reached,
        best_validation_dice=best,
        seed=_whole(card.training.get("seed")),
    )


def markdown(rows: Sequence[SurvivorRow]) -> str:
    """Return the rows as a Markdown table; several survivors stand side by side in the order of the network."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)])


def _cells(row: SurvivorRow) -> tuple[str, ...]:
    name = printable(row.name).replace("|", "\\|")
    opened = row.survivors
    return (
        f"{name} ({row.part})" if row.part else name,
        ", ".join(one.site for one in opened) or ("none" if row.gates else "no gates"),
        ", ".join(f"{one.D:.3f}" for one in opened) or "-",
        ", ".join(f"{one.alpha:.3f}" for one in opened) or "-",
        _closed(row) if row.gates else "-",
        "-" if row.validation_dice is None else f"{row.validation_dice:.4f}",
        "-" if row.seed is None else str(row.seed),
    )


def _closed(row: SurvivorRow) -> str:
    words = f"{row.gates - len(row.survivors) - len(row.idle)} of {row.gates}"
    return f"{words}, {len(row.idle)} on one voxel" if row.idle else words


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
