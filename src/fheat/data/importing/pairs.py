"""Which scans of a folder belong together with which labels, by the signs that their names give."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fheat.data.importing.files import Files, LeftOut, list_files
from fheat.data.importing.names import MODALITIES, Named, letters_of, number_of
from fheat.data.layouts.common import stem
from fheat.io.dicom_series import SeriesFacts
from fheat.system.errors import BadInput


@dataclass
class Pair:
    """A scan with its channels, its label if it has one, and what is unsure about it."""

    case: str
    images: tuple[Path, ...]
    label: Path | None = None
    split: str | None = None
    """Split that the folders state."""
    folders: tuple[str, ...] = ()
    """Folders that are part of its name."""
    channels: tuple[str, ...] = ()
    patient: str = ""
    """PatientID of a DICOM series, which is not shown."""
    unsure: str = ""


@dataclass
class Guess:
    """A guess from the names in a folder: pairs by name of the case, and the files that are not used."""

    pairs: list[Pair]
    left_out: list[LeftOut] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """Names of label values, as far as the files state them."""
    channels: tuple[str, ...] = ()
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Classes of several label values, as far as the files state them."""

    @property
    def unsure(self) -> list[Pair]:
        """The pairs that somebody should look at."""
        return [pair for pair in self.pairs if pair.unsure]


def guess(folder: Path, *, images: str | None = None, labels: str | None = None) -> Guess:
    """Return the pairs that the names in a folder suggest, or raise `BadInput` where there is no scan.

    Args:
        folder: its files and those in folders below; hidden ones and links to folders are passed over.
        images: pattern of the scans, see `fheat.data.importing.names.pattern_key`; what does not fit is no scan.
        labels: pattern of the labels. Where both patterns have stars, what the stars stand for names the case.
    """
    files = list_files(folder, images, labels)
    if not files.images:
        raise BadInput(
            folder, "holds no scan that could be told by its name", "give --images PATTERN, see docs/how-to/own-data.md"
        )
    cases = _cases(files)
    pairs = [_pair(folder, case, files) for case in cases]
    _give_labels(pairs, cases, files)
    kept = _of_one_kind(pairs, files)
    _name_apart(folder, kept)
    channels = Counter(pair.channels for pair in kept).most_common(1)[0][0] if kept else ()
    return Guess(sorted(kept, key=lambda pair: pair.case), files.left_out, files.segments, channels)


def _cases(files: Files) -> list[list[Named]]:
    """Return the scans grouped by case: several channels are one case, unless each of them has a label of its own."""
    labelled = {(label.folders, label.key.casefold()) for label in files.labels}
    groups: defaultdict[tuple[str | None, tuple[str, ...], str], list[Named]] = defaultdict(list)
    for image in files.images:
        folders = _channel_of(image)[0]
        groups[image.split, folders, (image.base if image.channel else image.key).casefold()].append(image)
    cases = []
    for (_, folders, _), group in groups.items():
        channels = [channel for image in group if (channel := _channel_of(image)[1]) is not None]
        own = len({image.key.casefold() for image in group if (folders, image.key.casefold()) in labelled})
        numbered = all(channel.isdecimal() for channel in channels)
        distinct = len(channels) == len(set(channels)) == len(group)
        if len(group) > 1 and distinct and own < 2 and (not numbered or "0000" in channels):
            cases.append(sorted(group, key=lambda image: str(_channel_of(image)[1])))
        else:
            cases += [[image] for image in group]
    return cases


def _channel_of(image: Named) -> tuple[tuple[str, ...], str | None]:
    """Return the folders of a scan and its channel, which may be the name of a folder: `t1/007.nii`, `t2/007.nii`."""
    if image.channel is None and image.folders and image.folders[-1].casefold() in MODALITIES:
        return image.folders[:-1], image.folders[-1].casefold()
    return image.folders, image.channel


def _pair(folder: Path, case: list[Named], files: Files) -> Pair:
    first, several = case[0], len(case) > 1
    folders = _channel_of(first)[0] if several else first.folders
    own = any(label.key == first.key for label in files.labels)
    key = first.base if several or (first.channel == "0000" and not own) else first.key
    channels = tuple(str(_channel_of(image)[1]) for image in case) if several else ()
    seen = files.series.get(first.path)
    if seen is not None and folders:
        key = folders[0]  # patient/study/series: the last names say little
    return Pair(
        key or "_".join(folders) or folder.name,
        tuple(image.path for image in case),
        split=first.split,
        folders=folders,
        channels=channels,
        patient="" if seen is None else seen.patient,
    )


