"""The program as a user meets it: results, help, exit codes, one line per failure."""

import io
import json
import os
import subprocess
import sys

import pytest

from fheat import __version__, create_model, save
from fheat.cli.main import VERBS, main
from fheat.ops.gates import gates_of


@pytest.fixture
def folder(tmp_path):
    model = create_model("fheat_seg", patch_size=(32, 32, 32))
    gates_of(model)["enc1"].delta.data.fill_(-0.2)
    return save(model, tmp_path / "model")


@pytest.mark.slow
def test_models_as_json(capsys, monkeypatch):
    monkeypatch.setattr("fheat.cli.models.list_models", lambda: ["fheat_seg", "light_unetr"])
    assert main(["models", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    networks = {row["name"]: row for row in result["networks"]}
    assert networks["fheat_seg"]["parameters"] == 974_632
    assert round(networks["fheat_seg"]["macs_gates_open"] / 1e9, 3) == 1.199
    assert round(networks["fheat_seg"]["macs_gates_closed"] / 1e9, 3) == 0.900
    assert networks["light_unetr"]["gates"] == []
    assert "fvcore" in result["counter"]


@pytest.mark.slow
def test_models_as_a_table(capsys, monkeypatch):
    names = ["fheat_seg", "fheat_seg_l", "light_unetr", "light_unetr_l"]
    monkeypatch.setattr("fheat.cli.models.list_models", lambda: names)
    assert main(["models", "--patch-size", "96", "96", "96"]) == 0
    out = capsys.readouterr().out
    for expected in ("972,616", "0.999", "0.754", "50.71", "0.841", "52.15", "MAC by fvcore rules"):
        assert expected in out


@pytest.mark.slow
def test_allocation(folder, capsys):
    assert main(["allocation", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "7 of 8 gates open: enc2, enc3" in out
    assert "Nothing to mix on a single voxel: enc4, dec4." in out
    assert "closed" in out.split("\n")[1]
    assert main(["allocation", str(folder), "--json", "--patch-size", "64", "64", "64"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [gate["state"] for gate in result["gates"]] == ["closed"] + ["open"] * 7
    assert result["gates"][1]["grid"] == [8, 8, 8]
    assert result["cost"]["macs"] == result["cost"]["transform"] + result["cost"]["rest"]


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)
    assert "exit codes: 0 fine" in out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fheat {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"Example: fheat {verb}" in out
    assert ("--json" in out) == (verb not in ("studio", "completion"))  # which print no result
    assert "None" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["fly"],
            2,
            "no verb 'fly': use one of demo, models, data, train, sweep, predict, export, evaluate, ",
        ),
        (["models", "--patch-size", "8", "8", "8"], 2, "patch_size=(8, 8, 8)"),
        (["models", "--in-channels", "0"], 2, "in_channels=0"),
        (["models", "--patch-size", "100000", "100000", "100000"], 2, "at most 2048"),
        (["models", "--in-channels", "9" * 30], 2, "whole number from 1 to 4096"),
        (["models", "--in-channels", "None"], 2, "--in-channels takes a whole number, not 'None'; see"),
        (
            ["models", "--patch-size", "32", "32"],
            2,
            "Missing value for argument '--patch-size'. Expected 3 values; see",
        ),
        (["allocation", "x" * 300], 3, "File name too long"),
        (["allocation", "nowhere"], 3, "nowhere: no such model folder"),
    ],
)
def test_failures_are_one_line(arguments, code, says, capsys):
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fheat: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_corrupted_folder_is_bad_input(folder, capsys):
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert main(["allocation", str(folder)]) == 3
    assert "model.safetensors: sha256 differs" in capsys.readouterr().err


def test_grid_too_small_for_the_model_is_usage(folder, capsys):
    assert main(["allocation", str(folder), "--patch-size", "8", "40", "40"]) == 2
    assert "pad it to (32, 40, 40)" in capsys.readouterr().err
    assert main(["allocation", str(folder), "--patch-size", *["99999999"] * 3]) == 2
    assert "larger than any tensor" in capsys.readouterr().err


def test_interrupt(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("fheat.cli.models.run", interrupted)
    assert main(["models"]) == 130


def test_interrupt_while_a_class_is_made(monkeypatch, capsys):
    """Python wraps what `__set_name__` raises in a `RuntimeError` up to 3.11."""

    def interrupted(arguments):
        try:
            raise KeyboardInterrupt(143)
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr("fheat.cli.models.run", interrupted)
    assert main(["models"]) == 143
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["models", "--colour"], "--colour"),
        (["allocation"], "MODEL"),
        (["demo", "--itertaions", "3"], "--iterations"),
        (["models", "--patch-size", "a", "b", "c"], "--patch-size takes three whole numbers, not 'a', 'b', 'c'"),
        (["models", "--patch-size", "64", "64", "64.5"], "takes three whole numbers, not '64', '64', '64.5'"),
        (["predict", "la-4", "a", "b", "--stride", "nan"], "--stride takes three whole numbers, not 'nan'"),
        (
            ["predict", "la-4", "a", "b", "--preview-window", "x", "1"],
            "--preview-window takes two numbers, not 'x', '1'",
        ),
        (["bench", "read", "--cases", "1e3"], "--cases takes a whole number, not '1e3'"),
        (["predict", "--bacth", "3"], "MODEL is missing: write for example 'fheat predict la-4 scan.nii.gz masks'"),
        (["allocation", "here", "--patch-size", "48", "48"], "--patch-size"),
    ],
)
def test_mistakes_in_arguments_are_one_line_and_2(arguments, says, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert captured.err.endswith(f"see 'fheat {arguments[0]} --help'\n")
    assert "─" not in captured.err
    assert "NoneType" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("predict", "MODEL, INPUT and OUT are missing: write for example 'fheat predict la-4 scan.nii.gz masks'"),
        (
            "predict la-4 --batch 2",
            "INPUT and OUT are missing: write for example 'fheat predict la-4 scan.nii.gz masks'",
        ),
        ("evaluate a", "REF is missing: write for example 'fheat evaluate predictions labelsTs --out ours.json'"),
        ("allocation", "MODEL is missing: write for example 'fheat allocation demo/model --json'"),
        ("data check", "FOLDER is missing: write for example 'fheat data check Dataset001 --json'"),
        ("data phantom", "DST is missing: write for example 'fheat data phantom phantoms --cases 40'"),
        ("data prepare la", "SOURCE and TARGET are missing: write for example 'fheat data prepare la download/"),
        ("train", "DATA is missing: give the dataset folder, or --resume"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_is_missing_is_named_with_an_example(arguments, says, encoding, capsys, monkeypatch):
    """The parser draws its frames by what the output can show."""
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding, write_through=True))
    assert main(arguments.split()) == 2
    assert out.getvalue() == b""
    error = capsys.readouterr().err
    assert error.startswith(f"fheat: {says}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("words", [["predict"], ["data", "import"], ["prompt"], ["export", "la-4"]])
def test_what_is_missing_does_not_depend_on_the_width_of_the_terminal(words, columns, capsys, monkeypatch):
    """Which words of the help stand alone on a line does."""
    missing = {
        "predict": "MODEL, INPUT and OUT are",
        "data": "FOLDER is",
        "prompt": "PROGRAM, SCAN and OUT are",
        "export": "OUT and --to {onnx,openvino,pt2,bundle} are",
    }
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"fheat: {missing[words[0]]} missing: write for example 'fheat ")


@pytest.mark.parametrize(
    ("words", "which"),
    [
        (["predict", "la-4", "", "out"], "INPUT"),
        (["predict", "la-4", "scans", ""], "OUT"),
        (["predict", "la-4", "scans", "out", "--reference", ""], "--reference"),
        (["data", "check", ""], "FOLDER"),
        (["data", "import", ""], "FOLDER"),
        (["evaluate", "", "labels"], "PRED"),
        (["evaluate", "masks", "labels", "--out="], "--out"),
        (["train", ""], "DATA"),
        (["train", "scans", "--out", ""], "--out"),
        (["train", "--config", ""], "--config"),
        (["train", "scans", "--config="], "--config"),
        (["reproduce", "--data", ""], "--data"),
        (["reproduce", "table2", "--data", "la=scans", "", "--list"], "--data"),
        (["allocation", "la-4", "--residual", "--data", ""], "--data"),
        (["export", "la-4", "", "--to", "onnx"], "OUT"),
        (["export", "la-4", "a.onnx", "--to", "onnx", "--check", "scan", ""], "--check"),
        (["report", ""], "RUN"),
        (["sweep", ""], "FILE"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_an_empty_path_is_not_the_current_folder(words, which, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 2
    found = capsys.readouterr()
    assert (
        found.err
        == f"fheat: {which} is empty: give a path; see 'fheat {' '.join(words[: 1 + (words[0] == 'data')])} --help'\n"
    )
    assert found.out == ""


@pytest.mark.parametrize("columns", ["40", "200"])
def test_what_is_wrong_is_repeated_as_it_was_written_in_a_terminal_of_any_width(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    word = "a-word-that-is-longer-than-a-line-of-a-narrow-terminal"
    for words in (["models", f"--{word}"], ["predict", "la-4", "a", "b", "--weights", word]):
        assert main(words) == 2
        assert word in capsys.readouterr().err
    assert os.environ["COLUMNS"] == columns


@pytest.mark.parametrize("columns", [50, 100])
def test_help_has_the_width_of_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    listed = capsys.readouterr().out.partition("positional arguments")[2].splitlines()[1:]
    assert columns - 10 < max(map(len, listed)) <= columns


@pytest.mark.parametrize(
    ("words", "verb"), [(["data", "chek", "x"], "data"), (["data", ""], "data"), (["data", "check"], "data check")]
)
def test_the_help_that_is_named_exists(words, verb, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"; see 'fheat {verb} --help'\n")


def test_no_arguments_is_usage():
    done = subprocess.run([sys.executable, "-m", "fheat"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.startswith("usage: fheat VERB")


def test_methods_are_listed_with_what_they_need(capsys):
    assert main(["models", "--methods", "--json"]) == 0
    methods = {row["name"]: row for row in json.loads(capsys.readouterr().out)["methods"]}
    assert methods["ua_mt"]["needs"] == ["unlabelled", "teacher"]
    assert methods["supervised"]["needs"] == []
    assert methods["cse"]["passes"] == [3, 1]
    assert main(["models", "--methods"]) == 0
    assert "mean_teacher" in capsys.readouterr().out
