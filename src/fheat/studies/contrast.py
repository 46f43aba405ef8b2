"""Contrast of a dataset: the image gradient along the boundaries of its regions, case by case, and a test.

    g(R) = mean of |grad I| over the band of R,    band = voxels of R with a face neighbour outside R

The study is whole in this file: gradients, comparison, the record `contrast.json`, table and figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from pydantic import model_validator as check

from fheat.data.case import Case, Dataset
from fheat.data.read import read_image, read_label
from fheat.data.recipes import RECIPES
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import colours, plot
from fheat.metrics.masks import Mask, bounding_box, surface
from fheat.metrics.statistics import TEST, holm, mean, signed_rank
from fheat.studies.stored import Stored, read_object, validated
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.system.text import aligned, printable

NAME = "contrast.json"
BETWEEN = ("tumour_core", "enhancing_tumour")
"""The two regions that are compared by default."""
REMEDY = "give a file written with --figures"
Regions = Mapping[str, tuple[int, ...]]
"""Name of each region and its label values."""
Gradients = Mapping[str, float | None]
"""Mean gradient along the boundary of each region; None for a region that the case does not have."""
_NUMBER_FORMATS = (".4g", ".4g", ".3f", ".2g", ".2g")
"""Formats of the numbers in a row of the table: two means, their ratio, p and corrected p."""


def gradient_magnitude(image: NDArray[Any], spacing: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Return |grad I| of every voxel; the gradient along an axis of one voxel is 0."""
    steps = [1.0] * image.ndim if spacing is None else [float(step) for step in spacing]
    if len(steps) != image.ndim:
        raise ValueError(f"spacing has {len(steps)} numbers for {image.ndim} axes")
    voxels = image.astype(np.float64)
    squares = np.zeros(image.shape)
    for axis, step in enumerate(steps):
        if image.shape[axis] > 1:
            squares += np.gradient(voxels, step, axis=axis) ** 2
    return np.sqrt(squares)


def boundary_gradient(image: NDArray[Any], region: Mask, spacing: Sequence[float] | None = None) -> float | None:
    """Return the mean gradient magnitude over the region's band, or None where the region is empty."""
    if image.shape != region.shape:
        raise ValueError(f"image {image.shape} and region {region.shape} differ in shape")
    if not region.any():
        return None
    # With one voxel more on every side the differences in the band are those of the whole image.
    box = tuple(slice(max(part.start - 1, 0), part.stop + 1) for part in bounding_box(region))
    return float(gradient_magnitude(image[box], spacing)[surface(region[box])].mean())


