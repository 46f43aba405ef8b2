"""Facts that the words in the path of a scan state: scan or label, which case, which channel, which split.

masks/pat007_LGE_seg.nii.gz      a label of the case pat007_LGE
HGG/BraTS19_1/BraTS19_1_t1ce.nii.gz     the channel t1ce of the case BraTS19_1 in the folder HGG/BraTS19_1
imagesTs/liver_3_0001.nii.gz     the second channel of the test case liver_3
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from fheat.data.layouts.common import stem

LABEL_WORDS: Final = frozenset((
    "seg", "segs", "segmentation", "segmentations", "mask", "masks", "label", "labels", "gt", "gts", "groundtruth",
    "truth", "annotation", "annotations", "annot", "manual", "dseg", "roi", "rois",
))  # fmt: skip
IMAGE_WORDS: Final = frozenset((
    "image", "images", "img", "imgs", "scan", "scans", "volume", "volumes", "vol", "vols", "orig", "raw",
))  # fmt: skip
MODALITIES: Final = frozenset((
    "t1", "t1w", "t1n", "t1c", "t1ce", "t1gd", "t1post", "t2", "t2w", "t2f", "flair", "pd", "pdw", "dwi", "adc", "swi",
    "dce", "pet", "ct", "cta", "mr", "mri", "lge", "cine",
))  # fmt: skip
_SPLITS: Final = {
    **dict.fromkeys(("tr", "train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("ts", "test", "testing"), "test"),
    **dict.fromkeys(("un", "unlabelled", "unlabeled"), "unlabelled"),
}
"""Words of folders, and the split that they state; unlabelled scans are in the split train."""
_FILLERS: Final = frozenset(("set", "data", "cases", "derivatives"))
"""Words of folders that say nothing more beside the others."""
_GAP: Final = r"[_\-. ]"
_BIDS: Final = re.compile(r"(?:_(?:label|desc|space|res)-[A-Za-z0-9]+)+_(?:mask|dseg)$")


@dataclass(frozen=True)
class Named:
    """A file, or the folder of a DICOM series, with what its path says."""

    path: Path
    is_label: bool
    folders: tuple[str, ...]
    """Folders between the imported one and the file that are part of the name of the case."""
    key: str
    """Name of the case without folders; empty where the folders alone name it."""
    split: str | None = None
    """Split that a folder states; `unlabelled` stands for scans of the split train that have no label."""
    base: str = ""
    """The key without its last word, if that names a modality; else the key."""
    channel: str | None = None
    """The modality, or the number of a channel such as 0001."""


def named(path: Path, relative: PurePosixPath, *, is_label: bool | None = None, key: str | None = None) -> Named:
    """Return what a path says.

    Args:
        path: the file or the folder of a series.
        relative: the same from the imported folder on.
        is_label: whether it is a label, where that is known already.
        key: name of the case, where that is known already.
    """
    folders, split, role = [], None, None
    for folder in relative.parts[:-1]:
        words = _words(folder)
        stated = [_SPLITS[word] for word in words if word in _SPLITS]
        rest = [word for word in words if word not in _SPLITS]
        kind = "label" if rest and rest[-1] in LABEL_WORDS else "image" if rest and rest[-1] in IMAGE_WORDS else None
        plain = all(word in LABEL_WORDS | IMAGE_WORDS | _FILLERS for word in rest)
        role = kind or role
        if stated and plain:
            split = stated[-1]
        if not (words and plain and (stated or kind or set(rest) <= _FILLERS)):
            folders.append(folder)
    name = stem(Path(relative.name))
    bare, marked = _without_label_words(name)
    labelled = (role == "label" or (marked and role != "image")) if is_label is None else is_label
    if key is not None:
        return Named(path, labelled, tuple(folders), key, split, key)
    if labelled:
        return Named(path, True, tuple(folders), bare, split, bare)
    bare = _without_image_words(name)
    base, channel = _without_modality(bare)
    return Named(path, False, tuple(folders), bare, split, base, channel)


def number_of(key: str) -> str | None:
    """Return the last number in a name without its leading zeros, or None."""
    numbers = re.findall(r"\d+", key)
    return numbers[-1].lstrip("0") or "0" if numbers else None


def letters_of(key: str) -> str:
    """Return a name without the signs between its words and without capitals."""
    return re.sub(r"[\W_]+", "", key).casefold()


def patient_of(case: str) -> str:
    """Return the part of a case name that stands for the patient: `pat007` of `pat007_ED`; else the whole name."""
    found = re.match(r"(?i)(?:sub|subject|pat|patient)[-_]?\d+(?![0-9A-Za-z])", case)
    return found[0].casefold() if found else case


def pattern_key(pattern: str, relative: PurePosixPath) -> str | None:
    """Return what the stars of a pattern stand for in a path, joined by `_`, or None if the path does not fit.

    `*` is any text without a slash, `**` any text, `?` one character. A pattern without a slash is that of a file name.
    """
    text = relative.as_posix() if "/" in pattern else relative.name
    pieces = re.split(r"(\*\*/?|\*|\?)", pattern)
    signs = {"**/": "(?:(.*)/)?", "**": "(.*)", "*": "([^/]*)", "?": "[^/]"}
    found = re.fullmatch("".join(signs.get(piece, re.escape(piece)) for piece in pieces), text)
    return None if found is None else "_".join(part.replace("/", "_") for part in found.groups() if part)


def _words(folder: str) -> list[str]:
    """Return the words of a folder name: `labelsTr` has labels and tr, `train_masks` has train and masks."""
    return [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", folder)]


def _without_label_words(name: str) -> tuple[str, bool]:
    """Return a name without the words that make it a label, and whether there were any."""
    if found := _BIDS.search(name):
        return name[: found.start()], True
    words = "|".join(sorted(LABEL_WORDS, key=len, reverse=True))
    if re.fullmatch(f"(?i)(?:{words})", name):
        return "", True
    if found := re.fullmatch(f"(?i)(.+?){_GAP}(?:ground{_GAP})?(?:{words})", name):
        return found[1], True
    if found := re.fullmatch(f"(?i)(?:{words})(?:{_GAP}(.+)|(\\d+))", name):
        return found[1] or found[2], True
    return name, False


def _without_image_words(name: str) -> str:
    words = "|".join(sorted(IMAGE_WORDS, key=len, reverse=True))
    if re.fullmatch(f"(?i)(?:{words})", name):
        return ""
    if found := re.fullmatch(f"(?i)(.+?){_GAP}(?:{words})", name):
        return found[1]
    if found := re.fullmatch(f"(?i)(?:{words})(?:{_GAP}(.+)|(\\d+))", name):
        return found[1] or found[2]
    return name


def _without_modality(name: str) -> tuple[str, str | None]:
    """Return the name without a modality or the number of a channel at its end, and that."""
    if found := re.fullmatch(r"(.+)_(\d{4})", name):
        return found[1], found[2]
    words = "|".join(sorted(MODALITIES, key=len, reverse=True))
    if found := re.fullmatch(f"(?i)(?:(.+?){_GAP})?({words})", name):
        return found[1] or "", found[2].casefold()
    return name, None
