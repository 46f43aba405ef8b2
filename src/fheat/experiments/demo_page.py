"""The opening of the demo's report: the result in numbers and pictures, the packaged model's mask, and the facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fheat.data.classes import millilitres
from fheat.figures.page import PageSection, figure, paragraph, planes, table
from fheat.figures.preview import contour_pngs
from fheat.report.write import Opening
from fheat.studies.validation import ComparedScan

METHODS = {"cse": "CSE", "supervised": "supervised-only"}
"""Names of the two methods in words."""


@dataclass(frozen=True)
class FirstMask:
    """The mask of the packaged model: its Dice, its picture (PNG), and the seconds after which it was there."""

    dice: float
    picture: bytes
    seconds: float


@dataclass(frozen=True)
class Tested:
    """One held-out scan: Dice and volumes in millilitres by class, of prediction and reference."""

    case: str
    dice: Mapping[str, float]
    predicted: Mapping[str, float]
    reference: Mapping[str, float]

    @classmethod
    def of(cls, scan: ComparedScan, classes: Mapping[str, Sequence[int]]) -> "Tested":
        """Return what is kept of a scan that was segmented and compared."""
        predicted, reference = millilitres(scan.predicted, classes), millilitres(scan.reference, classes)
        return cls(scan.case, scan.dice, predicted, reference)

    @property
    def mean(self) -> float:
        """Mean Dice of the classes."""
        return fmean(self.dice.values())

    @staticmethod
    def middle(scans: Sequence["Tested"]) -> "Tested":
        """Return the scan of median Dice, the lower one of two."""
        return sorted(scans, key=lambda one: one.mean)[(len(scans) - 1) // 2]


def shown_cases(scans: Sequence[Tested]) -> dict[str, str]:
    """Return the scans that the page shows, in words and by name: that of median Dice and the one with the lowest."""
    lowest = min(scans, key=lambda one: one.mean)
    return {"the median of the held-out scans": Tested.middle(scans).case, "the lowest": lowest.case}


def opening(
    out: Path,
    tested: Mapping[str, Sequence[Tested]],
    shown: Mapping[str, ComparedScan],
    first: FirstMask | None,
    facts: Mapping[str, str],
) -> Opening:
    """Return what stands before the allocation: result, scan by scan; the packaged model; machine, time and counts.

    `shown` has the scans of `shown_cases`, segmented, by their names.
    """
    dice = {method: fmean(one.mean for one in scans) for method, scans in tested.items()}
    margin = dice["cse"] - dice["supervised"]
    count = len(tested["cse"])
    outcome = (
        f"Dice on {count} scans that no training has seen: CSE {dice['cse']:.4f}, supervised-only "
        f"{dice['supervised']:.4f}, margin {margin:+.4f}."
    )
    sections = [_result(tested["cse"], shown), _scan_by_scan(tested)]
    if first is not None:
        sections.append(_packaged(first, out))
    sections.append(PageSection("What was done", table(("", ""), list(facts.items()), long=True)))
    return Opening("The demo: few labels and many scans", outcome, sections)


def _result(scans: Sequence[Tested], shown: Mapping[str, ComparedScan]) -> PageSection:
    """Return pictures of the scan of median Dice and of the one with the lowest."""
    numbers = {one.case: _numbers(one) for one in scans}
    words = (
        "CSE trains with the labels and with the scans that have none, supervised-only with the labels alone; network, "
        "labels, iterations, learning rate and seed are the same. Dice is 1 where mask and reference agree in every "
        "voxel, 0 where they share none. The pictures are of the best network of CSE."
    )
    figures = ""
    for which, case in shown_cases(scans).items():
        scan = shown[case]
        pictures = planes(contour_pngs(scan.image, scan.predicted, scan.reference))
        figures += figure(pictures, f"{case}, {which}. Prediction in orange, reference in blue. {numbers[case]}") + "\n"
    return PageSection("Result", paragraph(words) + figures.rstrip("\n"))


def _numbers(scan: Tested) -> str:
    """Return Dice and volumes of every class of a scan in words."""
    return " ".join(
        f"{name}: Dice {dice:.4f}, {scan.predicted[name]:.1f} ml, reference {scan.reference[name]:.1f} ml."
        for name, dice in scan.dice.items()
    )


def _scan_by_scan(tested: Mapping[str, Sequence[Tested]]) -> PageSection:
    head = ["scan", *(f"Dice, {METHODS[method]}" for method in tested)]
    names = list(tested["cse"][0].dice)
    for name in names:
        head += [f"{name}, CSE, ml", f"{name}, reference, ml"]
    rows = []
    for scans in zip(*tested.values(), strict=True):
        volumes = [f"{held[name]:.1f}" for name in names for held in (scans[0].predicted, scans[0].reference)]
        rows.append((scans[0].case, *(f"{one.mean:.4f}" for one in scans), *volumes))
    words = f"Dice is the mean of {len(names)} classes. " if len(names) > 1 else ""
    return PageSection("Scan by scan", paragraph(f"{words}Volumes are in millilitres.") + table(head, rows))


def _packaged(first: FirstMask, out: Path) -> PageSection:
    caption = (
        f"A synthetic scan, segmented by the packaged model phantom {first.seconds:.0f} s after the start, before "
        f"anything was trained: Dice {first.dice:.4f}. The reference is dashed. The file is {out / 'first.png'}."
    )
    picture = planes([("three planes of the scan with the contours of mask and reference", first.picture)], "first")
    return PageSection("The packaged model", figure(picture, caption))
