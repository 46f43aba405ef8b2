"""Stored results: one schema, real commands, a user for each, and a list that is up to date."""

import json
import re
import sys

import index
import pytest
import store_result
from pydantic import ValidationError
from results import HEAD, RESULTS, ROOT, Result, read_result, result_names, result_text, write_result

from fheat.system.machine import machine


@pytest.mark.parametrize("name", result_names())
def test_every_result_follows_the_schema(name):
    result = read_result(name)
    assert result.name == name
    text = (RESULTS / f"{name}.json").read_text()
    content = json.loads(text)
    assert [*content] == [*HEAD, "settings", "results"]
    assert text == result_text(content)


@pytest.mark.parametrize("name", result_names())
def test_every_command_names_scripts_that_exist(name):
    command = read_result(name).command
    for script in re.findall(r"[\w/]+\.py", command):
        assert (ROOT / script).is_file(), script
    target = re.fullmatch(r"make (\w+)", command)
    assert target is None or f"\n{target[1]}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"machine": {"device": "cpu"}},
        {"date": "yesterday"},
        {"results": {}},
        {"seed": "0"},
        {"more": 1},
        {"title": "a | b, which would break a table"},
    ],
)
def test_the_schema_refuses(change):
    content = json.loads((RESULTS / "sizes.json").read_text())
    Result.model_validate(content)
    with pytest.raises(ValidationError):
        Result.model_validate(content | change)


@pytest.mark.parametrize("field", [*HEAD, "settings", "results"])
def test_no_field_may_be_left_out(field):
    content = json.loads((RESULTS / "sizes.json").read_text())
    del content[field]
    with pytest.raises(ValidationError, match=field):
        Result.model_validate(content)


def test_a_written_result_has_its_head_and_its_numbers(tmp_path):
    path = write_result(
        "try", title="A result for a test", command="pytest", seed=3, results={"x": [0.1, 2]}, out=tmp_path / "try.json"
    )
    assert '"x": [0.1, 2]' in path.read_text()
    content = json.loads(path.read_text())
    assert content["machine"] | content["versions"] == machine() | {"fheat": content["versions"]["fheat"]}
    assert content["seed"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", content["date"])


def test_what_a_command_printed_is_stored_under_a_head(tmp_path, monkeypatch):
    monkeypatch.setattr("results.RESULTS", tmp_path)
    printed = tmp_path / "printed"
    printed.write_text(json.dumps({"command": "c", "machine": machine(), "seed": 0, "unit": "ms", "results": {"a": 1}}))
    store_result.main("one", printed, title="A result for a test")
    store_result.main("two", printed, title="A result for a test", whole="simulation")
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert (one["command"], one["seed"], one["settings"], one["results"]) == ("c", 0, {"unit": "ms"}, {"a": 1})
    assert two["results"]["simulation"] == json.loads(printed.read_text())
    with pytest.raises(SystemExit, match="--title"):
        store_result.main("three", printed)


def test_the_list_of_results_is_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["index.py", "--check"])
    assert index.main() == 0, capsys.readouterr().out


def test_every_result_has_a_user():
    assert [name for name, used in index.users().items() if not used] == []
