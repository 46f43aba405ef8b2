"""Networks as model folders and scans as files, which fresh processes open as those of a user."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fheat.bench.plan import COMPILED, PLAIN, build
from fheat.data.phantom import phantom
from fheat.data.preprocessing import Preprocessing
from fheat.inference.windows import Triple, Windows
from fheat.io import Volume, write_nifti
from fheat.models.card import Card, Window
from fheat.models.folder import load, read_manifest, save
from fheat.models.zoo import find_folder, zoo_names
from fheat.networks.registry import list_models, spec_of
from fheat.system.errors import BadInput


@dataclass
class Stored:
    """Model folders by the names that were asked for, in their order; `missing` says why others could not be built."""

    folders: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def as_they_are() -> Preprocessing:
    """Return the preprocessing of a network that takes scans on their own grid, with axes and intensities mapped."""
    return Preprocessing.model_validate({"orientation": "RAS", "intensity": {"kind": "zscore"}})


def model_folders(names: Sequence[str], windows: Windows, place: Path, seed: int = 0) -> Stored:
    """Return a model folder for each name: that of a model folder or of the zoo as it is, else a new one in `place`.

    Networks of the registry are those of `fheat.bench.plan.build`, with the states of gates that it knows; they get a
    card with these windows. `/plain` and `/compiled` are refused, because a model folder does not state them. So are
    models that take several channels, because the scans of the benchmarks have one. The weights of a model that is
    there are read once, so that damaged ones are refused before a process is started that would say it in its own way.
    """
    if odd := [name for name in names if name.endswith((PLAIN, COMPILED))]:
        raise ValueError(f"network {odd[0]!r} cannot be started as a model folder: leave out {PLAIN} and {COMPILED}")
    known, stored = list_models(), Stored()
    own = {name for name in names if name.partition("/")[0] not in known and _is_stored(name)}
    fresh = [name for name in names if name not in own]
    networks = build(fresh, windows.size, "cpu", seed) if fresh else None
    for name in names:
        if name in own:
            stored.folders[name] = find_folder(name)
            load(stored.folders[name])
        elif networks is not None and name in networks.built:
            network = networks.built[name]
            classes = ("background", *(f"class {number}" for number in range(1, spec_of(network).out_channels)))
            window = Window(size=windows.size, stride=windows.stride)
            card = Card(classes=classes, preprocessing=as_they_are(), window=window)
            stored.folders[name] = save(network, place / f"model-{len(stored.folders)}", card)
    stored.missing = {} if networks is None else networks.missing
    for name, folder in stored.folders.items():
        if (channels := read_manifest(folder).network.in_channels) != 1:
            raise BadInput(name, f"takes scans with {channels} channels", "time a network for scans with one")
    return stored


def write_scan(path: Path, shape: Triple, model: Path, seed: int = 0) -> Path:
    """Write a synthetic scan that has this shape on the grid of a model, and return its path."""
    spacing = read_manifest(model).card.preprocessing.spacing or (1.0, 1.0, 1.0)
    image = phantom(seed, shape, geometry="canonical").image
    write_nifti(Volume(image.data, np.diag([*spacing, 1.0])), path)
    return path


def _is_stored(name: str) -> bool:
    return name in zoo_names() or Path(name).is_dir()
