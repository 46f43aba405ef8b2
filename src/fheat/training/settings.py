"""Everything that decides a training run, in typed sections: the source of the TOML file, the options and their help.

    [data] folder = "scans", labelled = 4        [network] name = "fheat_seg", mixer = "gelu"
    [method] name = "mean_teacher", box = "unlabelled"    [optimiser] learning_rate = 0.01   ...

The sections `network` and `method` take, beside a name, the options of that network and the settings of that method.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from fheat.data.folds import Fold
from fheat.data.orientation import check_codes
from fheat.data.plausible import Allowance
from fheat.data.preprocessing import Intensity
from fheat.methods.base import MethodSettings, Regions, Task
from fheat.methods.registry import DEFAULT_METHOD, method_class
from fheat.networks.registry import learning_rate_of, list_models, model_options, name_here
from fheat.system.settings import Count, Section, Short, Triple, nearest

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, lt=1)]
Iterations = tuple[Count, ...]
ModulePaths = tuple[Annotated[str, Field(min_length=1)], ...]
INITIAL_STRENGTH: Final = 0.03
"""Strength D with which gates begin that training shall decide about."""


class DataSettings(Section):
    """Which scans are trained on, and how crops of them make batches."""

    folder: str
    """Dataset folder; see fheat data check."""
    labelled: Annotated[PositiveInt | None, Short("labelled")] = None
    """Number of training scans whose labels are used, from the first on; all that have one if none."""
    fold: Annotated[str | None, Short("fold")] = None
    """Fold that validates while the others train, such as 2/5: the labelled scans of the splits train and validation go
    to the folds in turn. The splits of the dataset if none."""
    patch_size: Annotated[Triple, Short("patch_size")] = (112, 112, 80)
    """Size of a crop in voxels."""
    batch: Annotated[PositiveInt, Short("batch")] = 2
    """Number of labelled crops per iteration and process, and of unlabelled ones for a method that uses them."""
    augment: Literal["none", "mirror", "rotate"] = "none"
    """How crops are changed at random: not at all; mirrored along each axis with probability one half; or turned by any
    number of quarters in the plane of the first two axes and mirrored along one of these, as the published V-Net
    methods do on LA. Sides then look alike to the network."""
    regions: Literal["auto", "yes", "no"] = "auto"
    """Whether output channels are nested regions (yes), such as whole tumour, core and enhancing tumour, or exclusive
    classes (no); auto takes regions where the dataset declares classes with several label values and the method can."""
    resident: Annotated[Literal["auto", "yes", "no"], Short("resident")] = "auto"
    """Whether all scans are kept on the GPU (yes), or in host memory with only the crops of an iteration on the GPU
    (no); auto keeps them there if they take at most half of its free memory. The outcome is the same."""

    allow: Annotated[tuple[Allowance, ...], Short("allow")] = ()
    """implausible-spacing takes scans whose voxels or extent no scanner gives, instead of refusing them."""

    @field_validator("fold")
    @classmethod
    def _names_a_fold(cls, fold: str | None) -> str | None:
        return None if fold is None else str(Fold.read(fold))


class PreprocessingSettings(Section):
    """How a stored scan becomes the input of the network. The model card keeps it, and prediction repeats it."""

    intensity: Annotated[Literal["none", "zscore", "zscore_nonzero", "window"], Short("intensity")] = "zscore"
    """Intensities: as stored (none), mean 0 and deviation 1 over the scan (zscore) or over its voxels that are not 0
    (zscore_nonzero), or a window mapped to [0, 1], such as CT's (window)."""
    window: Annotated[tuple[FiniteFloat, FiniteFloat] | None, Short("window")] = None
    """Lowest and highest intensity of the window, such as -125 275 for the abdomen in CT."""
    spacing: Annotated[tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None, Short("spacing")] = None
    """Voxel size in millimetres that scans are resampled to; the median of the scans of the run if none, and of all
    folds with `fold`."""
    orientation: str | None = None
    """Directions of the axes, such as RAS; those of the scans where they agree, else RAS, if none."""
    tolerance: NonNegativeFloat = 0.05
    """Relative difference to the spacing below which a scan is kept as it is stored."""

    @field_validator("orientation")
    @classmethod
    def _names_directions(cls, orientation: str | None) -> str | None:
        return None if orientation is None else check_codes(orientation)

    @model_validator(mode="after")
    def _window_belongs_to_its_kind(self) -> Self:
        if (self.window is not None) != (self.intensity == "window"):
            raise ValueError("preprocessing.window: is given with intensity window, and only then")
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ValueError(f"preprocessing.window: {self.window} is empty")
        return self

    def intensities(self) -> Intensity:
        """Return the intensities as the model card has them."""
        if self.intensity == "window" and self.window is not None:
            return Intensity(kind="window", low=self.window[0], high=self.window[1])
        if self.intensity == "zscore_nonzero":
            return Intensity(kind="zscore", nonzero=True)
        return Intensity(kind=cast(Literal["none", "zscore"], self.intensity))


