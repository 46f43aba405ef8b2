"""Attention of a trained network on a scan: its map, the share of it inside the target, and the plane that is drawn.

Attention, on the grid of its block, is brought to the voxels of a window (trilinear, cell centres in place), averaged
over the windows that see a voxel, and compared with the label on the grid that the network works on, where a mask that
must be resampled is cut at one half.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.data.preprocessing import Intensity, PreparedScan
from fheat.figures.preview import middle_planes
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import SlidingWindow
from fheat.io.volume import Volume
from fheat.networks.base import SegmentationNetwork
from fheat.studies.inside.record import Plane

Upsampling = Literal["trilinear", "nearest"]


@dataclass(frozen=True)
class Concentration:
    """How much of the attention of a scan lies inside the target."""

    share: float
    """Share of the attention that lies inside the target."""
    chance: float
    """Share of the voxels that lie inside the target, which is the share that even attention has."""

    @property
    def over_chance(self) -> float | None:
        """Share divided by chance: 1 for even attention, None where there is no target."""
        return self.share / self.chance if self.chance else None


def concentration(attention: Tensor, target: Tensor) -> Concentration:
    """Return the share of the attention a that lies inside the target, and that of even attention.

        share = sum_{v in target} a_v / sum_v a_v,    chance = |target| / |all voxels|

    Both tensors have the same shape, which may be any. Attention must not be negative, nor zero everywhere; the target
    is boolean. Identity case: even attention has share = chance, whatever its scale.
    """
    if attention.shape != target.shape:
        raise ValueError(f"attention {tuple(attention.shape)} and target {tuple(target.shape)} differ in shape")
    if target.dtype != torch.bool:
        raise TypeError(f"target has dtype {target.dtype}: give a mask, such as label > 0")
    values = attention.detach().double()
    if not torch.isfinite(values).all() or bool((values < 0).any()) or not bool((values > 0).any()):
        raise ValueError("attention must be finite, nowhere negative and somewhere positive")
    return Concentration(float(values[target].sum() / values.sum()), float(target.double().mean()))


def attention_map(predictor: Predictor, scan: PreparedScan, upsampling: Upsampling = "trilinear") -> Tensor:
    """Return the attention on the grid that the network works on, (X, Y, Z), averaged over the predictor's windows."""
    network, shape = predictor.network, scan.shape
    assert isinstance(network, SegmentationNetwork)

    def attend(x: Tensor) -> Tensor:
        cells = network.forward_features(x).attention.float()
        if upsampling == "nearest":
            return F.interpolate(cells, size=x.shape[2:], mode="nearest-exact")
        return F.interpolate(cells, size=x.shape[2:], mode="trilinear", align_corners=False)

    batch = 16 if predictor.device.type == "cuda" else 2
    sliding = SlidingWindow(attend, predictor.windows, activation="none", batch=batch)
    axis = sliding.axis(shape)

    def planes(start: int, stop: int) -> Tensor:
        return scan.planes(axis, start, stop, predictor.device)

    parts = [part.cpu().clone() for _, part in sliding.stream(planes, shape, scan.channels, scan.source_shape)]
    return torch.cat(parts, dim=axis + 1)[0]


def target_mask(predictor: Predictor, label: Volume) -> Tensor:
    """Return the mask of all classes of the network in a label, (X, Y, Z), on the grid that the network works on."""
    values = sorted({value for values in predictor.classes.values() for value in values})
    mask = np.isin(label.data, values).astype(np.float32)
    preprocessing = predictor.preprocessing.model_copy(update={"intensity": Intensity()})
    scan = preprocessing.scan(Volume(mask, label.affine))
    return scan.planes(0, 0, scan.shape[0])[0] > 0.5


def plane_of(image: Tensor, attention: Tensor, target: Tensor) -> Plane:
    """Return the plane to draw, cut out of volumes (X, Y, Z) on the grid that the network works on."""
    mask = target.numpy()
    place = middle_planes(mask.astype(np.uint8))[2]
    voxels = image.numpy()
    low, high = np.percentile(voxels[::4, ::4, ::4], (1, 99))
    grey = np.clip((voxels[..., place] - low) / max(high - low, 1e-12), 0, 1)
    return Plane((255 * grey).astype(np.uint8), attention[..., place].numpy().astype(np.float32), mask[..., place])
