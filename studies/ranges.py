"""Count the scans that look unlike the training scans of a model: `python studies/ranges.py DATA`.

DATA holds the datasets la, brats and hippocampus. For each of them the ranges are those over its training scans, as
`fheat train` stores them with z-scored intensities, and the validation scans of all three are compared with them. Those
of the dataset itself should not be unusual, those of the others should. The result also says how often scans of the
dataset itself are unusual where only some of the training scans were seen, and how long it takes to measure a scan.
"""

import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from record import write_result

from fheat import Card, load
from fheat.data.appearance import LENGTH_FACTOR, SHARE_MARGIN, SPAN_MARGIN, Appearance, Looks, unusual_text
from fheat.data.layouts import open_dataset
from fheat.data.preprocessing import Preprocessing
from fheat.data.read import read_image

NAMES = ("la", "brats", "hippocampus")
FEW, DRAWS, SEED = (4, 16), 200, 0
PREPROCESSING = Preprocessing.model_validate({"orientation": "RAS", "intensity": {"kind": "zscore"}})


def measure(data: Path) -> tuple[list[Looks], dict[str, Looks], dict[str, float]]:
    """Return the looks of the training scans, those of the validation scans by name, and median milliseconds."""
    looks: dict[str, dict[str, Looks]] = {"train": {}, "validation": {}}
    reading, measuring = [], []
    for case in open_dataset(data).cases:
        begin = time.perf_counter()
        scan = PREPROCESSING.scan(read_image(case))
        scan.whole()
        read = time.perf_counter()
        looks[case.split][case.id] = Looks.of(scan)
        reading.append(read - begin)
        measuring.append(time.perf_counter() - read)
    times = {"reading": reading, "measuring": measuring}
    milliseconds = {name: round(1000 * statistics.median(each), 2) for name, each in times.items()}
    return list(looks["train"].values()), looks["validation"], milliseconds


def compared(known: Appearance, scans: Iterable[Looks]) -> dict[str, Any]:
    """Return how many scans are unusual, how many by their intensities alone, and what differs most in how many."""
    looks = list(scans)
    found = [unusual for one in looks if (unusual := known.unusual(one))]
    return {
        "scans": len(looks),
        "unusual": len(found),
        "by_intensity": sum(any("intensity" in one.quantity for one in unusual) for unusual in found),
        "differs_most": dict(Counter(unusual[0].quantity for unusual in found).most_common()),
    }


def false_share(training: Sequence[Looks], validation: Collection[Looks], count: int) -> float:
    """Return the mean share of validation scans that are unusual for ranges over `count` training scans at random."""
    rng, shares = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        known = Appearance.of(training[index] for index in rng.permutation(len(training))[:count])
        shares.append(sum(bool(known.unusual(one)) for one in validation) / len(validation))
    return round(statistics.mean(shares), 4)


def main(data: Annotated[Path, tyro.conf.Positional]) -> None:
    """Measure all scans and write the result.

    Args:
        data: folder with the datasets la, brats and hippocampus.
    """
    training, validation, milliseconds = zip(*(measure(data / name) for name in NAMES), strict=True)
    ranges = [Appearance.of(scans) for scans in training]
    brain, looks = next(iter(validation[NAMES.index("brats")].items()))
    card = load("la-4").card
    assert isinstance(card, Card)
    results = {
        "ranges_of": {
            name: {
                "training_scans": known.scans,
                "compared": {
                    other: compared(known, scans.values()) for other, scans in zip(NAMES, validation, strict=True)
                },
                "false_share_after": {str(count): false_share(own, held_out.values(), count) for count in FEW},
            }
            for name, known, own, held_out in zip(NAMES, ranges, training, validation, strict=True)
        },
        "la_4_has_the_ranges_of_la": card.appearance == ranges[NAMES.index("la")],
        "la_4_on_a_brain": unusual_text(brain, card.appearance.unusual(looks)),
        "milliseconds": dict(zip(NAMES, milliseconds, strict=True)),
    }
    path = write_result(
        "ranges-cpu",
        title="Validation scans of three datasets that look unlike the training scans of each",
        command="python studies/ranges.py DATA",
        seed=SEED,
        settings={
            "length_factor": LENGTH_FACTOR,
            "share_margin": SHARE_MARGIN,
            "span_margin": SPAN_MARGIN,
            "few": list(FEW),
            "draws": DRAWS,
        },
        results=results,
        note="Quantities and margins were chosen with the training and validation scans of these datasets in view. All "
        "margins that were tried gave the same numbers of unusual validation scans; they were compared by how often "
        "training scans that had been left out were unusual.",
    )
    for name, found in results["ranges_of"].items():
        print(name, {other: f"{row['unusual']} of {row['scans']}" for other, row in found["compared"].items()})
    print(f"wrote {path}")


if __name__ == "__main__":
    tyro.cli(main)
