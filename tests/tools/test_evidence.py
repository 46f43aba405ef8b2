"""Verdicts about the paper's claims: all are there, follow the schema, and break when a stored result changes."""

import math
import re

import evidence
import pytest
from pages import claims as claims_module
from pages.claims import CLAIMS, OPEN, Check, Claim, contradictions, filled, read_claims
from pages.common import stored_value
from pydantic import ValidationError
from results import ROOT

from fheat.cli.main import VERBS
from fheat.experiments.records import ITEMS, item

ALL = read_claims()
BY_ID = {claim.id: claim for claim in ALL}


def test_every_claim_is_there_once():
    assert sorted(claim.id for claim in ALL) == [f"C{number:02}" for number in range(1, 91)]


def test_verdicts_agree_with_the_stored_results_and_the_page_is_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evidence.py", "--check"])
    assert evidence.main() == 0, capsys.readouterr()


def test_every_check_can_fail():
    checks = sum(len(claim.checks) for claim in ALL)
    assert checks > 150
    assert len(contradictions(ALL, lambda path: math.nan)) == checks


def test_a_stored_result_that_changes_is_noticed():
    def other_dice(path):
        return -0.5 if path == "blind: beside_the_paper: la-4: dice: difference" else stored_value(path)

    (line,) = contradictions(ALL, other_dice)
    assert line.startswith("C54 is said to be 'holds with a difference', but blind: beside_the_paper")
    assert line.endswith("is not true of -0.5")


def test_a_result_that_is_gone_is_noticed():
    check = Check(value="sizes: networks: no_such_network: open", at_least=0)
    (line,) = contradictions([BY_ID["C23"].model_copy(update={"checks": (check,)})])
    assert "is not stored" in line


@pytest.mark.parametrize(
    ("check", "true", "false"),
    [
        ({"equals": 3}, [3, 3.0], [3.001, "3", [3], math.nan]),
        ({"equals": 3, "tolerance": 0.1}, [3.05, 2.95], [3.2, math.nan]),
        ({"equals": [1, 2]}, [[1, 2]], [[2, 1], 1]),
        ({"equals": False}, [False], [True]),
        ({"within": [1, 2]}, [1, 1.5, 2], [0.99, 2.01]),
        ({"at_most": 2}, [2, -1], [2.1]),
        ({"at_least": 2}, [2, 9], [1.9]),
    ],
)
def test_what_a_check_says(check, true, false):
    made = Check(value="x: y", **check)
    assert all(made.is_true_of(value) for value in true)
    assert not any(made.is_true_of(value) for value in false)


@pytest.mark.parametrize("said", [{}, {"equals": 1, "at_most": 2}, {"at_most": 2, "tolerance": 0.1}, {"above": 1}])
def test_a_check_says_one_thing(said):
    with pytest.raises(ValidationError):
        Check(value="x: y", **said)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "true"}, "verdict"),
        ({"checks": ()}, "stored numbers and checks"),
        ({"measured": "as printed"}, "stored numbers and checks"),
        ({"basis": None}, "what the verdict rests on"),
        ({"verdict": "not run yet"}, "rests on nothing yet"),
        ({"measured": "974.6 thousand, {sizes: networks: x: ,}"}, "not read from a stored result"),
        ({"id": "C1"}, "id"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_the_schema_refuses(change, says):
    content = BY_ID["C23"].model_dump(exclude_none=True, exclude={"checks"})
    content["checks"] = [check.model_dump(exclude_none=True, exclude_defaults=True) for check in BY_ID["C23"].checks]
    Claim.model_validate(content)
    with pytest.raises(ValidationError, match=says):
        Claim.model_validate(content | change)


def test_a_claim_that_is_there_twice_is_refused(monkeypatch, tmp_path):
    text = (CLAIMS / "01-idea.toml").read_text()
    for name in ("01-a", "02-b"):
        (tmp_path / f"{name}.toml").write_text(text)
    monkeypatch.setattr(claims_module, "CLAIMS", tmp_path)
    with pytest.raises(ValueError, match="C01"):
        read_claims()


def test_stored_values_stand_in_their_place():
    assert filled("{sizes: networks: fheat_seg: 112x112x80: parameters: ,} and no more") == "974,632 and no more"


@pytest.mark.parametrize("claim", [claim for claim in ALL if claim.command], ids=lambda claim: claim.id)
def test_commands_name_what_exists(claim):
    for script in re.findall(r"[\w/]+\.py", claim.command):
        assert (ROOT / script).is_file(), script
    for verb in re.findall(r"fheat (\w+)", claim.command):
        assert verb in VERBS
    assert set(re.findall(r"fheat reproduce (\w+)", claim.command)) <= set(ITEMS)


def test_open_verdicts_say_what_would_decide():
    assert [claim.id for claim in ALL if claim.verdict in OPEN and not claim.command] == ["C25"]


def test_published_scores_of_the_claims_are_those_of_the_printed_tables():
    def scores(text):
        return [float(number) for number in re.findall(r"\d+\.\d+", re.sub(r"\(SD [\d.]+\)", "", text))]

    def printed(table, setting, *systems):
        rows = [item(table).row(f"{setting}/{system}") for system in systems]
        return [value.mean for row in rows for value in row.published.values()]

    semi = {"C54": "la-4", "C55": "pancreas-6", "C56": "la-8", "C57": "pancreas-12", "C58": "brats-25"}
    for claim, setting in semi.items():
        table = "table2" if claim in ("C54", "C55") else "table3"
        assert scores(BY_ID[claim].published) == printed(table, setting, "fheat-seg")
    for claim, setting in (("C64", "la-all"), ("C65", "pancreas-all"), ("C66", "brats-all")):
        assert scores(BY_ID[claim].published) == printed("table4", setting, "fheat-seg", "fheat-seg-l")
