"""`fheat reproduce`: what it prints, what it writes, and what it refuses."""

import json

import pytest

from fheat.cli.main import main
from fheat.experiments import reproduce as module
from fheat.experiments.engine import Failure
from fheat.experiments.records import ITEMS

TINY = ["--data", "phantoms", "--scale", "tiny", "--device", "cpu"]


def test_list_shows_every_item_with_state_and_cost(tmp_path, capsys):
    assert main(["reproduce", "--list", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[1 : len(ITEMS) + 1]] == list(ITEMS)
    assert lines[0].split() == ["item", "what", "it", "shows", "GPU", "CPU", "state"]
    assert "no data (LA, Pancreas-CT, BraTS 2019)" in lines[1]
    assert "fheat data prepare la DOWNLOAD la --benchmark-crop" in printed
    assert not (tmp_path / "out").exists()
    assert main(["reproduce", "table1", "--list", "--json", "--out", str(tmp_path / "out")]) == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert state["item"] == "table1"
    assert state["minutes"]["cpu"] > state["minutes"]["cuda"] > 0
    assert state["no_data"].keys() == {"la", "pancreas", "brats"}


def test_an_item_without_training_is_printed_and_written(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", "fig3", *TINY, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "sum D^2 at one gate" in printed
    assert f"wrote {out / 'fig3.md'}, {out / 'fig3.csv'}, {out / 'fig3.png'}" in printed
    assert main(["reproduce", "fig3", *TINY, "--out", str(out), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    remark = next(number for number in shown["numbers"] if number["quantity"] == "sum D^2 shared evenly")
    assert (remark["published"], round(remark["ours"], 3)) == (0.2, 0.198)


def test_failed_runs_make_the_exit_code_three(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "run_here", lambda runs, *_, **__: [Failure(run.name, "it diverged") for run in runs])
    assert main(["reproduce", "table2", "--rows", "la-4/fheat-seg", *TINY, "--out", str(tmp_path)]) == 3
    printed = capsys.readouterr()
    assert "not run yet; seed 0 failed: it diverged" in printed.out
    assert "failed la-4/fheat-seg, seed 0: it diverged" in printed.err
    assert printed.err.endswith(f"{tmp_path}: has 1 failure; see the lines above for each\n")


def test_an_item_that_cannot_be_shown_makes_the_exit_code_three(tmp_path, capsys, monkeypatch):
    def fails(*_):
        raise ValueError("nothing to measure")

    monkeypatch.setattr(module, "present", fails)
    assert main(["reproduce", "fig3", *TINY, "--out", str(tmp_path / "a b")]) == 3
    printed = capsys.readouterr()
    assert "- not shown: nothing to measure" in printed.out
    assert "failed fig3: nothing to measure" in printed.err
    assert f"fheat report '{tmp_path}/a b/runs/NAME-KEY'" in printed.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["tabel2"], 2, "no item 'tabel2', perhaps table2 is meant"),
        (["table2", "--rows", "la-5"], 2, "no row 'la-5'"),
        (["--data", "phantoms"], 2, "--data phantoms and --scale tiny belong together"),
        (["--scale", "tiny", "--data", "la=x", "phantoms"], 2, "belong together"),
        (["--iterations", "1"], 2, "--iterations is 1: at least 2"),
        (["--parallel", "0"], 2, "--parallel is 0: at least 1"),
        (["--seeds", "-1"], 2, "--seeds takes whole numbers"),
        (["--device", "nonsense"], 2, "device 'nonsense' is unknown"),
        (["--device", "cuda:999"], 2, "device 'cuda:999' cannot be used"),
        (["--data", "la=nowhere"], 3, "nowhere: does not exist"),
        (["--data", "la="], 3, "fheat: --data la=: names no folder; give NAME=FOLDER"),
        (["--data", "lungs=nowhere"], 3, "is no dataset of the paper"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words, code, says, tmp_path, capsys):
    assert main(["reproduce", *words, "--list", "--out", str(tmp_path / "out")]) == code
    complaint = capsys.readouterr().err
    assert says in complaint
    assert complaint.count("\n") == 1
