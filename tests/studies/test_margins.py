"""Margins over the strongest rival: the stored tests are those of the stored scores, by scipy's exact test."""

import pytest
from results import read_result
from scipy.stats import wilcoxon


@pytest.mark.parametrize("iterations", ["16000", "4000"])
@pytest.mark.parametrize(("place", "score"), [(0, "dice"), (1, "jaccard")])
def test_the_stored_margin_is_that_of_the_stored_scores(iterations, place, score):
    rows = read_result("reproduced-cuda").results[iterations]
    of_scans = []
    for row in ("la-4/fheat-seg", "la-4/light-unetr"):
        seeds = [seed["cases"]["left_atrium"] for seed in rows[row]["seeds"].values()]
        of_scans.append([sum(one[scan][place] for one in seeds) / len(seeds) for scan in sorted(seeds[0])])
    stored = read_result("margins-la-cpu").results[f"{iterations} {score}"]
    gains = [ours - rival for ours, rival in zip(*of_scans, strict=True)]
    assert stored["p"] == pytest.approx(wilcoxon(gains, method="exact").pvalue)
    assert stored["mean_gain"] == pytest.approx(100 * sum(gains) / len(gains), abs=6e-4)
    assert (stored["scans"], stored["better_in"]) == (8, sum(gain > 0 for gain in gains))