class NetworkSettings(Section):
    """Which network is trained, and its options."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Short("network")] = "fheat_seg"
    """Name of the network; see fheat models."""
    start: Annotated[str | None, Short("from")] = None
    """Trained model whose weights the run starts from: a model of the zoo, a model folder or a run folder, which
    means its best network or, where it validated none, its final one. The network and its options are those of the
    model where they are not given. Fresh weights if none."""
    instrument: ModulePaths = ()
    """Modules behind which gates are put before training, beside those that the network has: paths of modules, or
    patterns in which * stands for anything within one part of a path and ** for any number of parts, such as
    'body.up_layers.*'; see docs/how-to/add-a-gate.md. The model folder keeps these gates."""
    initial_strength: NonNegativeFloat | None = None
    """Strength D with which the gates of instrument start, 0.03 if none. With 0 they stay closed, and --probe-at
    measures which of them want to open."""

    @model_validator(mode="after")
    def _options_exist(self) -> Self:
        networks = list_models()
        if self.name not in networks:
            near = nearest(name_here(self.name), networks)
            raise ValueError(f"network.name: {self.name!r} is unknown{near}: use {', '.join(networks)}")
        known = model_options(self.name)
        for option in self.options:
            if option not in known:
                accepted = ", ".join(known) or "no options"
                hint = nearest(option, [f"network.{name}" for name in known])
                raise ValueError(f"network.{option}: {self.name} does not have it{hint}; it takes {accepted}")
        if self.initial_strength is not None and not self.instrument:
            raise ValueError("network.initial_strength: is that of the gates of network.instrument, and it names none")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options of the network that differ from its own defaults or were given."""
        return dict(self.model_extra or {})


class OptimiserSettings(Section):
    """How AdamW updates the weights, and in which precision they are computed."""

    learning_rate: Annotated[PositiveFloat, Short("learning_rate")] = 0.01
    """Learning rate after the warm-up; where none is given, that of the network: 0.001 for Light-UNETR, whose
    activations overflow with more, 0.01 for the others."""
    theta: NonNegativeFloat = 1.0
    """Factor of the learning rate for the orders of the gates."""
    delta: NonNegativeFloat = 1.0
    """Factor of the learning rate for the strengths of the gates."""
    rational: NonNegativeFloat = 0.05
    """Factor of the learning rate for the coefficients of rational activations."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of AdamW."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Share of its old value that AdamW's mean of the gradients keeps in each update, and the same for their squares.
    """
    average: Share | None = None
    """Share of its old value that a moving average of the weights keeps in each update, such as 0.999; the averaged
    network is then the one that is validated and saved. Without it, the network itself is."""
    clip: PositiveFloat | None = 1.0
    """Largest norm of the gradient; longer ones are scaled to it, with none no gradient is."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of forward and backward passes on a GPU; a CPU computes in float32."""
    deterministic: bool = False
    """Whether a GPU uses only algorithms that repeat bit by bit, and a CPU always all threads, even beside busy
    programs."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Whether torch.compile builds kernels for the network, which takes a minute or more before the first iteration;
    for networks without kernels of fheat's own, such as SegResNet. auto does so where measurements say that the run
    gains more than that; fheat bench step --models segresnet,segresnet/compiled measures it. What is compiled is
    compared with the network as it is written first; where it differs, auto goes on without it."""

    @field_validator("compile", mode="before")
    @classmethod
    def _was_a_switch(cls, value: Any) -> Any:
        """Read true and false, which earlier versions wrote, as yes and no."""
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


class ScheduleSettings(Section):
    """How long training lasts."""

    iterations: Annotated[PositiveInt, Short("iterations")] = 16_000
    """Number of iterations."""
    warm_up: Annotated[Count, Short("warm_up")] = 500
    """Number of iterations over which the learning rate rises; then it falls to zero along a cosine."""
    seed: Annotated[Seed, Short("seed")] = 0
    """Seed of the weights, the crops and everything else that is random."""


