"""Run trained networks over scans and measure what their bottom blocks add and where they attend.

Windows have the network's patch size and half of it as stride; one pass over them gives both results. The blocks see
every window once, so a voxel that lies in several windows counts several times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fheat import __version__
from fheat.data.case import Case
from fheat.data.read import read_image, read_label
from fheat.inference.predictor import Predictor
from fheat.inference.windows import Windows
from fheat.networks.base import SegmentationNetwork
from fheat.networks.registry import spec_of
from fheat.studies.inside.attention import Upsampling, attention_map, concentration, plane_of, target_mask
from fheat.studies.inside.record import (
    Analysis,
    Attention,
    AttentionCase,
    ModelAnalysis,
    Plane,
    Residual,
    ResidualCase,
)
from fheat.studies.inside.residual import Spectrum, bottleneck_blocks, mean_spectrum, recorded_residuals
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.training.runs import Saved
from fheat.training.scans import open_run_dataset
from fheat.training.settings import DataSettings

SCANS_WITH_MAPS = 5
"""Number of scans, the first ones, of which a plane of the attention is kept."""


@dataclass(frozen=True)
class AnalysisOptions:
    """Choice of the measurements."""

    residual: bool = True
    """Whether the residuals of blocks are measured."""
    attention: bool = True
    """Whether attention inside the target is measured."""
    blocks: tuple[str, ...] = ()
    """Module paths of the blocks whose residuals are measured; those at the bottom of the network if not given."""
    upsampling: Upsampling = "trilinear"
    """How attention is brought from the grid of its block to the voxels of a window."""


def analyse_run(saved: Saved, data: DataSettings, progress: Progress = silent) -> tuple[Analysis, list[Plane]]:
    """Return the analysis of a run's network on all its validation scans, and planes of attention of the first ones.

    Raises `BadInput` where the dataset cannot be read, and `ValueError` where it has no validation scans or the network
    has no such blocks or no attention.
    """
    dataset = open_run_dataset(data)
    cases = dataset.split("validation")
    if not cases:
        raise ValueError("the dataset has no validation scans")
    planes: list[Plane] = []
    result = analyse(saved, cases, AnalysisOptions(), keep=planes.append, progress=progress)
    return Analysis(fheat=__version__, dataset=dataset.name, split="validation", models=(result,)), planes


def analyse(
    saved: Saved,
    cases: Sequence[Case],
    options: AnalysisOptions,
    *,
    device: str | None = None,
    keep: Callable[[Plane], None] | None = None,
    progress: Progress = silent,
) -> ModelAnalysis:
    """Return the results of one network on labelled scans.

    Args:
        saved: the network.
        cases: the scans, with labels where attention is measured.
        options: what is measured.
        device: device to run on; a GPU where there is one if not given.
        keep: called with a plane of the attention for each of the first `SCANS_WITH_MAPS` scans.
        progress: called with the number of scans done and their total.

    Raises `ValueError` for a network without the blocks or without attention, and `BadInput` for a scan that cannot be
    used.
    """
    blocks = blocks_to_record(saved, options)
    predictor = Predictor(saved.model, windows=half_stride(saved), device=device, runtime="torch", precision="float32")
    results = _Results(blocks)
    for done, case in enumerate(cases, start=1):
        _add_scan(results, predictor, case, options, keep if done <= SCANS_WITH_MAPS else None)
        progress(done, len(cases))
    spacing, windows = predictor.preprocessing.spacing, predictor.windows
    return ModelAnalysis(
        name=saved.name,
        network=spec_of(saved.model).name,
        part=saved.part,
        iteration=iteration if isinstance(iteration := saved.card.training.get("iteration"), int) else None,
        windows={"size": windows.size, "stride": windows.stride},
        spacing=spacing,
        residual=results.residual() if options.residual else None,
        attention=Attention(upsampling=options.upsampling, cases=tuple(results.attention))
        if options.attention
        else None,
    )


def blocks_to_record(saved: Saved, options: AnalysisOptions) -> tuple[str, ...]:
    """Return the paths of the blocks whose residuals are measured, or raise `ValueError` where a network has none."""
    if not isinstance(saved.model, SegmentationNetwork):
        raise ValueError(f"{type(saved.model).__name__} has no forward_features: it cannot be asked for attention")
    blocks = options.blocks or tuple(bottleneck_blocks(saved.model)) if options.residual else ()
    with recorded_residuals(saved.model, blocks):  # raises where a path is wrong
        return blocks


def half_stride(saved: Saved) -> Windows:
    """Return windows of the network's patch size whose stride is half of it."""
    x, y, z = spec_of(saved.model).patch_size
    return Windows((x, y, z), (max(x // 2, 1), max(y // 2, 1), max(z // 2, 1)))


@dataclass
class _Results:
    """Results of the scans that were run so far."""

    blocks: tuple[str, ...]
    cases: list[ResidualCase] = field(default_factory=list)
    attention: list[AttentionCase] = field(default_factory=list)
    means: list[Spectrum] = field(default_factory=list)
    """Mean spectrum of each scan, over its blocks and windows."""
    spectra: dict[str, list[Spectrum]] = field(default_factory=dict)
    """Spectra of each block, over all scans and windows."""

    def add_residuals(self, case: Case, windows: int, recorded: dict[str, list[Spectrum]]) -> None:
        mean = mean_spectrum([spectrum for spectra in recorded.values() for spectrum in spectra])
        share, total = mean.share_above, mean.total
        if share is None:
            raise ValueError(f"the blocks {', '.join(self.blocks)} add nothing to {case.id}: there is no spectrum")
        self.means.append(mean)
        self.cases.append(
            ResidualCase(
                case=case.id,
                windows=windows,
                energy=tuple(energy / total for energy in mean.energy),
                share_above=share,
                share_constant=mean.constant / total,
                share_above_without_constant=mean.share_above_without_constant,
            )
        )
        for block, spectra in recorded.items():
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


def _add_scan(
    results: _Results,
    predictor: Predictor,
    case: Case,
    options: AnalysisOptions,
    keep: Callable[[Plane], None] | None,
) -> None:
    """Run the network over one scan and add what was measured to the results."""
    image = read_image(case)
    label = read_label(case, image) if options.attention else None
    if options.attention and label is None:
        raise BadInput(case.images[0], "has no label to compare attention with", "choose another --split")
    try:
        scan = predictor.scan(image)
    except ValueError as error:
        raise BadInput(case.images[0], str(error), "give the kind of scan the network was trained on") from None
    with recorded_residuals(predictor.network, results.blocks) as recorded:
        attention = attention_map(predictor, scan, options.upsampling)
    if options.residual:
        results.add_residuals(case, predictor.sliding(None).count(scan.shape), recorded)
    if label is not None:
        target = target_mask(predictor, label)
        inside = concentration(attention, target)
        if inside.over_chance is None:
            raise BadInput(case.images[0], "has an empty label: attention has nothing to lie in", "leave it out")
        results.attention.append(
            AttentionCase(case=case.id, share=inside.share, chance=inside.chance, over_chance=inside.over_chance)
        )
        if keep is not None:
            keep(plane_of(scan.planes(0, 0, scan.shape[0])[0], attention, target))
