"""What a training method is: it says what it needs and turns a batch into losses."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from fheat.methods.teacher import MeanTeacher
from fheat.networks.base import SegmentationNetwork


class Batch(NamedTuple):
    """Crops drawn for one step, already on the device.

    images (L, C, X, Y, Z), labels (L, X, Y, Z): the labelled scans. weak, strong (U, C, X, Y, Z): two views of the
    unlabelled ones, with the same crop; U is 0 for a method that has no use for them.
    """

    images: Tensor
    labels: Tensor
    weak: Tensor
    strong: Tensor


class Method(nn.Module):
    """A step object. What it remembers from step to step are buffers, and so part of every checkpoint."""

    names: ClassVar[tuple[str, ...]]
    """Of the losses, in the order they are logged; the first is minimised."""
    needs_teacher: ClassVar[bool] = False
    """Whether it wants `teacher`: made from the network before the first step, moved after each update."""
    teacher: MeanTeacher
    labelled: int
    """Labelled scans per step."""
    unlabelled: int
    """Unlabelled scans per step."""
    per_slot: ClassVar[tuple[str, ...]] = ()
    """Buffers with one row per scan of this process; the others are alike in all processes."""

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return a scalar for each of `names`. Called in training mode, perhaps while a graph is captured.

        Gradients and logged values are averaged over a group of processes. Where that is not what one process with all
        scans would compute, as with a quotient of sums over the batch, the sums go through `Group.sum`.
        """
        raise NotImplementedError
