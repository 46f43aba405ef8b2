"""Card of a model folder: facts about its weights. Every field is data; nothing in it is ever executed."""

from itertools import zip_longest
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from fheat.data.appearance import Appearance
from fheat.data.preprocessing import Preprocessing
from fheat.gates.hook import AxisOrder
from fheat.io.codes import SegmentCode


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Window(_Strict):
    """Size and stride, in voxels, of the sliding window that the metrics were measured with."""

    size: tuple[PositiveInt, PositiveInt, PositiveInt]
    stride: tuple[PositiveInt, PositiveInt, PositiveInt]


class Card(_Strict):
    """The facts a user needs to apply a model and to judge it."""

    title: str = ""
    """Description of what the model segments, in a few words."""
    intended_use: str = ""
    """For which scans and which purpose the model is meant."""
    limits: str = ""
    """Where it is known, or must be expected, to be wrong."""
    classes: tuple[str, ...] = ()
    """Name of each output channel; the first is the background unless `regions` are given."""
    regions: tuple[Annotated[int, Field(ge=1, le=255)], ...] = ()
    """Label value of each output channel where channels are nested regions, outermost first, instead of exclusive
    classes: whole tumour 1, tumour core 2, enhancing tumour 3 paint a mask from the outside in."""
    codes: dict[Annotated[int, Field(ge=1, le=255)], SegmentCode] = Field(default_factory=dict)
    """Codes for what each label value shows, for DICOM; a value without an entry is looked up by name, see
    `fheat.io.codes`."""
    preprocessing: Preprocessing = Preprocessing()
    """How a stored scan becomes the network's input; by default nothing is changed."""
    appearance: Appearance = Appearance()
    """Appearance of the training scans, with which prediction compares every scan; by default nothing is known."""
    window: Window | None = None
    data: str = ""
    """Which scans it was trained on."""
    licence: str = ""
    training: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings and facts of the training run, such as its seed."""
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Measured results, such as `validation_dice`."""

    @property
    def seed(self) -> int | None:
        """Seed of the training run, from the section `schedule`, or from the top in cards older than sections."""
        schedule = self.training.get("schedule")
        seed = schedule.get("seed") if isinstance(schedule, dict) else self.training.get("seed")
        return seed if isinstance(seed, int) else None

    def class_values(self, channels: int | None = None) -> dict[str, tuple[int, ...]]:
        """Return the name of each class or region and the label values that belong to it, without the background.

        `channels` is the number of output channels of the network, which counts where the card names no class.
        """
        count = len(self.classes) if channels is None else channels
        names = self.classes or tuple(f"label {value}" for value in self.regions or range(count))
        if self.regions:
            return {name: tuple(self.regions[level:]) for level, name in enumerate(names)}
        return {name: (value,) for value, name in enumerate(names) if value}

    def label_names(self, channels: int | None = None) -> tuple[str, ...]:
        """Return the names of the label values 1, 2, ...; a region's own value is what its inner regions leave of it.

        `channels` is as for `class_values`.
        """
        named, classes = {}, self.class_values(channels)
        for (name, values), inner in zip_longest(classes.items(), list(classes)[1:]):
            named[values[0]] = f"{name} without {inner}" if len(values) > 1 else name
        return tuple(named.get(value, f"label {value}") for value in range(1, max(named, default=0) + 1))

    @model_validator(mode="after")
    def _names_every_region_once(self) -> Self:
        if len(set(self.regions)) != len(self.regions):
            raise ValueError("regions must have values of their own")
        if self.regions and self.classes and len(self.regions) != len(self.classes):
            raise ValueError(f"{len(self.regions)} regions and {len(self.classes)} classes: one name per region")
        return self


class NetworkEntry(_Strict):
    """How the network is built, see `fheat.networks.registry.NetworkSpec`."""

    name: str
    in_channels: PositiveInt
    out_channels: PositiveInt
    patch_size: tuple[PositiveInt, ...]
    options: dict[str, JsonValue]


class PlacedGate(_Strict):
    """A gate that `fheat.instrument` placed behind a module of the network, see `fheat.gates.hook.GateHook`."""

    site: str
    """Path of the module."""
    child: Annotated[str, Field(pattern=r"^(gate|heat_gate(_[0-9]{1,2})?)$")]
    """Name of the gate among the children of the module."""
    layout: AxisOrder
    dims: Annotated[int, Field(ge=1, le=3)]
    grid: tuple[PositiveInt, ...] | None
    """Grid of the tokens; None where the output is no sequence of tokens."""
    prefix_tokens: NonNegativeInt
    options: dict[Literal["alpha", "strength", "initial_theta", "transform"], str | FiniteFloat]
    """Options of `fheat.FractionalHeat` with which the gate was built."""


class Manifest(_Strict):
    """The content of `model.json`."""

    format: Literal[2] = 2
    """Version of this description; `fheat.models.folder` reads older ones too."""
    network: NetworkEntry
    instrumented: tuple[PlacedGate, ...] = ()
    """Gates beyond those that the network is built with."""
    retired: dict[str, float]
    """Sites whose gates are gone, with the alpha they had; 0 for spectral mixers, which have none."""
    frozen: dict[str, NonNegativeFloat]
    """Sites whose strength is a constant, with that constant."""
    stored: Literal["float16"] | None = None
    """Precision of the file where it is half that of the network, see `fheat.models.folder`; None where they agree."""
    card: Card
    sha256: dict[str, str]
    """Hashes of the weight file, and of this file with its own hash left empty."""
