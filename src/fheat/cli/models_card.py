"""`fheat models --card MODEL`: everything that a model folder says about itself, for a reader."""

import textwrap
from typing import Any

from fheat.models.card import Card, Manifest
from fheat.models.folder import WEIGHTS, read_manifest
from fheat.models.zoo import find_folder, zoo_names
from fheat.system.text import grid_name, printable

WIDTH = 100
"""Number of characters of a line."""


def print_card(model: str, *, as_json: bool) -> None:
    """Print the card of a zoo model, of a model folder or of a run, as text or as JSON."""
    manifest = read_manifest(find_folder(model))
    print(manifest.card.model_dump_json(indent=1) if as_json else printable_card(model, manifest))


def printable_card(model: str, manifest: Manifest) -> str:
    """Return the card as paragraphs, each with its title; what a card does not state is said to be missing."""
    card, network = manifest.card, manifest.network
    command = model if model in zoo_names() else repr(model)
    classes = "; ".join(
        f"{name} ({', '.join(map(str, values))})" for name, values in card.class_values(network.out_channels).items()
    )
    parts = {
        "Intended use": card.intended_use,
        "Limits": card.limits,
        "Classes and their label values": classes,
        "Data": card.data,
        "Metrics": ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in card.metrics.items()),
        "Input": _input(card, network.in_channels),
        "Scans like those of training": _ranges(card),
        "Training": _training(card, network.name),
        "Licence": card.licence,
        "sha256 of the weights": manifest.sha256[WEIGHTS],
        "Command": f"fheat predict {command} SCAN OUT",
    }
    text = f"{model}: {card.title or 'without a title'}\n"
    for title, words in parts.items():
        wrapped = textwrap.wrap(printable(words) or "not stated", WIDTH, initial_indent="  ", subsequent_indent="  ")
        text += f"\n{title}\n" + "\n".join(wrapped) + "\n"
    return text.rstrip("\n")


def _input(card: Card, channels: int) -> str:
    """Return what the network is given: channels, orientation, spacing, intensities and window."""
    given = card.preprocessing
    spacing = "x".join(f"{value:g}" for value in given.spacing) + " mm" if given.spacing else "spacing as stored"
    stated = [f"{channels} channel(s)", given.orientation or "orientation as stored", spacing]
    stated.append(f"intensities {given.intensity.kind}")
    if card.window is not None:
        stated.append(f"windows of {grid_name(card.window.size)} voxels every {grid_name(card.window.stride)}")
    return ", ".join(stated)


def _ranges(card: Card) -> str:
    """Return the ranges outside of which `fheat predict` calls a scan unusual."""
    ranges = (f"{name} {known.low:.3g} to {known.high:.3g}" for name, known in card.appearance.ranges.items())
    return "; ".join(ranges)


def _training(card: Card, network: str) -> str:
    """Return network, method, iteration and seed; cards from before settings had sections have them at the top."""
    method, schedule = card.training.get("method"), card.training.get("schedule")
    name: Any = method.get("name") if isinstance(method, dict) else method
    length: Any = schedule.get("iterations") if isinstance(schedule, dict) else card.training.get("iterations")
    facts = {"method": name, "iteration": card.training.get("iteration"), "of": length, "seed": card.seed}
    return ", ".join([network, *(f"{fact} {value}" for fact, value in facts.items() if value is not None)])
