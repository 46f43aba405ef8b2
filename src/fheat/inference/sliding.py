"""Sliding-window inference that holds a slab of the volume, never all of it.

Windows are visited plane after plane along one axis. Their probabilities are summed in a buffer one window and one slab
deep; planes that no later window reaches are averaged, handed on and forgotten. Memory therefore follows the
cross-section of the volume, not its length, and the order of summation depends neither on the batch nor on the slab.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice
from typing import Final, Literal

import torch
from torch import Tensor

from fheat.data.planes import planes_at_once
from fheat.inference.windows import LARGEST_BATCH, Triple, Weights, Windows, window_weights
from fheat.system.pace import Pace
from fheat.system.progress import Progress
from fheat.system.threads import one_thread

Planes = Callable[[int, int], Tensor]
"""A function that returns planes `start` to `stop` of an image along the streamed axis, (C, X, Y, Z), that axis cut."""
Activation = Literal["softmax", "sigmoid", "difference", "none"]
_AXES = (2, 3, 4)
_FILLING: Final = 2.0**-20
"""Factor to the weight of windows that hardly count where there is another; a power of two, which rounds nothing."""
_EVERY_FLIP = tuple(chain.from_iterable(combinations(_AXES, count) for count in range(4)))


@dataclass(frozen=True)
class SlidingWindow:
    """Average a network's output over overlapping windows.

    Args:
        network: maps (B, C, *size) to (B, K, *size).
        windows: size and stride; an axis shorter than the window is padded with zeros on both sides.
        weights: `constant` counts all voxels of a window alike, `gaussian` those in its centre more.
        activation: turns logits into what is averaged. With `difference` the network returns l_1 - l_0 of two classes,
            (B, 1, *size), and the averages are those of both, as by `softmax`; `none` averages the output itself.
        batch: number of windows per forward pass.
        flips: average each window over its eight mirror images.
        groups: number of predictions that the network returns one behind the other along the channels; the first is the
            mean of the others.
        members: return the prediction of every member behind the mean, too: those of the groups, those of the flips,
            or each group on each flip.
        slab: number of planes collected beyond one window before finished ones are handed on; by default half a window,
            or all planes where that takes no more than a window.

    An identity network with activation `none` returns its input.
    """

    network: Callable[[Tensor], Tensor]
    windows: Windows
    weights: Weights = "constant"
    activation: Activation = "softmax"
    batch: int = 4
    flips: bool = False
    groups: int = 1
    members: bool = False
    slab: int | None = None
    each: Callable[[Iterable[Tensor]], Iterator[Tensor]] | None = None
    """A function in the place of `network` that maps windows (1, C, *size) one by one and in order, while later ones
    run. Flips go through `network`."""
    progress: Progress | None = None
    """A function called after each forward pass with the number of windows done and their total."""
    pace: Pace | None = None
    """Chooses the number of threads for batches that `network` maps on a CPU."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= LARGEST_BATCH:
            raise ValueError(f"batch={self.batch} is not a number of windows: use 1 to {LARGEST_BATCH:,}")
        if self.slab is not None and self.slab < 0:
            raise ValueError(f"slab={self.slab} is negative: use 0 or more planes")
        if self.activation == "difference" and (self.members or self.groups > 1):
            raise ValueError("activation='difference' has one channel: use softmax with members or groups")

    def __call__(self, image: Tensor) -> Tensor:
        """Map an image in memory, (C, X, Y, Z), to averages, (K, X, Y, Z)."""
        shape = _triple(image.shape[1:])
        axis = self.axis(shape)
        parts = [
            part.clone()
            for _, part in self.stream(lambda a, b: image.narrow(axis + 1, a, b - a), shape, image.shape[0])
        ]
        return torch.cat(parts, dim=axis + 1)

    def axis(self, shape: Triple) -> int:
        """Return the axis to stream along: where the volume is longest, counted in windows."""
        return max(range(3), key=lambda axis: shape[axis] / self.windows.size[axis])

    def depth(self, shape: Triple) -> int:
        """Return the number of planes that are held at a time."""
        axis = self.axis(shape)
        size = self.windows.size[axis]
        usual = size if shape[axis] <= 2 * size else size // 2
        return min(max(shape[axis], size), size + (usual if self.slab is None else self.slab))

    @property
    def member_count(self) -> int:
        """Number of predictions behind the mean: none unless `members` are asked for."""
        return max(self.groups - 1, 1) * (len(_EVERY_FLIP) if self.flips else 1) if self.members else 0

    def count(self, shape: Triple) -> int:
        """Return the number of windows that cover a volume."""
        return self.windows.count(shape)

    @torch.no_grad()
    def stream(
        self, planes: Planes, shape: Triple, channels: int, stored: Triple | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (first plane, averages of the next planes) until the volume is covered; each plane comes once.

        Where `planes` come from another grid, its shape, `stored`, tells how many of them are asked for at a time. The
        averages are (K, X, Y, Z) with the streamed axis cut. They may be a view of the buffer: use them before the next
        step.
        """
        size, axis = self.windows.size, self.axis(shape)
        padded = _triple([max(length, window) for length, window in zip(shape, size, strict=True)])
        before = [(long - short) // 2 for long, short in zip(padded, shape, strict=True)]
        inner = [slice(None), *(slice(lead, lead + length) for lead, length in zip(before, shape, strict=True))]
        slab = _Slab(axis, list(padded), self.depth(shape))
        total, at_once = self.windows.count(padded), planes_at_once(shape, axis, channels, stored)
        lead, end = before[axis], before[axis] + shape[axis]

        def finished(stop: int) -> Iterator[tuple[int, Tensor]]:
            first, last = max(slab.offset, lead), min(stop, end)
            if first < last:
                inner[axis + 1] = slice(first - slab.offset, last - slab.offset)
                averages = slab.averages(tuple(inner))
                yield first - lead, _both(averages) if self.activation == "difference" else averages

        fills = self.windows.filling(padded)
        waiting: list[tuple[Triple, float]] = []  # windows of the slab, in order, so that batches are full
        for first, corners in self.windows.planes(padded, axis):
            if first + size[axis] > slab.offset + slab.depth:
                self._visit(slab, waiting, total)
                waiting = []
                yield from finished(first)
                slab.advance(first)
            for begin in range(max(slab.loaded, lead), min(first + size[axis], end), at_once):
                stop = min(begin + at_once, first + size[axis], end)
                inner[axis + 1] = slice(begin - slab.offset, stop - slab.offset)
                slab.load(planes(begin - lead, stop - lead), tuple(inner), channels)
            slab.loaded = first + size[axis]
            for at in corners:
                corner = _triple([*at[:axis], first - slab.offset, *at[axis + 1 :]])
                waiting.append((corner, _FILLING if fills(at) else 1.0))
        self._visit(slab, waiting, total)
        yield from finished(padded[axis])

    def _visit(self, slab: "_Slab", windows: list[tuple[Triple, float]], total: int) -> None:
        """Add the windows at these corners of the slab, each with a factor to its weight."""
        size, weight = self.windows.size, self._weight.to(slab.image.device)
        todo = [(_box(corner, size), factor) for corner, factor in windows]
        together = nullcontext() if self.each is None or self.flips else one_thread()
        done = 0
        with together, closing(self._outputs(slab.image[:, *box] for box, _ in todo)) as outputs:
            for output in outputs:
                for average, (box, factor) in zip(output, todo[done : done + len(output)], strict=True):
                    scaled = weight if factor == 1 else factor * weight
                    plain = self.weights == "constant" and factor == 1
                    slab.add(box, average if plain else average * scaled, scaled)
                done += len(output)
                slab.visited += len(output)
                if self.progress is not None:
                    self.progress(slab.visited, total)
        if done != len(todo):
            raise ValueError(f"`each` returned {done} of {len(todo)} windows: it must return one for each")

    def _outputs(self, windows: Iterator[Tensor]) -> Generator[Tensor, None, None]:
        """Yield what is averaged of these windows, (C, *size), in order: one or a batch at a time, (B, K, *size)."""
        if self.each is not None and not self.flips:
            average = None
            for output in self.each(window[None] for window in windows):
                average = self._averaged(output, place=average)
                yield average
            return
        while group := list(islice(windows, self.batch)):
            yield self.forward(torch.stack(group))

    @cached_property
    def _weight(self) -> Tensor:
        return window_weights(self.windows.size, self.weights)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of windows, (B, C, *size), to what is averaged, (B, K, *size), J times K more with J members."""
        with nullcontext() if self.pace is None else self.pace.unit(len(x)):
            return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if not self.flips:
            return self._activated(x)
        total = self._activated(x).clone()  # a network may use the memory of its output again
        every = [total]
        for axes in _EVERY_FLIP[1:]:
            output = self._activated(x.flip(axes)).flip(axes)
            total = total + output
            if self.members:
                every.append(output)
        mean = total / len(_EVERY_FLIP)
        if not self.members:
            return mean
        classes = mean.shape[1] // self.groups
        return torch.cat([mean[:, :classes], *(one[:, classes:] if self.groups > 1 else one for one in every)], dim=1)

    def _activated(self, x: Tensor) -> Tensor:
        return self._averaged(self.network(x), len(x))

    def _averaged(self, y: Tensor, count: int = 1, place: Tensor | None = None) -> Tensor:
        """Return what is averaged of the output of the network for `count` windows.

        That may be written to `place`, the result of the call before: memory that is taken anew for every window costs
        more than what is computed in it.
        """
        if len(y) != count or tuple(y.shape[2:]) != self.windows.size:
            size = self.windows.size
            raise ValueError(f"the network maps {count} windows of {size} to {tuple(y.shape)}: expected the same grid")
        if self.activation == "difference" and y.shape[1] != 1:
            raise ValueError(f"activation='difference' takes one channel, not the {y.shape[1]} of this network")
        y = y.float()
        if self.activation == "none":
            return y
        if self.activation == "difference" and not torch.isfinite(y.sum()):
            return torch.full_like(y, torch.nan)  # as softmax makes of infinite logits
        if self.activation in ("sigmoid", "difference"):
            return torch.sigmoid(y, out=place)
        if self.groups == 1:
            return torch.softmax(y, dim=1, out=place)
        return torch.cat([logits.softmax(dim=1) for logits in y.chunk(self.groups, dim=1)], dim=1)


class _Slab:
    """The planes that are being worked on: input, sums of outputs and sums of weights.

    `offset` is the index of the first plane, `loaded` that of the first plane not read yet, `visited` the number of
    windows added.
    """

    image: Tensor
    sums: Tensor
    weights: Tensor

    def __init__(self, axis: int, shape: list[int], depth: int) -> None:
        self.axis, self.depth = axis, depth
        self.shape = [*shape[:axis], depth, *shape[axis + 1 :]]
        self.offset = self.loaded = self.visited = 0
        self._empty = True

    def load(self, planes: Tensor, place: tuple[slice, ...], channels: int) -> None:
        if not hasattr(self, "image"):
            self.image = planes.new_zeros((channels, *self.shape), dtype=torch.float32)
        self.image[place] = planes

    def add(self, box: tuple[slice, ...], values: Tensor, weight: Tensor) -> None:
        if self._empty:
            self.sums = values.new_zeros((values.shape[0], *self.shape))
            self.weights = values.new_zeros((1, *self.shape))
            self._empty = False
        self.sums[:, *box] += values
        self.weights[:, *box] += weight

    def averages(self, place: tuple[slice, ...]) -> Tensor:
        return self.sums[place].div_(self.weights[place])

    def advance(self, first: int) -> None:
        """Forget the planes before `first`."""
        gone, axis = first - self.offset, self.axis
        for buffer in (self.image, self.sums, self.weights):
            for channel in buffer:  # one at a time, as the copy passes through a second place
                channel.narrow(axis, 0, self.depth - gone).copy_(channel.narrow(axis, gone, self.depth - gone).clone())
                channel.narrow(axis, self.depth - gone, gone).zero_()
        self.offset = first


def _both(second: Tensor) -> Tensor:
    """Return the probabilities of two classes, (2, X, Y, Z), from those of the second, (1, X, Y, Z)."""
    both = second.new_empty(2, *second.shape[1:])
    torch.sub(1, second[0], out=both[0])
    both[1] = second[0]
    return both


def _box(corner: Triple, size: Triple) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(corner, size, strict=True))


def _triple(values: "torch.Size | list[int] | tuple[int, ...]") -> Triple:
    a, b, c = values
    return a, b, c
