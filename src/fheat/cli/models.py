"""`fheat models`: list the networks with their sizes and costs, and the trained models that come with the package."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.gates.cost import COUNTER, cost, giga
from fheat.methods.registry import list_methods, method_class
from fheat.models.folder import read_manifest
from fheat.models.zoo import zoo_folder, zoo_names
from fheat.networks.registry import create_model, list_models, model_options, network_plugins
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, counted_steps, progress_bar


@dataclass(frozen=True)
class Models:
    """List the networks with their parameters and multiply-adds for one patch, those of other installed packages
    included, and the zoo: the trained models that the verbs predict and allocation know by name.

    Example: fheat models --patch-size 96 96 96

    Example: fheat models --methods

    Example: fheat models --cost

    Example: fheat models --card la-4
    """

    patch_size: tuple[int, int, int] = (112, 112, 80)
    """Number of voxels of the input along each axis."""
    in_channels: int = 1
    """Number of channels of the input."""
    out_channels: int = 2
    """Number of classes, background included."""
    methods: bool = False
    """List the training methods instead: what they are, what they need, and how many crops they pass."""
    cost: bool = False
    """Compare our counts with the published ones instead, and say why they differ."""
    card: str | None = None
    """Print the card of this trained model instead, a name from the zoo or a model folder: intended use, limits, data,
    metrics, licence."""
    size: tuple[int, int, int] | None = None
    """With --cost, the number of voxels along each axis; by default both sizes of the paper."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Models, "models", arguments)
    if options.methods:
        _print_methods(as_json=options.json)
        return
    if options.card is not None:
        from fheat.cli.models_card import print_card

        print_card(options.card, as_json=options.json)
        return
    if options.cost:
        from fheat.cli.models_cost import print_costs  # which imports the records of the paper

        print_costs(options.size, as_json=options.json)
        return
    if options.size is not None:
        raise UsageError("--size belongs to --cost; without it, use --patch-size")
    with progress_bar("building networks") as show:
        rows, unavailable = _networks(options, show)
    trained = [_trained(name) for name in zoo_names()]
    if options.json:
        result = {"counter": COUNTER, "patch_size": options.patch_size, "networks": rows, "zoo": trained}
        result["not_available"] = unavailable
        print(json.dumps(result, indent=1))
        return
    _print(rows, options)
    for line in unavailable:
        print(line)
    if trained:
        _print_trained(trained)


def _networks(options: Models, progress: Progress) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per network, and one line for each network that cannot be built here."""
    plugins = network_plugins()
    rows: list[dict[str, Any]] = []
    unavailable = [f"{name} is not available: distribution {reason}" for name, reason in plugins.refused.items()]
    for name in counted_steps(list_models(), progress):
        distribution = plugins.registered.get(name)
        try:
            rows.append(_row(name, options) | ({"distribution": distribution} if distribution else {}))
        except BadInput as error:  # a network of a library that is not installed
            unavailable.append(f"{name} is not available: {error}")
        except Exception as error:
            reason = str(error).split("\n")[0]
            if distribution is not None:  # foreign code may raise anything
                said = f"distribution {distribution}: {type(error).__name__}: {reason}"
                unavailable.append(f"{name} is not available: {said}")
            elif isinstance(error, (ValueError, RuntimeError, OverflowError)):  # the last two: no memory can hold it
                raise UsageError(reason) from None
            else:
                raise
    return rows, unavailable


def _row(name: str, options: Models) -> dict[str, Any]:
    model = create_model(name, options.in_channels, options.out_channels, options.patch_size)
    counted = cost(model)
    return {
        "name": name,
        "parameters": counted.parameters,
        "macs_gates_open": counted.macs,
        "macs_gates_closed": counted.rest,
        "gates": list(gates_of(model)),
        "options": model_options(name),
    }


def _trained(name: str) -> dict[str, Any]:
    manifest = read_manifest(zoo_folder(name))
    card = manifest.card
    return {
        "name": name,
        "title": card.title,
        "intended_use": card.intended_use,
        "limits": card.limits,
        "network": manifest.network.name,
        "classes": card.classes,
        "validation_dice": card.metrics.get("validation_dice"),
        "data": card.data,
        "licence": card.licence,
    }


def _print(rows: list[dict[str, Any]], options: Models) -> None:
    patch = "x".join(map(str, options.patch_size))
    table = Table(title=f"{options.in_channels} channel(s), {options.out_channels} classes, patch {patch}")
    table.add_column("network", no_wrap=True)
    for heading in ("parameters", "G MAC, gates open", "G MAC, all closed", "gates"):
        table.add_column(heading, justify="right")
    for row in rows:
        closed = giga(row["macs_gates_closed"]) if row["gates"] else "-"
        name, parameters, gates = row["name"], f"{row['parameters']:,}", str(len(row["gates"]))
        table.add_row(name, parameters, giga(row["macs_gates_open"]), closed, gates)
    Console(width=max(Console().width, 80)).print(table)
    for row in rows:
        settings = ", ".join(f"{key}={value!r}" for key, value in row["options"].items())
        origin = f" (distribution {row['distribution']})" if "distribution" in row else ""
        print(f"{row['name']} takes {settings or 'no options'}{origin}")
    print(f"MAC by {COUNTER}.")


def _print_trained(rows: list[dict[str, Any]]) -> None:
    print("\nTrained models, for predict and allocation:")
    for row in rows:
        dice = "" if row["validation_dice"] is None else f", validation Dice {row['validation_dice']:.4f}"
        print(f"{row['name']}: {row['title']}; {row['network']}{dice}")
        print(f"  data: {row['data']}\n  licence: {row['licence']}")
    print("fheat models --card NAME prints the whole card of one.")


def _print_methods(*, as_json: bool) -> None:
    """Print the training methods; passes are crops through a network per labelled crop, with and without gradients."""
    methods = {name: method_class(name) for name in list_methods()}
    if as_json:
        rows = [
            {"name": name, "title": one.title, "needs": one.needs.listed(), "passes": one.passes}
            for name, one in methods.items()
        ]
        print(json.dumps({"methods": rows}, indent=1))
        return
    table = Table(title="training methods; passes: crops through a network per labelled crop, with + without gradients")
    for column in ("method", "what it is", "needs beside labelled scans", "passes"):
        table.add_column(column, overflow="fold")
    for name, one in methods.items():
        needs = ", ".join(one.needs.listed()) or "nothing"
        table.add_row(name, one.title, needs, " + ".join(map(str, one.passes)))
    Console().print(table)
