"""`fheat simulate` on the command line: what it prints, writes, redraws and refuses."""

import copy
import functools
import json
import re

import pytest

from fheat.cli.main import main
from fheat.studies.simulation.experiments import simulate

SHORT = ["simulate", "--seeds", "1", "--iterations", "60"]
PNG = b"\x89PNG"


def test_prints_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SHORT, "--no-controls"]) == 0
    text = capsys.readouterr().out
    assert "exact share 0.2500; paper 0.248 +- 0.011" in text
    assert "exactly 0 at 56 of 56 idle sites" in text
    assert "predicts survival at 64 of 64 sites" in text
    assert "0.1984 shared evenly and 6.3496 at one gate" in text
    assert "softplus" not in text
    assert not list(tmp_path.iterdir())


def test_writes_what_it_prints_and_draws_it_again(capsys, tmp_path):
    out, again = tmp_path / "result", tmp_path / "again"
    words = [*SHORT, "--out", str(out)]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "simulation.json").read_text())
    assert printed["command"] == "fheat simulate --seeds 1 --iterations 60 --json"  # not where it was written
    assert {"machine", "seed", "settings", "trajectories", "controls"} <= printed.keys()
    assert str(tmp_path) not in (out / "simulation.json").read_text()
    picture = (out / "simulation.png").read_bytes()
    assert picture.startswith(PNG)
    assert main(words) == 3
    assert "exists already" in capsys.readouterr().err
    assert main(["simulate", "--from", str(out / "simulation.json"), "--out", str(again)]) == 0
    text = capsys.readouterr().out
    assert "uneven start, no weight decay" in text
    assert "wrote" in text
    assert [path.name for path in again.iterdir()] == ["simulation.png"]
    assert (again / "simulation.png").read_bytes() == picture
    assert main(["simulate", "--from", str(out / "simulation.json"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0"], "seeds=0 is not usable"),
        (["--iterations", "-3"], "iterations=-3 is not usable"),
        (["--rate", "nan"], "rate=nan is not usable"),
        (["--alpha", "3"], "alpha=3.0 is not usable"),
        (["--decay", "-1"], "decay=-1.0 is not usable"),
        (["--seeds", "many"], "many"),
        (["--from", "x.json"], "needs --out"),
        (["--from", "x.json", "--out", "y", "--seeds", "3"], "leave out the options of a run"),
    ],
)
def test_refuses_in_one_line(words, says, capsys):
    assert main(["simulate", *words]) == 2
    found = capsys.readouterr()
    assert says in found.err
    assert found.err.count("\n") == 1
    assert "fheat simulate --help" in found.err


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 2}', '{"format": 1, "trajectories": {}}', "[" * 100_000, "\0"]
)
def test_no_record_is_one_line(content, capsys, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["simulate", "--from", str(path), "--out", str(tmp_path / "out")]) == 3
    found = capsys.readouterr()
    assert re.search(r"x.json: (is not a stored simulation|field )", found.err)
    assert found.err.endswith("; give the simulation.json of a run\n")
    assert found.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_record_with_a_hole_is_refused(capsys, tmp_path):
    assert main([*SHORT, "--no-controls", "--out", str(tmp_path)]) == 0
    path = tmp_path / "simulation.json"
    whole = json.loads(path.read_text())
    for field in ("settings", "remark_3", "interchangeable", "differentiated", "controls"):
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != field}))
        assert main(["simulate", "--from", str(path), "--out", str(tmp_path / "out")]) == 3, field
        assert f"field {field}: Field required" in capsys.readouterr().err
    for place, value, says in (
        (("trajectories", "interchangeable", 3), "x", "field trajectories.interchangeable.3"),
        (("trajectories", "interchangeable", 3), [1.0], "one row per iteration and one value per site"),
        (("trajectories", "exp"), whole["trajectories"]["differentiated"], "must come together"),
        (("trajectories", "planted"), 9, "no run has site 9 planted"),
        (("trajectories", "iterations", 1), 10**400, "field trajectories.iterations.1"),
        (("differentiated", "runs", 0, "planted"), 9, "one value per site, the planted one among them"),
        (("interchangeable", "runs"), [], "field interchangeable.runs"),
        (("settings", "rate"), float("nan"), "field settings.rate"),
    ):
        damaged = copy.deepcopy(whole)
        *way, last = place
        functools.reduce(lambda part, key: part[key], way, damaged)[last] = value
        path.write_text(json.dumps(damaged))
        assert main(["simulate", "--from", str(path), "--out", str(tmp_path / "out")]) == 3
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert main(["simulate", "--from", str(tmp_path / "none.json"), "--out", str(tmp_path / "out")]) == 3
    assert main([*SHORT, "--out", str(path)]) == 3
    assert capsys.readouterr().err.count("\n") == 2


def test_strengths_that_are_not_finite_are_said_in_one_line(monkeypatch, capsys):
    def diverged(settings, **_):
        found = simulate(settings, controls=False)
        found["differentiated"]["runs"][0]["D"][0] = float("inf")
        return found

    monkeypatch.setattr("fheat.cli.simulate.simulate", diverged)
    assert main([*SHORT, "--rate", "1"]) == 2
    assert "the gates diverged at rate 1: give a smaller --rate" in capsys.readouterr().err
