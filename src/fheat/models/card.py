"""What a model folder says besides its weights. Every field is data; nothing in it is ever executed."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, NonNegativeFloat, PositiveFloat, PositiveInt


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Intensity(_Strict):
    """How voxel values become network input, before anything else."""

    kind: Literal["none", "zscore", "window"] = "none"
    low: float | None = None
    high: float | None = None


class Window(_Strict):
    """Sliding window the metrics were measured with, in voxels."""

    size: tuple[PositiveInt, PositiveInt, PositiveInt]
    stride: tuple[PositiveInt, PositiveInt, PositiveInt]


class Card(_Strict):
    """The facts a user needs to apply a model and to judge it."""

    title: str = ""
    classes: tuple[str, ...] = ()
    intensity: Intensity | None = None
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    orientation: str | None = None
    window: Window | None = None
    data: str = ""
    licence: str = ""
    training: dict[str, JsonValue] = Field(default_factory=dict)
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)


class Network(_Strict):
    """How to build the network, see `fheat.models.registry.Recipe`."""

    name: str
    in_channels: PositiveInt
    out_channels: PositiveInt
    patch_size: tuple[PositiveInt, ...]
    options: dict[str, JsonValue]


class Manifest(_Strict):
    """The content of `model.json`."""

    format: Literal[1] = 1
    network: Network
    retired: dict[str, float]
    """Sites whose gates are gone, with the alpha they had."""
    frozen: dict[str, NonNegativeFloat]
    """Sites whose strength is a constant, with that constant."""
    card: Card
    sha256: dict[str, str]
    """Of the weight file, and of this file with its own hash left empty."""
