"""The demo: the whole story in small, what it leaves, and what it refuses to touch."""

import json
import os
import re

import pytest

from fheat.cli.gate_screen import gate_lines
from fheat.cli.main import main
from fheat.experiments import demo
from fheat.training.run_folder import RunFolder
from tests.training.helpers import Run, settings_of


@pytest.fixture
def small(monkeypatch):
    """Scans and patches of the smallest size, and few of them."""
    sizes = {"SHAPE": (34, 34, 34), "PATCH": (32, 32, 32), "CASES": 5, "TEST": 2, "LABELLED": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.slow
def test_the_story(small, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--iterations", "2"]) == 0
    printed = capsys.readouterr().out
    result = json.loads((out / "demo.json").read_text())
    assert result["retired_equal"] is result["loaded_equal"] is True
    assert result["margin"] == result["dice"]["cse"] - result["dice"]["supervised"]
    for method in ("cse", "supervised"):
        scores = result["cases"][method]
        assert list(scores) == ["phantom_t0000", "phantom_t0001"]
        assert result["dice"][method] == pytest.approx(sum(scores.values()) / 2)
    one, other = (RunFolder(out / method).settings() for method in ("cse", "supervised"))
    assert one.method.ramp == 1
    assert one.model_dump(exclude={"method"}) == other.model_dump(exclude={"method"})
    assert sorted(path.name for path in out.iterdir()) == [
        "allocation.png", "cse", "demo.json", "mask.nii.gz", "mask.png", "model", "report.html", "scan.nii.gz", "scans",
        "supervised",
    ]  # fmt: skip
    words = "CSE {cse:.4f}, supervised-only {supervised:.4f}, margin {margin:+.4f}"
    words = words.format(**result["dice"], margin=result["margin"])
    page = (out / "report.html").read_text()
    assert words in printed
    assert words in page
    assert "torch.equal(retire(model)(x), model(x)): True" in printed
    assert f"Dice {result['new_scan_dice']:.4f}" in page
    assert (out / "supervised" / "report.html").exists()
    assert main(["predict", *(str(out / name) for name in ("model", "scan.nii.gz", "masks"))]) == 0


def test_an_earlier_demo_is_written_anew_and_what_lies_beside_it_stays(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fheat.experiments.demo._story", lambda *anything: {"margin": 0.5})
    out = tmp_path / "out"
    (out / "scans").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    (out / "demo.json").write_text("{}")
    assert main(["demo", "--out", str(out), "--json"]) == 0
    assert not (out / "scans").exists()
    assert (out / "notes.txt").read_text() == "mine"
    printed = json.loads(capsys.readouterr().out)
    assert printed["margin"] == 0.5
    assert json.loads((out / "demo.json").read_text()) == printed


def test_it_looks_where_it_writes_before_it_works(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fheat.experiments.demo._story", None)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "out" / "scans").mkdir(parents=True)
    (tmp_path / "out" / "scans" / "thesis.txt").write_text("mine")
    for out, says in (("file", "File exists"), ("file/sub", "Not a directory"), ("out", "not of a demo")):
        assert main(["demo", "--out", str(tmp_path / out)]) == 3
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.err.count("\n") == 1
    assert (tmp_path / "out" / "scans" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--iterations", "0"], "iterations=0"), (["--seed", str(10**30)], "seed=1000")]
)
def test_numbers_out_of_range_are_usage(tmp_path, capsys, arguments, says):
    assert main(["demo", "--out", str(tmp_path / "new"), *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 4
    assert "choose a writable folder" in capsys.readouterr().err


def test_no_space(tmp_path, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["demo", "--out", str(tmp_path / "out"), "--json"]) == 4
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"fheat: .*demo\.json: No space left on device \([\d,]+ bytes are needed and [\d,]+ bytes are free\); "
        r"free space or choose a writable folder\n",
        said,
    )


def test_the_screen_shows_every_gate_as_it_is(small, tmp_path):
    from fheat.data.phantom import write_phantoms

    write_phantoms(tmp_path / "scans", 4, test=0, shape=(34, 34, 34))
    settings = {"labelled": 2, "patch_size": (32, 32, 32), "iterations": 3}
    job = Run(settings_of(data=str(tmp_path / "scans"), **settings), tmp_path / "run", device="cpu")
    assert str(gate_lines("cse", job.trainer)) == "cse: first iteration of 3"
    job.step()
    job.done = 1
    at = job.step.columns.index
    job.step.history[0, at("D.enc1")] = 0.1
    job.step.history[0, at("D.dec1")] = 0.0
    lines = str(gate_lines("cse", job.trainer)).splitlines()
    assert lines[0] == f"cse: iteration 1 of 3, total loss {job.step.history[0, 0]:.3f}"
    assert lines[1] == f"  enc1   D 0.1000  {'#' * 20}"
    assert lines[8] == "  dec1   D 0.0000  closed"
    assert len(lines) == 9
