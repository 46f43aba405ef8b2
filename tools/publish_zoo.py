"""Turn the best model of a run into a zoo model: `python tools/publish_zoo.py RUN NAME ...`.

Closed gates are retired, weights are stored as float16, and the card states what a stranger must know. It leaves out
where the scans lay on the machine that trained.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from fheat.gates.retire import retire
from fheat.gates.table import allocation
from fheat.models.card import Card
from fheat.models.folder import WEIGHTS, load, save
from fheat.models.zoo import ZOO, checked_name, missing_facts
from fheat.system.errors import BadInput

PRIVATE = ("data.folder", "output.tensorboard", "data", "tensorboard")
"""Settings of a run that are left out of the card, since they say nothing about the model. The last
two are names from before settings had sections."""


def public_settings(training: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run without those that are private, by section as they are given."""
    kept: dict[str, Any] = {}
    for name, value in training.items():
        if isinstance(value, dict):
            kept[name] = {field: inner for field, inner in value.items() if f"{name}.{field}" not in PRIVATE}
        elif name not in PRIVATE:
            kept[name] = value
    return kept


def publish(
    run: Annotated[Path, tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional],
    /,
    data: str,
    licence: str,
    intended_use: str,
    limits: str,
    title: str | None = None,
    zoo: Path = ZOO,
    overwrite: bool = False,
) -> Path:
    """Write RUN/best into the zoo and return its folder.

    Args:
        run: folder of a training run with validation.
        name: what users will type, such as la-4.
        data: which scans, how many of them labelled, and which the validation Dice is of.
        licence: what the model may be used for, and what the data ask for.
        intended_use: for which scans and which purpose it is meant.
        limits: where it is known, or must be expected, to be wrong.
        title: one line; by default what the run says.
        zoo: folder of the zoo.
        overwrite: replace a model of that name.
    """
    model = load(run / "best")
    card = model.card
    assert isinstance(card, Card)
    training = public_settings(card.training)
    facts = {
        "data": data,
        "licence": licence,
        "intended_use": intended_use,
        "limits": limits,
        "title": title or card.title,
        "training": training,
    }
    card = Card.model_validate(card.model_dump() | facts)
    missing = missing_facts(card)
    if missing:
        raise BadInput(run / "best", f"its card does not state {', '.join(missing)}", "train with validation scans")
    return save(retire(model), zoo / checked_name(name), card, overwrite=overwrite, dtype="float16")


def main() -> None:
    try:
        folder = tyro.cli(publish)
    except (BadInput, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    published = load(folder)
    assert isinstance(published.card, Card)
    size, card = (folder / WEIGHTS).stat().st_size, published.card
    gates = ", ".join(allocation(published).open) or "none"
    dice = f"{card.metrics['validation_dice']:.4f}"
    print(f"wrote {folder}: {size:,} bytes of weights, validation Dice {dice}")
    print(f"gates open: {gates}")
    print(f"for the table in docs/evidence/zoo.md:\n| `{folder.name}` | {dice} | {card.data} | {card.licence} |")


if __name__ == "__main__":
    main()
