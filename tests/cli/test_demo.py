"""The demo: the whole story in small, what it leaves, and what it refuses to touch."""

import json
import os
import re
import time
from dataclasses import replace

import pytest

from fheat.cli.gate_screen import gate_lines, gate_screen, standing
from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.experiments import demo, demo_data
from fheat.metrics.masks import dice
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from tests.training.helpers import Run, settings_of


@pytest.fixture
def small(monkeypatch):
    """Scans and patches of the smallest size, and few of them."""
    sizes = {"SHAPE": (34, 34, 34), "PATCH": (32, 32, 32), "CASES": 5, "TEST": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(demo_data, name, value)
    monkeypatch.setattr(demo, "SYNTHETIC", replace(demo.SYNTHETIC, labelled=2, iterations=4))


@pytest.mark.slow
def test_the_story(small, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    result = json.loads((out / "demo.json").read_text())
    assert result["first_mask"]["dice"] > 0.85
    assert f"Dice {result['first_mask']['dice']:.4f}\n  see {out / 'first.png'}" in printed
    assert printed.index("first.png") < printed.index("scans: 2 with a label, 2 without, 2 held out for testing")
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
        "allocation.png", "cse", "demo.json", "first.png", "mask.nii.gz", "mask.png", "model", "report.html",
        "scan.nii.gz", "scans", "supervised",
    ]  # fmt: skip
    words = "CSE {cse:.4f}, supervised-only {supervised:.4f}, margin {margin:+.4f}"
    words = words.format(**result["dice"], margin=result["margin"])
    page = (out / "report.html").read_text()
    assert words in printed
    assert words in page
    assert "torch.equal(retire(model)(x), model(x)): True" in printed
    assert (out / "supervised" / "report.html").exists()
    assert main(["predict", *(str(out / name) for name in ("model", "scan.nii.gz", "masks"))]) == 0
    check_page(page, result)


def check_page(page, result):
    """The result stands first, with its pictures and volumes; what was done; then the allocation with its words."""
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:2] == ["Result", "Scan by scan"]
    assert headings.index("What was done") < headings.index("Allocation")
    assert "Validation scans" not in headings
    held = result["millilitres"].values()
    volumes = [f"{volume:.1f}" for one in held for kind in ("predicted", "reference") for volume in one[kind].values()]
    assert all(f">{volume}</td>" in page for volume in volumes)
    assert page.count("Prediction in orange, reference in blue") == 2
    assert "<td>precision</td><td>float32</td>" in page
    assert "<td>optimiser.precision</td><td>fp32</td>" in page
    for term in ("A gate mixes", "D is its strength, alpha its order", "To retire a closed gate"):
        assert term in page.split("<h2>Allocation</h2>")[1].split("</section>")[0]


@pytest.mark.slow
def test_the_same_story_on_the_scans_of_a_folder(tmp_path, capsys):
    out, scans = tmp_path / "out", tmp_path / "scans"
    write_phantoms(scans, 8, test=0, shape=(34, 33, 32))
    arguments = ["demo", "--data", str(scans), "--labelled", "2", "--iterations", "2", "--trust", "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    result = json.loads((out / "demo.json").read_text())
    assert "scans: 2 with a label, 5 without, 1 held out for testing" in printed
    assert result["first_mask"] is None
    assert list(result["cases"]["cse"]) == ["phantom_0007"]
    assert f"on phantom_0007, the median of the held-out scans: {result['new_scan_dice']:.4f}" in printed
    assert result["new_scan_dice"] == result["dice"]["cse"]  # a retired network gives the same mask
    assert sorted(path.name for path in out.iterdir()) == [
        "allocation.png", "cse", "demo.json", "mask.nii.gz", "mask.png", "model", "report.html", "supervised",
    ]  # fmt: skip
    assert read_history(out / "cse").validations[-1].iteration == 2
    assert len(read_history(out / "cse").validations) == 1, "nothing is selected by scans that are compared in the end"
    check_page((out / "report.html").read_text(), result)


def test_an_earlier_demo_is_written_anew_and_what_lies_beside_it_stays(tmp_path, capsys, monkeypatch):
    for part in ("_first_mask", "synthetic_scans"):
        monkeypatch.setattr(demo, part, lambda *anything: None)
    monkeypatch.setattr(demo, "_story", lambda *anything: {"margin": 0.5})
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
    monkeypatch.setattr(demo, "_first_mask", None)
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
    ("arguments", "says"),
    [
        (["--iterations", "0"], "iterations=0"),
        (["--labelled", "0"], "labelled=0"),
        (["--seed", str(10**30)], "seed=1000"),
    ],
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


@pytest.fixture
def job(tmp_path):
    write_phantoms(tmp_path / "scans", 4, test=0, shape=(34, 34, 34))
    settings = {"labelled": 2, "patch_size": (32, 32, 32), "iterations": 3}
    return Run(settings_of(data=str(tmp_path / "scans"), **settings), tmp_path / "run", device="cpu")


def test_the_screen_shows_every_gate_as_it_is(job):
    assert str(gate_lines("cse", job.trainer, 5.0)) == "cse: training 0 of 3"
    job.step()
    job.done = 1
    at = job.step.columns.index
    job.step.history[0, at("D.enc1")] = 0.1
    job.step.history[0, at("D.dec1")] = 0.0
    lines = str(gate_lines("cse", job.trainer, 5.0)).splitlines()
    assert lines[0] == f"cse: training 1 of 3, 10 s left, total loss {job.step.history[0, 0]:.3f}"
    assert lines[1] == f"  enc1   D 0.1000  {'#' * 20}"
    assert lines[8] == "  dec1   D 0.0000  closed"
    assert len(lines) == 9


def test_validation_is_shown_scan_by_scan_and_over_when_it_is_over(job, monkeypatch):
    seen = []

    def watched(mask, reference):
        seen.append(standing("cse", job.trainer, 1.0))
        return dice(mask, reference)

    monkeypatch.setattr("fheat.training.validation.dice", watched)
    job.train()
    assert seen == ["cse: validating 0 of 1, after 3 of 3 iterations"]
    assert job.trainer.validating is None


def test_without_a_terminal_there_is_a_line_now_and_then(job, capsys, monkeypatch):
    monkeypatch.setattr("fheat.cli.gate_screen.SECONDS_BETWEEN_LINES", 0.01)
    with gate_screen("cse", job.trainer):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert set(lines) == {"cse: training 0 of 3"}
