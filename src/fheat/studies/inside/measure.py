"""Run trained networks over scans and measure what their blocks add and where they attend.

Windows have the network's patch and half of it as stride; the same pass gives both. Blocks see every window once, so a
voxel in several windows counts several times. Attention, on the grid of its block, is brought to the window's voxels
(trilinear, cell centres in place), averaged over the windows that see a voxel, and compared with the label on the grid
the network works on, where a mask that must be resampled is cut at one half.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.data.case import Case
from fheat.data.preprocessing import Intensity, PreparedScan
from fheat.data.read import read_image, read_label
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io.volume import Volume
from fheat.networks.base import SegmentationNetwork
from fheat.networks.registry import spec_of
from fheat.studies.inside.attention import SCANS, Plane, concentration, plane_of
from fheat.studies.inside.record import Attention, AttentionCase, ModelAnalysis, Residual, ResidualCase
from fheat.studies.inside.residual import Spectrum, bottleneck_blocks, mean_spectrum, recorded_residuals
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.training.runs import Saved

Upsampling = Literal["trilinear", "nearest"]


@dataclass(frozen=True)
class Questions:
    """What to measure."""

    residual: bool = True
    attention: bool = True
    blocks: tuple[str, ...] = ()
    """Module paths of the blocks whose residuals are taken; those of the bottom of the network if not given."""
    upsampling: Upsampling = "trilinear"


def analyse(
    saved: Saved,
    cases: Sequence[Case],
    questions: Questions,
    *,
    device: str | None = None,
    keep: Callable[[Plane], None] | None = None,
    progress: Progress = silent,
) -> ModelAnalysis:
    """Run one network over labelled scans; `keep` is called with a plane of the attention of the first of them.

    Raises `ValueError` for a network that has no such blocks or no attention, and `BadInput` for a scan that cannot be
    used.
    """
    blocks = check_questions(saved, questions)
    predictor = Predictor(saved.model, windows=half_stride(saved), device=device, runtime="torch", precision="float32")
    gathered = _Gathered(blocks)
    for done, case in enumerate(cases, start=1):
        _run(predictor, case, questions, gathered, keep if done <= SCANS else None)
        progress(done, len(cases))
    spacing, windows = predictor.preprocessing.spacing, predictor.windows
    return ModelAnalysis(
        name=saved.name,
        network=spec_of(saved.model).name,
        part=saved.part,
        iteration=iteration if isinstance(iteration := saved.card.training.get("iteration"), int) else None,
        windows={"size": windows.size, "stride": windows.stride},
        spacing=spacing,
        residual=gathered.residual() if questions.residual else None,
        attention=Attention(upsampling=questions.upsampling, cases=tuple(gathered.attention))
        if questions.attention
        else None,
    )


def check_questions(saved: Saved, questions: Questions) -> tuple[str, ...]:
    """Return the paths of the blocks that are listened to, or raise the `ValueError` of a network without them."""
    if not isinstance(saved.model, SegmentationNetwork):
        raise ValueError(f"{type(saved.model).__name__} has no forward_features: it cannot be asked for attention")
    blocks = questions.blocks or tuple(bottleneck_blocks(saved.model)) if questions.residual else ()
    with recorded_residuals(saved.model, blocks):
        return blocks


def half_stride(saved: Saved) -> Windows:
    """Return windows of the network's patch, half of it apart."""
    x, y, z = spec_of(saved.model).patch_size
    return Windows((x, y, z), (max(x // 2, 1), max(y // 2, 1), max(z // 2, 1)))


def attention_map(predictor: Predictor, scan: PreparedScan, upsampling: Upsampling = "trilinear") -> Tensor:
    """Return the attention on the grid the network works on, (X, Y, Z), the average over the predictor's windows."""
    network, shape = predictor.network, scan.shape
    assert isinstance(network, SegmentationNetwork)

    def attend(x: Tensor) -> Tensor:
        seen = network.forward_features(x).attention.float()
        if upsampling == "nearest":
            return F.interpolate(seen, size=x.shape[2:], mode="nearest-exact")
        return F.interpolate(seen, size=x.shape[2:], mode="trilinear", align_corners=False)

    batch = 16 if predictor.device.type == "cuda" else 2
    sliding = SlidingWindow(attend, predictor.windows, activation="none", batch=batch)
    axis = sliding.axis(shape)

    def planes(start: int, stop: int) -> Tensor:
        return scan.planes(axis, start, stop).to(predictor.device)

    parts = [part.cpu().clone() for _, part in sliding.stream(planes, shape, scan.channels)]
    return torch.cat(parts, dim=axis + 1)[0]


def target_mask(predictor: Predictor, label: Volume) -> Tensor:
    """Return where a label holds any class of the network, (X, Y, Z) on the grid the network works on."""
    values = sorted({value for values in predictor.classes.values() for value in values})
    mask = np.isin(label.data, values).astype(np.float32)
    preprocessing = predictor.preprocessing.model_copy(update={"intensity": Intensity()})
    scan = preprocessing.scan(Volume(mask, label.affine))
    return scan.planes(0, 0, scan.shape[0])[0] > 0.5


@dataclass
class _Gathered:
    """What the scans so far gave."""

    blocks: tuple[str, ...]
    cases: list[ResidualCase] = field(default_factory=list)
    attention: list[AttentionCase] = field(default_factory=list)
    means: list[Spectrum] = field(default_factory=list)
    spectra: dict[str, list[Spectrum]] = field(default_factory=dict)

    def add(self, case: Case, windows: int, found: dict[str, list[Spectrum]]) -> None:
        together = mean_spectrum([one for spectra in found.values() for one in spectra])
        share, total = together.share_above, together.total
        if share is None:
            raise ValueError(f"the blocks {', '.join(self.blocks)} add nothing to {case.id}: there is no spectrum")
        self.means.append(together)
        self.cases.append(
            ResidualCase(
                case=case.id,
                windows=windows,
                energy=tuple(energy / total for energy in together.energy),
                share_above=share,
                share_constant=together.constant / total,
                share_above_without_constant=together.share_above_without_constant,
            )
        )
        for block, spectra in found.items():
            self.spectra.setdefault(block, []).extend(spectra)

    def residual(self) -> Residual:
        first = self.means[0]
        return Residual(
            blocks=self.blocks,
            grid=first.grid,
            radius=first.radius,
            modes=first.modes,
            cut=first.cut,
            modes_above=first.modes_above,
            cases=tuple(self.cases),
            by_block={block: mean_spectrum(spectra).share_above for block, spectra in self.spectra.items()},
        )


def _run(
    predictor: Predictor,
    case: Case,
    questions: Questions,
    gathered: _Gathered,
    keep: Callable[[Plane], None] | None,
) -> None:
    image = read_image(case)
    label = read_label(case, image) if questions.attention else None
    if questions.attention and label is None:
        raise BadInput(case.images[0], "has no label to compare attention with", "choose another --split")
    try:
        scan = predictor.scan(image)
    except ValueError as error:
        raise BadInput(case.images[0], str(error), "give the kind of scan the network was trained on") from None
    with recorded_residuals(predictor.network, gathered.blocks) as found:
        attention = attention_map(predictor, scan, questions.upsampling)
    if questions.residual:
        gathered.add(case, predictor.sliding(None).count(scan.shape), found)
    if label is not None:
        target = target_mask(predictor, label)
        inside = concentration(attention, target)
        if inside.over_chance is None:
            raise BadInput(case.images[0], "has an empty label: attention has nothing to lie in", "leave it out")
        gathered.attention.append(
            AttentionCase(case=case.id, share=inside.share, chance=inside.chance, over_chance=inside.over_chance)
        )
        if keep is not None:
            keep(plane_of(scan.planes(0, 0, scan.shape[0])[0], attention, target))
