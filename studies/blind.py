"""Gather blind test results into one stored result: `python studies/blind.py FOLDER`.

Somebody who did not choose the settings trained networks with the default ones, and tested them on scans that were not
at hand while the settings were chosen. FOLDER holds what `fheat evaluate --voxels --out` wrote for each of them. The
result keeps these files unchanged, with every scan, and adds the means, the mean over seeds, and the paper's numbers.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import tyro
from record import write_result
from tables import read_published, scores

from fheat.metrics.significance import compare
from fheat.metrics.table import Table

FILES = {
    "la4-s0-best-lcc": "la-4 seed 0",
    "la4-s1-best-lcc": "la-4 seed 1",
    "la4-s2-best-lcc": "la-4 seed 2",
    "la-4-zoo": "la-4 zoo",
    "la8-s0-best-lcc": "la-8 seed 0",
    "lafull-s0-best-lcc": "la supervised seed 0",
    "brats25-s0-best": "brats-25 seed 0",
    "brats25-s0-best-lcc": "brats-25 seed 0, largest component",
    "hippocampus-supervised-8": "hippocampus supervised, 8 labels",
    "hippocampus-cse-8": "hippocampus CSE, 8 labels",
    "hippocampus-supervised-160": "hippocampus supervised, 160 labels",
}
"""Name of every run by the file it came in."""
SEEDS = ("la-4 seed 0", "la-4 seed 1", "la-4 seed 2")
GATES = {
    "la-4 seed 1": {"dec1": [0.70, 0.884]},
    "la-4 seed 2": {"dec1": [0.37, 0.820]},
    "la-8 seed 0": {"dec1": [0.85, 0.897], "enc4": [0.32, 0.343]},
    "la supervised seed 0": {"enc1": [0.09, 0.374], "dec1": [0.10, 0.481]},
}
"""D and alpha of the gates that are open at the end, as the tester reported them; not reported for the other runs."""
PUBLISHED = {
    "la-4": ("table2", "LA, 4 labels"),
    "la-8 seed 0": ("table3", "LA, 8 labels"),
    "la supervised seed 0": ("table4", "LA, all labels"),
    "brats-25 seed 0": ("table3", "BraTS 2019, 25 labels"),
    "brats-25 seed 0, largest component": ("table3", "BraTS 2019, 25 labels"),
}
METRICS = ("dice", "jaccard", "hd95", "asd", "assd")
IN_PER_CENT = ("dice", "jaccard")

Evaluations = dict[str, dict[str, Any]]


def means(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the number of scans and the mean of every metric by class; overlap in per cent."""
    table = Table.from_json(json.dumps(evaluation))
    return {
        label: {
            "scans": summary.cases,
            **{name: (100 if name in IN_PER_CENT else 1) * summary.metrics[name].mean for name in METRICS},
        }
        for label, summary in table.summary().items()
    }


def gather(evaluations: Evaluations) -> dict[str, Any]:
    """Return the results: every file, and what is computed from them."""
    by_class = {name: means(content) for name, content in evaluations.items()}
    runs = {name: next(iter(rows.values())) for name, rows in by_class.items() if len(rows) == 1}
    la_4 = {metric: _over_seeds([runs[name][metric] for name in SEEDS]) for metric in METRICS}
    here = {"la-4": {metric: row["mean"] for metric, row in la_4.items()}, **runs}
    return {
        "la-4": la_4,
        "percent": {name: row["dice"] for name, row in runs.items()},
        "runs": runs,
        "gates_open": GATES,
        "beside_the_paper": {name: _beside(here[name], *where) for name, where in PUBLISHED.items()},
        "hippocampus": {
            "runs": {name: rows for name, rows in by_class.items() if len(rows) > 1},
            "cse_minus_supervised": _cse_minus_supervised(evaluations),
        },
        "evaluations": evaluations,
    }


def _over_seeds(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def _beside(here: dict[str, float], table: str, setting: str) -> dict[str, dict[str, float]]:
    printed = scores(read_published()[table], "FHEAT-Seg")[setting]
    return {
        metric: {"here": here[metric], "paper": value, "difference": here[metric] - value}
        for metric, value in printed.items()
    }


def _cse_minus_supervised(evaluations: Evaluations) -> dict[str, dict[str, float | None]]:
    """Compare the two runs with 8 labels scan by scan: difference in points of Dice, p of Wilcoxon's test with Holm."""
    supervised, cse = (
        Table.from_json(json.dumps(evaluations[f"hippocampus {method}, 8 labels"])) for method in ("supervised", "CSE")
    )
    return {
        test.label: {"points": None if test.difference is None else 100 * test.difference, "p_holm": test.p_holm}
        for test in compare(supervised, cse, "dice").tests
    }


def main(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Write benchmarks/results/blind.json.

    Args:
        folder: folder with the files that the tester sent.
    """
    results = gather({name: json.loads((folder / f"{file}.json").read_text()) for file, name in FILES.items()})
    for name, row in results["runs"].items():
        print(f"{name:36}", *(f"{metric} {row[metric]:6.2f}" for metric in METRICS))
    write_result(
        "blind",
        title="Dice and surface distances on test scans that nobody who chose the settings had, scan by scan",
        command="fheat evaluate PREDICTIONS LABELS --voxels --out FILE, then python studies/blind.py FOLDER",
        seed=[0, 1, 2],
        machine={"device": "cuda", "name": "NVIDIA H200", "threads": None, "fheat": "0.1.0"},
        note=(
            "LA and BraTS 2019: trained with the default settings of commit f596e84, 16,000 iterations, best network "
            "by validation, on the official training scans (the last 8 of LA's list or the official 25 of BraTS held "
            "out); tested on the official test scans (20 of LA, 59 of 60 of BraTS 2019: one file of the public copy is "
            "damaged, and 3 of its 250 training scans likewise). Largest component for LA, except zoo. Distances in "
            "voxels. "
            "Hippocampus (Decathlon Task04): trained on two CPU cores, patch 32x48x32, seed 0; 60 scans kept apart, "
            "distances in mm. The date is that of the gathering. No scan is in this repository."
        ),
        settings={"iterations": 16000, "hippocampus_iterations": {"8 labels": 600, "160 labels": 2000}},
        results=results,
    )


if __name__ == "__main__":
    tyro.cli(main)
