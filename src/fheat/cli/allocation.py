"""`fheat allocation MODEL`: what training decided, and what retiring saves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from fheat.allocation.cost import cost
from fheat.allocation.table import allocation
from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.models.folder import load
from fheat.models.registry import recipe_of


@dataclass(frozen=True)
class Allocation:
    """Show, for each gate of a model, its strength D, order alpha, state and cost.

    Example: fheat allocation demo/model --json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, written by fheat.save or by training, or a model of the zoo; see fheat models."""
    patch_size: tuple[int, int, int] | None = None
    """Grid to cost; the model's own patch if not given."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Allocation, "allocation", arguments)
    model = load(options.model)
    shape = None if options.patch_size is None else (1, recipe_of(model).in_channels, *options.patch_size)
    try:
        table, counted = allocation(model, shape), cost(model, shape)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.json:
        print(json.dumps({"gates": table.to_json(), "cost": counted.to_json()}, indent=1))
        return
    print(table)
    print()
    print(f"{len(table.open)} of {len(table)} gates open{': ' + ', '.join(table.open) if table.open else ''}.")
    print(counted)