def _give_labels(pairs: list[Pair], cases: list[list[Named]], files: Files) -> None:
    """Give every label to the scan that it fits best, by the surest sign that fits exactly one."""
    firsts = [case[0] for case in cases]
    signs = _signs(firsts, cases, files)
    waiting, given = list(files.labels), defaultdict[int, list[tuple[Named, str]]](list)
    for doubt, of_image, of_label in signs:
        fitting: defaultdict[object, set[int]] = defaultdict(set)
        for index, first in enumerate(firsts):
            if index not in given:
                for sign in of_image(index, first):
                    fitting[sign].add(index)
        for label in list(waiting):
            sign = of_label(label)
            found = [] if sign is None else [i for i in fitting[sign] if _same_split(pairs[i], label)]
            if len(found) == 1:
                given[found[0]].append((label, doubt))
                waiting.remove(label)
    for index, labels in given.items():
        pair = pairs[index]
        if len(labels) > 1:
            names = ", ".join(label.path.name for label, _ in labels[:3])
            more = ", ..." if len(labels) > 3 else ""
            files.left_out.append(LeftOut(pair.images[0], f"has {len(labels)} labels ({names}{more})"))
            pair.unsure = "several labels"
        else:
            label, doubt = labels[0]
            doubt = files.doubts.get(label.path, doubt)
            pair.label, pair.unsure = label.path, f"{doubt} {label.path.name}" if doubt else ""
    pairs[:] = [pair for pair in pairs if pair.unsure != "several labels"]
    files.left_out += [LeftOut(label.path, "is a label that fits no scan") for label in waiting]


_Sign = tuple[str, Callable[[int, Named], Iterable[object]], Callable[[Named], object | None]]


def _signs(firsts: Sequence[Named], cases: list[list[Named]], files: Files) -> list[_Sign]:
    """Return the signs by which a label fits a scan, the surest first, each with the doubt that it leaves."""

    def keys(index: int, first: Named) -> set[str]:
        return {first.base.casefold()} if len(cases[index]) > 1 else {first.key.casefold(), first.base.casefold()}

    alone = Counter(_channel_of(first)[0] for first in firsts)
    labels_there = Counter(label.folders for label in files.labels)
    series = {path: seen.uid for path, seen in files.series.items()}
    return [
        ("", lambda _, one: [series.get(one.path)], lambda label: files.drawn_on.get(label.path)),
        (
            "",
            lambda i, one: [(_channel_of(one)[0], key) for key in keys(i, one)],
            lambda label: (label.folders, label.key.casefold()),
        ),
        (
            "",
            lambda _, one: [place] if (place := _channel_of(one)[0]) and alone[place] == 1 else [],
            lambda label: label.folders if labels_there[label.folders] == 1 else None,
        ),
        ("", keys, lambda label: label.key.casefold() or None),
        (
            "",
            lambda _, one: [part.casefold() for part in one.folders],
            lambda label: label.key.casefold() or None,
        ),
        (
            "names differ:",
            lambda i, one: {letters_of(key) for key in keys(i, one)} - {""},
            lambda label: letters_of(label.key) or None,
        ),
        ("paired by the beginning of", lambda _, one: _beginnings(one.key), lambda label: label.key.casefold() or None),
        (
            "paired by the number of",
            lambda i, one: [number] if (number := number_of(one.base if len(cases[i]) > 1 else one.key)) else [],
            lambda label: number_of(label.key),
        ),
    ]


def _beginnings(key: str) -> list[str]:
    """Return a name cut at each of its gaps: `pat007` and `pat007_LGE` of `pat007_LGE_2`."""
    return [key[:end].casefold() for end in range(1, len(key)) if key[end] in "_-. "]


def _same_split(pair: Pair, label: Named) -> bool:
    return pair.split == label.split or pair.split is None or label.split is None


def _of_one_kind(pairs: list[Pair], files: Files) -> list[Pair]:
    """Leave out the scans that a run could not use beside the others: other channels, or another DICOM modality."""
    if not pairs:
        return pairs
    basis = [pair for pair in pairs if pair.label is not None] or pairs
    usual = Counter(pair.channels for pair in basis).most_common(1)[0][0]
    modality = Counter(_modality(pair, files.series) for pair in basis).most_common(1)[0][0]
    kept = []
    for pair in pairs:
        if pair.channels != usual:
            reason = f"has {_said(pair.channels)}, and most have {_said(usual)}"
        elif _modality(pair, files.series) != modality:
            reason = f"is of the modality {_modality(pair, files.series)}, and most are {modality}"
        else:
            kept.append(pair)
            continue
        files.left_out.append(LeftOut(pair.images[0], reason))
    return kept


def _modality(pair: Pair, series: Mapping[Path, SeriesFacts]) -> str:
    seen = series.get(pair.images[0])
    return "files" if seen is None else seen.modality


def _said(channels: tuple[str, ...]) -> str:
    return f"the channels {', '.join(channels)}" if channels else "one channel"


def _name_apart(folder: Path, pairs: list[Pair]) -> None:
    """Give scans of one name that of their folders, of their split, or of their whole path, until no two are alike."""
    ways: tuple[Callable[[Pair], str], ...] = (
        lambda pair: pair.case,
        lambda pair: "_".join(pair.folders) or pair.case,
        lambda pair: "_".join((pair.split or "", *pair.folders, pair.case)).strip("_"),
        lambda pair: stem(Path("_".join(pair.images[0].relative_to(folder).parts))),
    )
    for way in ways:
        alike = Counter(pair.case.casefold() for pair in pairs)
        for pair in pairs:
            pair.case = _clean(way(pair) if alike[pair.case.casefold()] > 1 else pair.case)


def _clean(name: str) -> str:
    text = "".join("_" if one in "/\\" or ord(one) < 32 else one for one in name).lstrip(".")
    return text[:200] or "scan"
