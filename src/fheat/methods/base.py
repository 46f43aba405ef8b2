"""Base of training methods: a method owns and checks its settings, says what it needs, and turns a batch into losses.

A method is one file: a subclass of `Method` with a `Settings` section, and one line in `fheat.methods.registry` or, in
another package, one entry point of the group `fheat.methods`. Training knows methods only through this class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from fheat.networks.base import SegmentationNetwork
from fheat.system.settings import Section

Size = tuple[int, int, int]
Regions = tuple[tuple[int, ...], ...]


class Batch(NamedTuple):
    """Crops drawn for one iteration, already on the device.

    images (L, C, X, Y, Z) and labels (L, X, Y, Z): crops of labelled scans.
    unlabelled (U, C, X, Y, Z): crops of scans used without their labels; U is 0 for a method that does not need them.
    low, high (U, C): smallest and largest intensity of the whole scan behind each unlabelled crop.
    """

    images: Tensor
    labels: Tensor
    unlabelled: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Needs:
    """Requirements of a method on the data, the network and the trainer; `fheat models --methods` lists them."""

    unlabelled: bool = False
    """Training scans without labels, as many per batch as labelled ones."""
    attention: bool = False
    """An attention map from the network's `forward_features`."""
    features: bool = False
    """The features before the segmentation head, from `forward_features`."""
    teacher: bool = False
    """A second copy of the network that follows the first one as a moving average."""
    second_network: bool = False
    """Another network that is trained beside the first one."""
    optimiser: bool = False
    """An optimiser of its own instead of AdamW with the run's settings."""

    @property
    def of_the_network(self) -> frozenset[str]:
        """Names of what the network has to provide beside logits, see `fheat.networks.registry.provides`."""
        return frozenset(name for name in ("attention", "features") if getattr(self, name))

    def listed(self) -> list[str]:
        """Return the needs as words."""
        return [name.replace("_", " ") for name, needed in vars(self).items() if needed]


@dataclass(frozen=True)
class Task:
    """Facts about the run that a method is given: the size of its crops and batches, its classes and its length."""

    patch_size: Size
    batch: int
    """Number of labelled crops per iteration and process, and of unlabelled ones for a method that needs them."""
    classes: int = 2
    """Number of output channels of the network."""
    regions: Regions = ()
    """Label values inside each output channel where channels are nested regions; empty for exclusive classes."""
    iterations: int = 16_000


class MethodSettings(Section):
    """Settings of a training method."""

    name: str
    """Name of the training method."""


class Optimiser(Protocol):
    """An update rule for the weights: tensor code without questions to the host, so that a graph can capture it."""

    skipped: Tensor
    """Number of updates that were left out because their gradient was not finite."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self, factor: Tensor) -> Tensor:
        """Update with the learning rate times `factor`; return the norm of the gradient."""

    def state(self) -> dict[str, Tensor]:
        """Return everything the next update depends on, by name."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned."""


class Method(nn.Module):
    """Turns a batch into losses. What it remembers from iteration to iteration are buffers, which checkpoints hold."""

    title: ClassVar[str] = ""
    """One line that says what the method is and where it was published."""
    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    needs: ClassVar[Needs] = Needs()
    names: ClassVar[tuple[str, ...]] = ("total",)
    """Names of the losses in the order they are logged; the first one is minimised."""
    per_slot: ClassVar[tuple[str, ...]] = ()
    """Buffers with one row per crop of this process; all other buffers are alike in all processes."""
    takes_regions: ClassVar[bool] = False
    """Whether output channels may be nested regions instead of exclusive classes."""
    passes: ClassVar[tuple[int, int]] = (1, 0)
    """Crops that go through a network per labelled crop, with default settings: with gradients, and without."""
    smallest_batch: ClassVar[int] = 1
    """Number of labelled crops that it needs at least."""
    current_stage: int = 0
    """Stage that the run is in. Training sets it before an iteration, also in a run that goes on; see `stage`."""

    def __init__(self, settings: MethodSettings, task: Task) -> None:
        super().__init__()
        self.settings, self.task = settings, task

    @classmethod
    def check(cls, settings: MethodSettings, task: Task) -> None:
        """Raise `ValueError`, "section.field: reason", where settings and run do not fit together."""

    @property
    def labelled(self) -> int:
        """Number of labelled crops per iteration."""
        return self.task.batch

    @property
    def unlabelled(self) -> int:
        """Number of unlabelled crops per iteration."""
        return self.task.batch if self.needs.unlabelled else 0

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make what the method needs beside the network: a teacher from `model`, a second network with `build`.

        Called once, before the first iteration, on the device. Parameters that the method holds and that ask for
        gradients are trained together with those of the network.
        """

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters beside those of the network that the optimiser of the run trains: all by default."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def stage(self, iteration: int) -> int:
        """Return the stage that an iteration belongs to, counted from 0; a method without stages has one.

        What `losses` does may depend on `current_stage`, the largest of the stages so far: a run that is made longer
        does not go back to a stage that it has left. A captured iteration is dropped where a new stage begins.
        """
        return 0

    def begin_stage(self, model: SegmentationNetwork, stage: int) -> None:
        """Do what a new stage begins with, such as copying the network to its teacher. Stage 0 begins in `prepare`."""

    def own_optimiser(self, model: SegmentationNetwork) -> Optimiser | None:
        """Return the optimiser of this method, or None for AdamW with the settings of the run."""
        return None

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return a scalar for each of `names`. Called in training mode, perhaps while a graph is captured.

        Gradients and logged values are averaged over the processes that train together. Where that is not what one
        process with all crops would compute, as with a quotient of sums over the batch, the sums go through
        `fheat.system.processes.current().sum`.
        """
        raise NotImplementedError

    def after_update(self, model: SegmentationNetwork, iteration: Tensor) -> None:
        """Do what follows an update of the weights, such as moving a teacher; iterations count from 0."""
