"""Everything that decides a training run, typed, and as TOML on disk."""

import difflib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fheat.methods.cse import BLOCK
from fheat.system.errors import BadInput

Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Triple = tuple[PositiveInt, PositiveInt, PositiveInt]


class TrainConfig(BaseModel):
    """Settings of a run. The defaults are the paper's; a run folder holds them all in `config.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str
    """Dataset folder."""
    method: Literal["cse", "supervised"] = "cse"
    labelled: PositiveInt | None = None
    """Use the labels of the first so many training scans; all that have one if None."""
    network: str = "fheat_seg"
    network_options: dict[str, str | int | float] = Field(default_factory=dict)
    patch_size: Triple = (112, 112, 80)
    box: Literal["unlabelled", "labelled"] = "unlabelled"
    """What the box of CSE holds; see `fheat.methods.cse`."""
    ramp: Count = 0
    """Iterations over which the unsupervised terms of CSE gain their weight, for short runs; the protocol has none."""
    batch: PositiveInt = 2
    """Labelled scans per step and process, and as many unlabelled ones."""
    iterations: PositiveInt = 16_000
    warm_up: Count = 500
    rate: PositiveFloat = 0.01
    theta_rate: NonNegativeFloat = 1.0
    delta_rate: NonNegativeFloat = 1.0
    rational_rate: NonNegativeFloat = 0.05
    weight_decay: NonNegativeFloat = 1e-4
    clip: PositiveFloat = 1.0
    """Longest gradient."""
    intensity: Literal["none", "zscore"] = "zscore"
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    """Millimetres to resample to; the median of the scans where these differ, else as stored, if None."""
    stride: Triple | None = None
    """Of the sliding window in validation; half of the patch if None."""
    validate_every: PositiveInt = 1000
    checkpoint_every: PositiveInt = 500
    seed: Seed = 0
    resident: Literal["auto", "yes", "no"] = "auto"
    """Keep all scans on the GPU (yes), or in host memory and only the crops of a step on the GPU (no); auto keeps them
    there if they take at most half of its free memory. The outcome is the same."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """On a GPU; a CPU computes in float32."""
    deterministic: bool = False
    """Ask the libraries for algorithms that repeat bit by bit on a GPU."""
    probe_at: tuple[Count, ...] = ()
    """Iterations after which the pairing of every gate (Proposition 1) is measured and logged; 0 is before the first.
    The run itself goes on as without."""
    probe_batches: PositiveInt = 8
    """Batches it is averaged over, the same at every look."""
    noise_at: PositiveInt | None = None
    """Iteration after which every closed gate is opened at random, D = noise |n| with n normal; never if None."""
    noise: PositiveFloat = 0.3
    spike_at: PositiveInt | None = None
    """Iteration after which the rate is `spike` times as large for `spike_for` iterations; never if None."""
    spike: PositiveFloat = 10.0
    spike_for: PositiveInt = 100
    tensorboard: bool = False
    """Write the log for TensorBoard too."""

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if self.method == "cse" and any(length % BLOCK for length in self.patch_size):
            raise ValueError(f"patch_size: method cse needs multiples of {BLOCK}, not {self.patch_size}")
        if any(step > size for step, size in zip(self.stride or (), self.patch_size, strict=False)):
            raise ValueError(f"stride: {self.stride} leaves gaps between windows of {self.patch_size}")
        for name, at, last in (
            ("probe_at", max(self.probe_at, default=0), self.iterations),
            ("noise_at", self.noise_at or 0, self.iterations - 1),
            ("spike_at", self.spike_at or 0, self.iterations - 1),
        ):
            if at > last:
                raise ValueError(f"{name}: {at} comes too late in {self.iterations} iterations, at most {last} does")
        return self

    def to_toml(self) -> str:
        """Return the settings as TOML; what is None is left out."""
        lines = []
        for name, value in self.model_dump(mode="json").items():
            if isinstance(value, dict):
                value = "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
                lines.append(f"{name} = {value}")
            elif value is not None:
                lines.append(f"{name} = {_toml(value)}")
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Write a value as JSON that is TOML too: characters as they are, but for the one that only TOML forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_config(path: Path, overrides: dict[str, Any]) -> TrainConfig:
    """Read a TOML file and replace what `overrides` names, or raise `BadInput` naming the field."""
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(path, f"is not TOML ({error})", "mend that line") from None
    return checked(content | overrides, path)


def checked(settings: dict[str, Any], source: str | Path) -> TrainConfig:
    """Return the settings, or raise `BadInput` naming the first that cannot be used."""
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        reason = f"{field}: {first['msg']}" if field else str(first["ctx"]["error"])
        if first["type"] == "extra_forbidden":
            close = difflib.get_close_matches(field, TrainConfig.model_fields, n=1)
            reason = f"{field} does not exist" + (f", perhaps {close[0]} is meant" if close else "")
        raise BadInput(source, f"field {reason}", "see fheat train --help") from None
