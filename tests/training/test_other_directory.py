"""Runs that were given relative paths, looked at and gone on with from another directory, and moved datasets."""

import json
import shutil

import pytest

import fheat
from fheat.cli.main import main
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from tests.training.helpers import SMALL_WORDS

SHORT = ["--iterations", "4", "--warm-up", "1", "--validate-every", "2", "--checkpoint-every", "2"]


@pytest.fixture
def place(scans, tmp_path, monkeypatch):
    """A folder with a copy of the dataset, from which a run of 4 iterations was begun, and done."""
    place = tmp_path / "begun"
    shutil.copytree(scans, place / "scans")
    monkeypatch.chdir(place)
    assert main(["train", "scans", *SMALL_WORDS, *SHORT, "--method", "supervised", "--out", "run"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return place


def resume(capsys, *words):
    """Go on to 6 iterations; return the exit code and what was said on stderr."""
    capsys.readouterr()
    code = main(["train", *map(str, words), "--resume", "--device", "cpu", "--iterations", "6"])
    return code, capsys.readouterr().err


def probe(capsys, *words):
    capsys.readouterr()
    code = main(["probe", *map(str, words), "--batches", "1", "--device", "cpu", "--json"])
    return code, capsys.readouterr()


def test_a_run_goes_on_from_another_directory(place, capsys):
    assert RunFolder(place / "run").settings().data.folder == str(place / "scans")
    assert resume(capsys, "--out", "../begun/run")[0] == 0
    assert read_history(place / "run").done == 6
    assert 'folder = "scans"' in (place / "run" / "config.toml").read_text()


def test_a_run_is_probed_from_another_directory(place, capsys):
    code, said = probe(capsys, place / "run")
    assert code == 0
    assert json.loads(said.out)["data"] == str(place / "scans")


def test_another_dataset_of_the_same_name_in_the_working_directory_is_not_taken(place, capsys, tmp_path):
    (tmp_path / "elsewhere" / "scans").mkdir()
    assert resume(capsys, "--out", place / "run")[0] == 0


def test_a_folder_that_was_moved_with_its_data_is_found_from_its_new_place(place, capsys, tmp_path, monkeypatch):
    place.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert resume(capsys, "--out", "run")[0] == 0


def test_data_that_were_moved_under_the_same_name_are_found_later(place, capsys, tmp_path, monkeypatch):
    (place / "scans").rename(tmp_path / "elsewhere" / "scans")
    assert resume(capsys, "scans", "--out", place / "run")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert RunFolder(place / "run").settings().data.folder == str(tmp_path / "elsewhere" / "scans")


@pytest.mark.parametrize("written", ['"/elsewhere"', "[" * 100_000, '"' + 5000 * "x" + '"'])
def test_a_comment_that_was_edited_decides_nothing(place, written):
    config = place / "run" / "config.toml"
    *lines, seal = config.read_text().splitlines()
    line = next(line for line in lines if line.startswith("# paths are from: "))
    edited = [f"# paths are from: {written}" if one == line else one for one in lines]
    config.write_text("\n".join(edited) + "\n")  # as its message says, without the seal
    assert RunFolder(place / "run").settings().data.folder == "scans"
    assert seal.startswith("#")


def test_a_directory_that_may_not_be_looked_into_is_none(place, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.exists", refuse)
    assert RunFolder(place / "run").located("scans") == "scans"


def test_where_data_were_moved_the_advice_works(place, capsys, tmp_path, monkeypatch):
    (place / "scans").rename(tmp_path / "archive")
    code, error = resume(capsys, "--out", place / "run")
    advice = f"as in fheat train DATA --resume --out {place / 'run'}"
    assert (code, error) == (
        3,
        f"fheat: scans: does not exist; give the place to which the dataset was moved, {advice}\n",
    )
    code, said = probe(capsys, place / "run")
    says = "scans: does not exist; give the place to which the dataset was moved with --data"
    assert (code, said.err) == (3, f"fheat: {says}\n")
    assert main(["allocation", str(place / "run"), "--residual", "--device", "cpu"]) == 3
    assert says in capsys.readouterr().err

    assert probe(capsys, place / "run", "--data", "../archive")[0] == 0
    assert resume(capsys, "../archive", "--out", place / "run")[0] == 0
    monkeypatch.chdir(place)
    assert RunFolder(place / "run").settings().data.folder == str(tmp_path / "archive")
    assert probe(capsys, "run")[0] == 0


def test_python_goes_on_with_moved_data(place, tmp_path):
    (place / "scans").rename(tmp_path / "archive")
    run = fheat.train(data=tmp_path / "archive", out=place / "run", resume=True, iterations=6, device="cpu")
    assert run.settings.data.folder == str(tmp_path / "archive")
    assert run.settings.network.name == "miniature"


def test_the_folder_of_an_earlier_version_is_read_from_the_working_directory(place, capsys, monkeypatch):
    config = place / "run" / "config.toml"
    config.write_text("".join(line for line in config.read_text().splitlines(keepends=True) if line[0] != "#"))
    assert RunFolder(place / "run").settings().data.folder == "scans"
    assert resume(capsys, "--out", place / "run")[0] == 3
    monkeypatch.chdir(place)
    assert resume(capsys, "--out", "run")[0] == 0


def test_absolute_paths_need_no_directory(scans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(scans), *SMALL_WORDS, *SHORT, "--method", "supervised", "--out", "run"]) == 0
    assert "paths are from" not in (tmp_path / "run" / "config.toml").read_text()


def test_a_model_to_start_from_is_found_where_no_checkpoint_was_saved_yet(place, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    words = [*SMALL_WORDS, *SHORT, "--from", "run", "--method", "supervised", "--out", "tuned"]
    words.remove("--network")
    words.remove("miniature")
    assert main(["train", "scans", *words]) == 0
    for name in ("checkpoints", "best", "final"):
        shutil.rmtree(place / "tuned" / name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(capsys, "--out", place / "tuned")[0] == 0