@dataclass(frozen=True)
class Contrast:
    """Two regions compared in one modality, over the cases that have both."""

    modality: str
    first: str
    """Name of the first region."""
    second: str
    """Name of the second region."""
    n: int
    """Number of cases that have both regions."""
    first_mean: float | None
    """Mean gradient of the first region over these cases."""
    second_mean: float | None
    """Mean gradient of the second region over these cases."""
    ratio: float | None
    """Mean of the second region divided by that of the first."""
    p: float | None
    """p of the paired Wilcoxon signed-rank test; see `fheat.metrics.statistics.TEST`."""
    p_holm: float | None
    """p corrected for the number of modalities."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def contrasts(values: Mapping[str, Sequence[Gradients]], first: str, second: str) -> list[Contrast]:
    """Return two regions compared, modality by modality; `values` has the gradients of all cases of each modality."""
    pairs = {modality: _both(cases, first, second) for modality, cases in values.items()}
    tests = {modality: signed_rank([b - a for a, b in both]) for modality, both in pairs.items()}
    corrected = iter(holm([p for p in tests.values() if p is not None]))
    rows = []
    for modality, p in tests.items():
        count = len(pairs[modality])
        if p is None:
            rows.append(Contrast(modality, first, second, 0, None, None, None, None, None))
            continue
        low, high = (mean(column) for column in zip(*pairs[modality], strict=True))
        ratio = high / low if low else None
        rows.append(Contrast(modality, first, second, count, low, high, ratio, p, next(corrected)))
    return rows


def _both(cases: Sequence[Gradients], first: str, second: str) -> list[tuple[float, float]]:
    """Return the gradients of both regions, for the cases that have both."""
    pairs = []
    for case in cases:
        a, b = case[first], case[second]
        if a is not None and b is not None:
            pairs.append((a, b))
    return pairs


class ContrastRecord(Stored):
    """The content of `contrast.json`: the gradient of every case, modality and region."""

    format: Literal[1] = 1
    fheat: str
    dataset: str
    regions: dict[str, tuple[int, ...]]
    between: tuple[str, str]
    unit: Literal["intensity per mm"] = "intensity per mm"
    modalities: Annotated[tuple[str, ...], Field(min_length=1)]
    cases: Annotated[dict[str, dict[str, dict[str, NonNegativeFloat | None]]], Field(min_length=1)]
    """Gradient by case, modality and region; None where the case does not have the region."""

    @check(mode="after")
    def _is_complete(self) -> Self:
        if not set(self.between) <= self.regions.keys():
            raise ValueError("between must name two of the regions")
        for case in self.cases.values():
            if case.keys() != set(self.modalities) or any(
                gradients.keys() != self.regions.keys() for gradients in case.values()
            ):
                raise ValueError("cases must have every modality and every region")
        return self

    @property
    def tests(self) -> list[Contrast]:
        """The comparison of the two regions, modality by modality."""
        values = {name: [case[name] for case in self.cases.values()] for name in self.modalities}
        return contrasts(values, *self.between)

    def content(self) -> dict[str, Any]:
        """Return the record as plain data, the tests included."""
        return {**self.model_dump(mode="json"), "test": TEST, "tests": [test.to_json() for test in self.tests]}


def read_contrast(path: Path) -> ContrastRecord:
    """Return the record in a `contrast.json`, or raise `BadInput`."""
    content = read_object(path, "contrast", REMEDY)
    for name in ("test", "tests"):
        content.pop(name, None)  # they are computed from the other fields
    return validated(ContrastRecord, content, path, REMEDY)


def regions_of(dataset: Dataset) -> dict[str, tuple[int, ...]]:
    """Return the regions of the dataset where they are nested, else those of MSD Task01."""
    own = {name: values for name, values in dataset.labels.items() if name != "background"}
    if any(len(values) > 1 for values in own.values()):
        return own
    declared = RECIPES["msd-task01"].labels
    return {name: tuple(values) for name, values in declared.items() if isinstance(values, list)}


def measure_contrast(
    dataset: Dataset,
    regions: Regions,
    between: tuple[str, str],
    *,
    fheat: str,
    cases: int | None = None,
    progress: Progress = silent,
) -> ContrastRecord:
    """Return the mean gradient along every boundary, in every modality of every labelled case.

    Intensities are taken as stored; gradients are per millimetre. At most `cases` cases are read, all if it is None.
    Raises `BadInput` where no case has both regions.
    """
    chosen = [case for case in dataset.cases if case.label is not None][:cases]
    if not chosen:
        raise BadInput(dataset.root, "has no labelled case", "give a dataset with labels")
    gradients: dict[str, dict[str, dict[str, float | None]]] = {}
    for done, case in enumerate(chosen, start=1):
        gradients[case.id] = case_gradients(case, regions, dataset.channels)
        if gradients[case.id].keys() != gradients[chosen[0].id].keys():
            raise BadInput(case.images[0], "has other channels than the cases before", "run fheat data check")
        progress(done, len(chosen))
    in_each_modality = [by_region for case in gradients.values() for by_region in case.values()]
    if not any(all(by_region[name] is not None for name in between) for by_region in in_each_modality):
        named = ", ".join(f"{name}={','.join(map(str, regions[name]))}" for name in between)
        reason = f"no case has both {between[0]} and {between[1]} ({named})"
        raise BadInput(dataset.root, reason, "name the regions with --regions")
    return ContrastRecord(
        fheat=fheat,
        dataset=dataset.name,
        regions=dict(regions),
        between=between,
        modalities=tuple(gradients[chosen[0].id]),
        cases=gradients,
    )


def case_gradients(case: Case, regions: Regions, names: Sequence[str] = ()) -> dict[str, dict[str, float | None]]:
    """Return the mean gradient along the boundary of each region, for each modality of one case."""
    image = read_image(case)
    label = read_label(case, image)
    if label is None:
        raise BadInput(case.images[0], "has no label", "give labelled cases")
    masks = {name: np.isin(label.data, values) for name, values in regions.items()}
    voxels = image.data if image.data.ndim == 4 else image.data[..., None]
    if not np.isfinite(voxels).all():
        raise BadInput(case.images[0], "holds NaN or infinity", "replace them first")
    count = voxels.shape[3]
    channels = tuple(names) if len(set(names)) == count else tuple(f"channel {index}" for index in range(count))
    return {
        channel: {name: boundary_gradient(voxels[..., index], mask, image.spacing) for name, mask in masks.items()}
        for index, channel in enumerate(channels)
    }


def contrast_table(record: ContrastRecord) -> str:
    """Return the comparison as a table of text."""
    first, second = map(printable, record.between)
    lines = [["modality", "n", first, second, "ratio", "p", "p Holm"]]
    for test in record.tests:
        numbers = (test.first_mean, test.second_mean, test.ratio, test.p, test.p_holm)
        shown = [
            "-" if value is None else format(value, form) for value, form in zip(numbers, _NUMBER_FORMATS, strict=True)
        ]
        lines.append([printable(test.modality), str(test.n), *shown])
    return aligned(lines)


def contrast_picture(record: ContrastRecord) -> Picture:
    """Return the figure of the gradients: for each modality one box over the cases for every region."""
    first, second = record.between
    words = [
        f"{test.modality} {test.first_mean:.4g} and {test.second_mean:.4g}"
        + ("" if test.ratio is None else f", ratio {test.ratio:.3f}")
        + f", p = {test.p:.2g} over {test.n} cases"
        for test in record.tests
        if test.first_mean is not None and test.second_mean is not None and test.p is not None
    ]
    caption = (
        f"Mean gradient magnitude along one-voxel boundary bands, {record.unit}. {first} and {second}, means over "
        f"cases: {'; '.join(words)}. p is of paired Wilcoxon signed-rank tests, not corrected."
    )
    with plot("contrast", caption) as drawing:
        width = 0.8 / len(record.regions)
        for order, (colour, region) in enumerate(zip(colours(len(record.regions)), record.regions, strict=True)):
            columns = [
                [value for case in record.cases.values() if (value := case[name][region]) is not None]
                for name in record.modalities
            ]
            places = [index + width * (order - (len(record.regions) - 1) / 2) for index in range(len(columns))]
            boxes = drawing.axes.boxplot(
                columns, positions=places, widths=0.8 * width, showfliers=False, manage_ticks=False, patch_artist=True
            )
            for part in ("boxes", "whiskers", "caps", "medians"):
                for line in boxes[part]:
                    line.set_color(colour)
            for box in boxes["boxes"]:
                box.set_alpha(0.35)
            drawing.axes.plot([], [], color=colour, label=region)
        drawing.axes.set_xticks(range(len(record.modalities)), list(record.modalities))
        drawing.axes.set(ylabel=f"gradient, {record.unit}", ylim=(0, None))
        drawing.axes.legend()
    return svg_picture("contrast", drawing.svg, caption)
