"""The splits stored here are the published ones, to the byte."""

import hashlib
import json
from importlib.resources import files

import pytest

from fheat.data.recipes import RECIPES
from fheat.data.recipes.split import split_of

STORED = files("fheat.data.recipes") / "splits"
# MD5 of the published lists with LF line ends, as computed from the repositories' own files.
PUBLISHED = {
    ("la", "train"): "ded9b3bf69cd44ddeda212e30a9f5b00",
    ("la", "test"): "c8b450d0ab549f4c1e8bcecec45f0209",
    ("pancreas-b", "train"): "9c0d0d723f9290e3fb2ce8cc89689f55",
    ("pancreas-b", "test"): "1a30621facd70bb1af1ac173b0e23b07",
    ("brats2019", "train"): "e7646d07c8729e5ac2fd7d5246e64ccb",
    ("brats2019", "validation"): "d6704e4a06035e65726e05f91858ecc6",
    ("brats2019", "test"): "2508210cf92644b309c4c99301d3e957",
}
SIZES = {"la": (80, 7, 20), "pancreas-a": (62, 5, 18), "pancreas-b": (62, 5, 20), "brats2019": (250, 25, 60)}


def stored(name):
    return json.loads((STORED / f"{name}.json").read_text())


@pytest.mark.parametrize(("name", "part"), PUBLISHED)
def test_lists_have_the_published_checksum(name, part):
    facts = stored(name)
    lines = "".join(facts["list_line"].format(id=case) + "\n" for case in facts[part])
    assert hashlib.md5(lines.encode()).hexdigest() == PUBLISHED[name, part] == facts["md5"][part]


@pytest.mark.parametrize("name", SIZES)
def test_official_splits(name):
    split = split_of(name, [])
    assert (len(split.order), len(split.validation), len(split.test)) == SIZES[name]
    assert split.official
    assert not set(split.test) & set(split.order)
    assert not set(split.test) & set(split.validation)
    assert len(set(split.ids)) == len(split.ids) == {"la": 100, "pancreas-a": 80, "pancreas-b": 82}.get(name, 335)
    assert "project" in split.validation_origin or split.validation_origin == "official"
    for count in split.labelled:
        assert not set(split.order[:count]) & set(split.validation)


def test_named_places_in_the_lists():
    la = split_of("la", [])
    assert la.order[:4] == (
        "06SR5RBREL16DQ6M8LWS",
        "0RZDK210BSMWAA6467LU",
        "1D7CUD1955YZPGK8XHJX",
        "1GU15S0GJ6PFNARO469W",
    )
    assert la.validation[0] == "Q7J0WYM695R9MA285ZW0"
    assert la.validation == la.order[-7:]
    assert list(la.order) == sorted(la.order)
    a = split_of("pancreas-a", [])
    assert a.order[:12] == tuple(f"{number:04d}" for number in range(1, 13))
    assert a.test == tuple(f"{number:04d}" for number in (*range(64, 70), *range(71, 83)))
    assert not {"0025", "0070"} & set(a.ids)
    b = split_of("pancreas-b", [])
    assert b.order[:6] == ("0057", "0018", "0062", "0031", "0020", "0017")
    assert split_of("brats2019", []).order[24] == "BraTS19_TCIA01_131_1"


@pytest.mark.parametrize("name", ["msd-task01", "abdomenct1k", "hnc"])
def test_the_rule_places_each_case_by_its_own_name(name):
    ids = [f"case{number}" for number in range(5000)]
    split = split_of(name, ids)
    assert not split.official
    assert "choice of this project" in split.origin
    assert len(split.test) / 5000 == pytest.approx(0.2, abs=0.02)
    assert len(split.validation) / 5000 == pytest.approx(0.08, abs=0.012)
    assert sorted((*split.order, *split.test)) == sorted(ids)
    assert set(split.validation) < set(split.order)
    some = split_of(name, ids[1000:1100])
    assert set(some.test) == set(split.test) & set(ids[1000:1100])
    assert set(some.validation) == set(split.validation) & set(ids[1000:1100])


def test_every_recipe_has_a_split_under_its_name():
    assert {file.name for file in STORED.iterdir()} == {f"{name}.json" for name in RECIPES}
    for name in RECIPES:
        assert stored(name)["name"] == name
        assert stored(name)["source"]


def test_what_is_missing_does_not_move_the_subsets():
    split = split_of("la", [])
    there = [name for name in split.ids if name not in {split.order[2], split.order[-1], split.test[0]}]
    written = split.to_json(there, ["extra"])
    assert written["labelled_4"] == [split.order[0], split.order[1], split.order[3]]
    assert len(written["unlabelled_4"]) == 80 - 4 - 7
    assert len(written["unlabelled_8"]) == 80 - 8 - 7
    assert len(written["order"]) == 78
    assert len(written["validation"]) == 6
    assert len(written["test"]) == 19
    assert written["unlabelled"] == ["extra"]
