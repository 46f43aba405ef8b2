"""An exported file beside the network it was made of, on the same windows."""

from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

import torch
from torch import Tensor, nn

from fheat.inference.compilers import Forward
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io import read_volume
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, counted_steps, silent

LARGEST_DIFFERENCE = 1e-4
"""Largest accepted difference of a logit, relative to the largest logit of the network itself."""


@dataclass(frozen=True)
class Difference:
    """How far logits lie from those of the network."""

    largest: float
    """Largest absolute difference of a logit over the largest absolute logit of the network; 0 where all are equal,
    infinite where one is not a number."""
    other_class: int
    """Number of voxels that get another class, or lie in another region."""
    voxels: int
    windows: int

    @property
    def accepted(self) -> bool:
        """Whether the file may be used."""
        return self.largest <= LARGEST_DIFFERENCE


class Comparison:
    """Runs network and exported file on each batch, (N, C, X, Y, Z), keeps count, and returns the network's logits."""

    def __init__(self, network: nn.Module, exported: Forward, *, regions: bool) -> None:
        self._network, self._exported, self._regions = network, exported, regions
        self._apart = self._scale = 0.0
        self._other = self._voxels = self._windows = 0

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Compare on one batch."""
        expected: Tensor = self._network(x)
        found = self._exported(x)
        if found.shape != expected.shape:
            raise ValueError(f"gives {tuple(found.shape)} where the network gives {tuple(expected.shape)}")
        apart = float((found - expected).abs().max())
        self._apart = max(self._apart, apart if apart == apart else inf)
        self._scale = max(self._scale, float(expected.abs().max()))
        differs = self._classes(found) != self._classes(expected)
        self._other += int(differs.any(dim=1).sum())
        self._voxels += x[:, 0].numel()
        self._windows += len(x)
        return expected

    def _classes(self, logits: Tensor) -> Tensor:
        return logits > 0 if self._regions else logits.argmax(dim=1, keepdim=True)

    def result(self) -> Difference:
        """Return what was counted so far."""
        largest = self._apart / self._scale if self._scale else self._apart
        return Difference(largest, self._other, self._voxels, self._windows)


def compare_on_noise(
    predictor: Predictor, exported: Forward, step: int | None, progress: Progress = silent
) -> Difference:
    """Compare on two windows of noise together, on one alone and, where other sizes are taken, on one a step longer."""
    comparison = Comparison(predictor.network, exported, regions=bool(predictor.card.regions))
    noise = torch.Generator().manual_seed(0)
    assert predictor.spec is not None
    channels, size = predictor.spec.in_channels, predictor.windows.size
    shapes: list[tuple[int, ...]] = [(2, channels, *size), (1, channels, *size)]
    if step is not None:
        shapes.append((1, channels, *(length + step for length in size)))
    for shape in counted_steps(shapes, progress):
        comparison(torch.randn(shape, generator=noise))
    return comparison.result()


def check_scan(predictor: Predictor, path: Path) -> None:
    """Raise `BadInput` for a scan that the network cannot segment."""
    volume = read_volume(path)
    predictor.check_plausible(volume, path)
    try:
        predictor.scan(volume)
    except ValueError as error:
        raise BadInput(path, str(error), "give a scan that fheat predict takes") from None


def compare_on_scans(
    predictor: Predictor, exported: Forward, scans: list[Path], progress: Progress = silent
) -> Difference:
    """Compare on the windows that lie side by side in each scan, prepared as for prediction."""
    comparison = Comparison(predictor.network, exported, regions=bool(predictor.card.regions))
    size = predictor.windows.size
    for path in counted_steps(scans, progress):
        scan = predictor.scan(read_volume(path))
        sliding = SlidingWindow(comparison, Windows(size, size), activation="none", batch=2)
        planes = partial(scan.planes, sliding.axis(scan.shape))
        for _ in sliding.stream(planes, scan.shape, scan.channels, scan.source_shape):
            pass
    return comparison.result()
