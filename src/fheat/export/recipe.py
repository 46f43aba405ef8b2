"""The recipe inside an exported file: all that turns a stored scan into windows, and logits into a mask.

`docs/reference/export-recipe.md` explains every field for people who write their own program from it.
"""

from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, PositiveInt

from fheat import __version__
from fheat.data.preprocessing import Intensity
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import Activation
from fheat.inference.windows import Triple, Weights
from fheat.models.card import NetworkEntry
from fheat.ops.gates import gates_of
from fheat.system.machine import installed_version

KEY = "fheat_recipe"
"""Name of the recipe in the metadata of an exported file."""
INPUT, OUTPUT = "image", "logits"
"""Names of the only input and the only output of an exported graph."""
STEP = 32
"""Number of voxels by which a size of any kind grows: all networks halve their grid at most five times."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sizes(_Strict):
    """Inputs that an exported graph takes, (any batch, channels, X, Y, Z) in float32."""

    channels: PositiveInt
    size: Triple
    """Number of voxels of a window along X, Y and Z."""
    step: PositiveInt | None
    """Each axis may also be longer by multiples of this; None where the graph takes windows of `size` only."""
    fixed_because: str = ""
    """Why the graph takes windows of `size` only."""


class SlidingRule(_Strict):
    """Windows that cover a scan, and how their outputs are averaged."""

    size: Triple
    stride: Triple
    weights: Weights
    activation: Activation
    """Name of the function that turns logits into the probabilities that are averaged."""


class GateSites(_Strict):
    """Sites of the gates: those that are part of the graph, and those that left it without changing an output."""

    open: tuple[str, ...]
    retired: tuple[str, ...]


class Recipe(_Strict):
    """The content of the metadata; `docs/reference/export-recipe.md` has the meaning of each field."""

    format: Literal[1] = 1
    title: str
    network: NetworkEntry
    gates: GateSites
    input: Sizes
    orientation: str | None
    spacing: tuple[float, float, float] | None
    tolerance: float
    intensity: Intensity
    window: SlidingRule
    classes: tuple[str, ...]
    regions: tuple[int, ...]
    largest_component: bool
    data: str
    licence: str
    weights_sha256: str
    """Hash of the weight file of the model folder."""
    versions: dict[str, str]

    def text(self) -> str:
        """Return the recipe as JSON on one line."""
        return self.model_dump_json()


def recipe_of(
    predictor: Predictor, weights_sha256: str, *, step: int | None, fixed_because: str = "", packages: tuple[str, ...]
) -> Recipe:
    """Return what `predictor` does with a scan, for a graph that takes other sizes in steps or, with None, none.

    `packages` are those that took part in writing the file; their versions are noted.
    """
    spec, card = predictor.spec, predictor.card
    assert spec is not None
    preprocessing, windows = predictor.preprocessing, predictor.windows
    gates = gates_of(predictor.network)
    versions = {"fheat": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return Recipe(
        title=card.title,
        network=NetworkEntry(
            name=spec.name,
            in_channels=spec.in_channels,
            out_channels=spec.out_channels,
            patch_size=spec.patch_size,
            options=dict(spec.options),
        ),
        gates=GateSites(
            open=tuple(site for site, gate in gates.items() if not gate.retired),
            retired=tuple(site for site, gate in gates.items() if gate.retired),
        ),
        input=Sizes(channels=spec.in_channels, size=windows.size, step=step, fixed_because=fixed_because),
        orientation=preprocessing.orientation,
        spacing=preprocessing.spacing,
        tolerance=preprocessing.tolerance,
        intensity=preprocessing.intensity,
        window=SlidingRule(
            size=windows.size,
            stride=windows.stride,
            weights=predictor.weights,
            activation=predictor.activation,
        ),
        classes=card.classes or tuple(f"label {value}" for value in card.regions or range(spec.out_channels)),
        regions=card.regions,
        largest_component=predictor.largest_component,
        data=card.data,
        licence=card.licence,
        weights_sha256=weights_sha256,
        versions=versions | {name: found for name in packages if (found := installed_version(name)) is not None},
    )
