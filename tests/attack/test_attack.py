"""Hostile files of every kind in small numbers, everything that ever went wrong, and the stored campaign."""

import json
from pathlib import Path

import pytest
from results import read_result

from tests.attack.kinds import Kind
from tests.attack.mutators import NAMES, kinds
from tests.attack.worker import GOOD, recipe_of, run_case

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning:tests.attack")

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
QUICK, WHOLE = 100, 1000
SLOW_TO_READ = {"dicom", "h5", "sweep"}
"""Kinds of which a hundred cases take more than a second."""
FEWER = 250
"""Number of cases of those; the stored campaign has thousands of each kind."""


def failures(kind: Kind, count: int, folder: Path) -> list[str]:
    """Return what went wrong in the first cases of seed 1, with the recipes."""
    wrong = []
    for index in range(count):
        recipe = recipe_of(kind, 1, index)
        place = folder / str(index)
        place.mkdir()
        outcome, details = run_case(kind, kind.make(recipe, place), place)
        if outcome not in GOOD:
            wrong.append(f"{outcome}: {details}: {json.dumps(recipe)}")
    return wrong


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SLOW_TO_READ])
def test_a_hundred_hostile_files_of_each_kind_that_is_read_at_once(name, tmp_path):
    assert failures(kinds([name])[0], QUICK, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_hostile_files_of_each_kind(name, tmp_path):
    assert failures(kinds([name])[0], FEWER if name in SLOW_TO_READ else WHOLE, tmp_path) == []


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_went_wrong_does_not_again(path, tmp_path):
    wrong = []
    for number, recipe in enumerate(json.loads(path.read_text())):
        kind = kinds([recipe["kind"]])[0]
        place = tmp_path / str(number)
        place.mkdir()
        outcome, details = run_case(kind, kind.make(recipe, place), place)
        if outcome not in GOOD:
            wrong.append(f"{outcome}: {details}: {json.dumps(recipe)}")
    assert wrong == []


def test_the_oracles_tell_healthy_from_contradicting():
    """Every kind draws healthy files and broken ones, or the attack would show nothing."""
    for kind in kinds(["nifti", "nifti2", "nifti-gz", "nrrd", "dicom"]):
        verdicts = [kind.make(recipe_of(kind, 2, index), Path()).verdict for index in range(200)]
        assert sum(not verdict.reason for verdict in verdicts) > 20, kind.name
        assert sum(bool(verdict.reason) and not verdict.optional for verdict in verdicts) > 15, kind.name


def test_the_stored_campaign_found_nothing():
    results = read_result("attack-cpu").results
    assert results["failures"] == 0
    assert results["cases"] >= 200_000
    assert set(results["kinds"]) == set(NAMES)
    assert results["peak_bytes"] < 2**30
    for name, row in results["kinds"].items():
        assert sum(row["outcomes"].values()) == row["cases"] >= 200, name
        assert sum(row["outcomes"][good] for good in GOOD) == row["cases"], name
