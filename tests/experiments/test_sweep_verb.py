"""`fheat sweep`: the table and its files, what is shown on the way, and how it ends."""

import csv
import json
import re
import signal

import pytest

from fheat.cli.main import main
from fheat.experiments.scoring import Scoring
from fheat.experiments.sweep import read_sweep
from fheat.experiments.sweep_table import SweepRow, SweepTable, scored_by
from tests.experiments.engines import Here
from tests.experiments.test_engine import AskAfter

FILE = """
[settings]
data = "{data}"
labelled = 2
batch = 1
patch_size = [16, 16, 16]
network = "tiny"
method = "supervised"
iterations = 2
warm_up = 1

[scoring]
split = "test"

[grid]
seed = {seeds}
"""


@pytest.fixture
def sweep_file(tmp_path, scans):
    """A function that writes a sweep over seeds and returns its path."""

    def write(*seeds, data=scans):
        (tmp_path / "sweep.toml").write_text(FILE.format(data=data, seeds=list(seeds)))
        return str(tmp_path / "sweep.toml")

    return write


@pytest.fixture
def sweep(monkeypatch, tmp_path, capsys):
    """A function that calls the verb with an engine in this process, and returns exit code, output and errors."""

    def call(path, *words, engine=None):
        monkeypatch.setattr("fheat.cli.sweep._engine", lambda options: engine or Here())
        try:
            code = main(["sweep", path, "--out", str(tmp_path / "runs"), *words])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


def test_the_table_has_what_the_folders_hold_and_is_written_beside_them(sweep, sweep_file, tmp_path):
    path = sweep_file(0, 1)
    code, out, err = sweep(path)
    assert code == 0
    runs = read_sweep(path).runs
    with open(tmp_path / "runs" / "sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["state"], row["seed"]) for row in rows] == [
        ("seed-0", "done", "0"),
        ("seed-1", "done", "1"),
    ]
    for row, run in zip(rows, runs, strict=True):
        scores = run.scores(tmp_path / "runs").summary()["left_atrium"].metrics
        assert float(row["dice"]) == scores["dice"].mean
        assert (row["hd95"], int(row["hd95_n"])) == (
            "" if scores["hd95"].n == 0 else str(scores["hd95"].mean),
            scores["hd95"].n,
        )
        assert row["survivors"].split() == list(run.outcome(tmp_path / "runs").survivors)
    best = max(rows, key=lambda row: float(row["dice"]))
    assert re.search(rf"^{best['run']} .* {float(best['dice']):.4f} \*", out, re.M)
    assert out.count(f"{float(best['dice']):.4f} *") == 1
    assert f"fheat report {tmp_path}/runs/{best['run']}-" in out
    assert "seed-0: done in " in err
    markdown = (tmp_path / "runs" / "sweep.md").read_text().splitlines()
    assert markdown[0] == "| run | seed | Dice | 95HD voxels | survivors | state |"
    assert [line.split(" | ")[0] for line in markdown[2:4]] == ["| seed-0", "| seed-1"]


def test_the_list_shows_states_and_does_nothing(sweep, sweep_file, tmp_path):
    path = sweep_file(0, 1, 2)
    code, out, err = sweep(path, "--list", engine=object())
    assert (code, err) == (0, "")
    assert out.count("not run yet") == 3
    assert not (tmp_path / "runs").exists()
    assert sweep(path, engine=Here([AskAfter(9), AskAfter(1)]))[0] == 3
    code, out, _ = sweep(path, "--list", "--json", engine=object())
    assert [row["state"] for row in json.loads(out)] == ["done", "interrupted", "done"]
    assert sweep(path)[0] == 0


def test_runs_of_one_folder_can_be_done_by_several_commands(sweep, sweep_file):
    path, first, rest = sweep_file(0, 1, 2), Here(), Here()
    code, out, err = sweep(path, "--only", "seed-2", "seed-0", engine=first)
    assert (code, first.began) == (0, ["seed-0", "seed-2"])
    assert re.search(r"^seed-1 .* not run yet$", out, re.M)
    assert out.count(" done") == 2
    assert sweep(path, engine=rest)[0] == 0
    assert rest.began == ["seed-1"]
    none = Here()
    code, _, err = sweep(path, "--only", engine=none)  # as a shell writes it whose variable is empty
    assert (code, none.began) == (2, [])
    assert "--only has no name" in err
    code, _, err = sweep(path, "--only", "seed_1", engine=Here())
    assert code == 2
    assert "the file plans no run 'seed_1', perhaps seed-1 is meant; it has seed-0, seed-1, seed-2" in err


