"""Is FHEAT-Seg ahead of its strongest rival scan by scan? `python studies/margins.py` tests stored scores.

The paper calls its gains in Dice and Jaccard over the strongest baseline, Light-UNETR trained by CSE, significant by a
paired Wilcoxon test (claim C63). Here both networks were trained on LA with 4 labels; the pairs are the eight
validation scans of `reproduced-cuda`. The scores of a scan are averaged over the seeds of its network. The test is
two-sided and exact, and p is corrected by Holm for the two scores and the two lengths of training.
"""

import statistics
from typing import Any

from record import read_result, write_result

from fheat.metrics.statistics import TEST, holm, signed_rank

SCORES = ("dice", "jaccard")
"""The first columns of a row of cases."""
OURS, RIVAL, LABEL = "la-4/fheat-seg", "la-4/light-unetr", "left_atrium"


def main() -> None:
    stored = read_result("reproduced-cuda").results
    tests: dict[str, dict[str, Any]] = {}
    for iterations in ("16000", "4000"):
        ours, rival = (by_scan(stored[iterations][row]) for row in (OURS, RIVAL))
        for place, name in enumerate(SCORES):
            gains = [ours[scan][place] - rival[scan][place] for scan in sorted(ours.keys() & rival.keys())]
            tests[f"{iterations} {name}"] = {
                "seeds": {row: sorted(stored[iterations][row]["seeds"]) for row in (OURS, RIVAL)},
                "scans": len(gains),
                "better_in": sum(gain > 0 for gain in gains),
                "mean_gain": round(100 * statistics.fmean(gains), 3),
                "p": signed_rank(gains),
                "smallest_p": 2.0 ** (1 - len(gains)),
            }
    for test, corrected in zip(tests.values(), holm([test["p"] for test in tests.values()]), strict=True):
        test["p_holm"] = corrected
    for name, test in tests.items():
        print(
            f"{name}: {test['mean_gain']:+.2f} points, better in {test['better_in']} of {test['scans']} scans, "
            f"p = {test['p']:.3f}, {test['p_holm']:.3f} after Holm"
        )
    write_result(
        "margins-la-cpu",
        title="Is FHEAT-Seg ahead of Light-UNETR scan by scan, on LA with 4 labels by CSE",
        command="python studies/margins.py",
        seed=0,
        note=f"mean_gain in points, means over the seeds of each network; p: {TEST}.",
        results=tests,
    )


def by_scan(row: dict[str, Any]) -> dict[str, list[float]]:
    """Return the scores of every scan, averaged over the seeds of a row."""
    cases = [seed["cases"][LABEL] for seed in row["seeds"].values()]
    return {
        scan: [statistics.fmean(column) for column in zip(*(one[scan] for one in cases), strict=True)]
        for scan in cases[0]
    }


if __name__ == "__main__":
    main()
