"""Lists of entries `{"image": ..., "label": ...}`, which MSD and MONAI have in common."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fheat.data.case import Case
from fheat.data.layouts.common import Description, inside, stem


class Entry(Description):
    """One case; the fold of a cross-validation is not read."""

    image: str | tuple[str, ...] = Field(min_length=1)
    label: str | None = None
    unlabelled: bool = False

    @property
    def images(self) -> tuple[str, ...]:
        """One path per channel, or the one file."""
        return (self.image,) if isinstance(self.image, str) else self.image


def cases_of(
    entries: Sequence[Entry | str], *, split: str, source: Path, field: str, unlabelled: bool = False, absolute: bool
) -> tuple[Case, ...]:
    """Return the cases of one list, named by their image files. An entry that is only a path has no label.

    `unlabelled` declares it for every entry that has no label. `absolute` allows paths outside the dataset.
    """
    cases = []
    for number, entry in enumerate(entries):
        entry = Entry(image=entry) if isinstance(entry, str) else entry
        where = f"{field}.{number}"
        images = tuple(
            inside(source.parent, text, source=source, field=f"{where}.image", absolute=absolute)
            for text in entry.images
        )
        label = None
        if entry.label is not None and not entry.unlabelled:
            label = inside(source.parent, entry.label, source=source, field=f"{where}.label", absolute=absolute)
        declared = entry.unlabelled or (unlabelled and label is None)
        cases.append(Case(_name(images), images, label=label, unlabelled=declared, split=split))
    return tuple(cases)


def with_distinct_names(root: Path, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Where two different images have one file name (`sub-1/t1.nii`, `sub-2/t1.nii`), name all cases by their paths."""
    if len({case.id for case in cases}) == len({case.images for case in cases}):
        return tuple(cases)
    return tuple(
        Case("_".join(_below(root, case.images[0])), case.images, case.label, case.unlabelled, case.split)
        for case in cases
    )


def _name(images: tuple[Path, ...]) -> str:
    name = stem(images[0])
    return name.removesuffix("_0000") if len(images) > 1 else name


def _below(root: Path, image: Path) -> tuple[str, ...]:
    folder = image.parent.relative_to(root) if image.is_relative_to(root) else image.parent.relative_to(image.anchor)
    return (*folder.parts, stem(image))