class ValidationSettings(Section):
    """When and how the network is tested on the validation scans."""

    every: Annotated[PositiveInt, Short("validate_every")] = 1000
    """Number of iterations between validations."""
    stride: Triple | None = None
    """Steps of the sliding window in voxels; half of the patch if none."""


class OutputSettings(Section):
    """Files that are written beside the log and the models."""

    checkpoint_every: Annotated[PositiveInt, Short("checkpoint_every")] = 500
    """Number of iterations between checkpoints."""
    tensorboard: Annotated[bool, Short("tensorboard")] = False
    """Write RUN/tensorboard too; needs fheat[tensorboard]."""


class ResearchSettings(Section):
    """Measurements and perturbations of the gates during training."""

    probe_at: Annotated[Iterations, Short("probe_at")] = ()
    """Iterations after which the pairing of every gate (Proposition 1) is measured and logged; 0 is before the first.
    The run itself goes on as without."""
    probe_batches: PositiveInt = 8
    """Number of batches that a probe averages over, the same at every look."""
    noise_at: Annotated[PositiveInt | None, Short("noise_at")] = None
    """Iteration after which every closed gate is opened at random, D = noise |n| with n normal; never if none."""
    noise: PositiveFloat = 0.3
    """Scale of the strengths that gates are opened with."""
    spike_at: Annotated[PositiveInt | None, Short("spike_at")] = None
    """Iteration after which the learning rate is `spike` times as large for `spike_for` iterations; never if none."""
    spike: PositiveFloat = 10.0
    """Factor of the learning rate in the spike."""
    spike_for: PositiveInt = 100
    """Number of iterations of the spike."""


class TrainSettings(Section):
    """Settings of a run; a run folder holds them all in `config.toml`.

    The defaults are the recipe that docs/evidence/recipe.md compares with others. They differ from the paper where
    `fheat.training.settings_sources.PRESETS` says so.
    """

    data: DataSettings
    preprocessing: PreprocessingSettings = PreprocessingSettings()
    network: NetworkSettings = NetworkSettings()
    method: SerializeAsAny[MethodSettings] = Field(default=None, validate_default=True)
    optimiser: OptimiserSettings = OptimiserSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    validation: ValidationSettings = ValidationSettings()
    output: OutputSettings = OutputSettings()
    research: ResearchSettings = ResearchSettings()

    @model_validator(mode="before")
    @classmethod
    def _rate_of_its_network(cls, values: Any) -> Any:
        """Take the learning rate of the network where none is given."""
        if not isinstance(values, Mapping):
            return values
        network, optimiser = (
            section.model_dump(exclude_unset=True) if isinstance(section, Section) else section
            for section in (values.get("network", {}), values.get("optimiser", {}))
        )
        if not isinstance(network, Mapping) or not isinstance(optimiser, Mapping) or "learning_rate" in optimiser:
            return values  # if these are no sections, validation says so
        name = network.get("name", NetworkSettings.model_fields["name"].default)
        if name not in list_models():
            return values
        return {**values, "optimiser": {**optimiser, "learning_rate": learning_rate_of(name)}}

    @field_validator("method", mode="before")
    @classmethod
    def _of_its_method(cls, value: Any) -> Any:
        """Validate the section with the settings of the method that it names, or else of the default one."""
        if isinstance(value, MethodSettings):
            return value
        values = dict(value or {})
        return method_class(str(values.get("name", DEFAULT_METHOD))).Settings.model_validate(values)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        patch, stride = self.data.patch_size, self.validation.stride or ()
        method_class(self.method.name).check(self.method, self.task())
        if self.data.augment == "rotate" and patch[0] != patch[1]:
            raise ValueError(f"data.augment: rotate needs crops that are square in their first two axes, not {patch}")
        if any(step > size for step, size in zip(stride, patch, strict=False)):
            raise ValueError(f"validation.stride: {stride} leaves gaps between windows of {patch}")
        research, iterations = self.research, self.schedule.iterations
        for name, at, last in (
            ("probe_at", max(research.probe_at, default=0), iterations),
            ("noise_at", research.noise_at or 0, iterations - 1),
            ("spike_at", research.spike_at or 0, iterations - 1),
        ):
            if at > last:
                raise ValueError(
                    f"research.{name}: {at} comes too late in {iterations} iterations, at most {last} does"
                )
        return self

    def task(self, classes: int = 2, regions: Regions = ()) -> Task:
        """Return what the method is told about a run with these settings."""
        return Task(self.data.patch_size, self.data.batch, classes, regions, self.schedule.iterations)