def test_failed_runs_are_named_with_their_reason_and_the_others_are_kept(sweep, sweep_file):
    code, out, err = sweep(sweep_file(0, 1), engine=Here([AskAfter(1)]))
    assert code == 3
    assert re.search(r"^seed-0 .* failed$", out, re.M)
    assert re.search(r"^seed-1 .* done$", out, re.M)
    assert "failed seed-0: stopped at iteration 1; see " in err
    assert err.endswith("runs: 1 of 2 runs failed; see the lines above for each\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_everything_and_the_same_command_goes_on(sweep, sweep_file, tmp_path, number, code):
    class Signals(Here):
        def wait(self, seconds):
            if not self.stopped:
                signal.raise_signal(number)
            return super().wait(seconds)

    path = sweep_file(0, 1)
    stopped, out, err = sweep(path, engine=Signals())
    assert (stopped, out) == (code, "")
    assert err.endswith("stopped; 1 of 2 runs are done and the others are saved; the same command goes on\n")
    assert "not run yet" in (tmp_path / "runs" / "sweep.md").read_text()
    again = Here()
    assert sweep(path, "--json", engine=again)[0] == 0
    assert again.began == ["seed-1"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--parallel", "0"], 2, "parallel=0 is too few"),
        (["--address", "auto"], 2, "--address is that of a Ray cluster: add --engine ray"),
        (["--device", "nonsense"], 2, "device 'nonsense' is unknown"),
        (["--engine", "cloud"], 2, "--engine"),
        (["--out", "{file}"], 3, "is a file"),
    ],
)
def test_wrong_options_are_refused_in_one_line(sweep_file, capsys, words, code, says):
    path = sweep_file(0)
    assert main(["sweep", path, *(word.format(file=path) for word in words)]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_missing_dataset_names_file_and_field(sweep, sweep_file):
    code, _, err = sweep(sweep_file(0, data="nowhere"))
    assert code == 3
    assert "sweep.toml: field data.folder: nowhere does not exist; " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("pattern", ["**.nothing", "nothing.at.all"])
def test_a_pattern_that_fits_no_module_is_refused_before_any_run_begins(sweep, sweep_file, tmp_path, pattern):
    path = sweep_file(0)
    runs = "".join(
        f'[[run]]\nname = "{name}"\nnetwork.instrument = ["{one}"]\n' for name, one in (("fits", "0"), ("not", pattern))
    )
    (tmp_path / "sweep.toml").write_text((tmp_path / "sweep.toml").read_text().replace("[grid]", f"{runs}[grid]"))
    code, _, err = sweep(path)
    assert code == 3
    assert "sweep.toml: field network.instrument: Tiny has no module" in err
    assert "(run not); give paths or patterns of modules of tiny" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def row(name, dice, hd95, defined=4):
    return SweepRow(name, "done", {}, dice=dice, hd95=hd95, defined=defined, scores=4, unit="mm", survivors=())


def test_distances_of_different_cases_do_not_compete():
    table = SweepTable((row("a", 0.8, 3.0), row("b", 0.9, 1.0, defined=3), row("c", 0.7, 2.0)))
    assert (table.best_dice, table.best_hd95) == ("b", "c")
    cells = {cells[0]: cells[1:] for cells in table.sheet().rows}
    assert cells["b"] == ("0.9000 *", "1.00 (n 3 of 4)", "none", "done")
    assert cells["c"][1] == "2.00 *"


def test_runs_that_are_not_done_have_no_best():
    table = SweepTable((SweepRow("a", "not run yet", {"seed": "1"}),))
    assert (table.best_dice, table.best_hd95) == (None, None)
    assert table.sheet().rows == (("a", "1", "-", "-", "-", "not run yet"),)


def test_the_table_says_which_scans_it_is_of(sweep, sweep_file, tmp_path):
    assert scored_by(Scoring()).endswith("the validation scans, which also chose the network of each run.")
    assert scored_by(Scoring(split="test", network="final")).endswith("of the network after the last iteration.")
    path = sweep_file(0)
    assert sweep(path)[0] == 0
    words = "Dice and 95HD are means over the test scans, of the network with the best validation Dice."
    assert words in sweep(path, "--list")[1]
    assert words in (tmp_path / "runs" / "sweep.md").read_text()
    assert json.loads(sweep(path, "--json")[1])[0]["split"] == "test"
