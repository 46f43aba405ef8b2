"""No verb leaves a terminal silent while it works: every verb opens a bar or a screen, and these say what is done."""

import ast
import re
from pathlib import Path

import pytest

import fheat.cli
from fheat.cli import data
from fheat.cli.main import VERBS, main
from fheat.data.phantom import write_phantoms

AT_ONCE = {"cache", "completion", "data", "studio"}
"""Verbs that answer at once, or only hand over to others."""
BARS = {"progress_bar", "gate_screen", "run_screen"}
MODULES = [*sorted(VERBS.keys() - AT_ONCE), "models_cost", *(f"data_{name}" for name in data.VERBS)]


@pytest.mark.parametrize("name", MODULES)
def test_every_verb_shows_that_it_works(name):
    """A reminder for new verbs: somewhere a bar or a screen is used, not only imported. Whether it comes in time is
    tested below."""
    tree = ast.parse((Path(fheat.cli.__file__).parent / f"{name}.py").read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used & BARS, f"{name} has no bar; if it answers at once, name it in AT_ONCE"


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waiting") / "scans"
    write_phantoms(folder, 2, test=1, shape=(48, 48, 48))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("allocation phantom", ["counting multiply-adds"]),
        ("data check SCANS", ["reading", "3 of 3"]),
        ("data phantom OUT --cases 2 --test 1 --shape 24 24 24", ["phantoms", "3 of 3"]),
        ("evaluate SCANS/labelsTr SCANS/labelsTr", ["evaluating", "2 of 2"]),
        ("export phantom OUT --to bundle", ["writing the network as bundle", "comparing on noise"]),
        ("models --cost --size 32 32 32", ["building networks", "1 of"]),
        ("predict phantom SCANS/imagesTs OUT", ["reading phantom_t0000", "preparing the network for this machine"]),
    ],
)
def test_a_terminal_reads_what_is_done(arguments, words, scans, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "160")
    places = {"SCANS": str(scans), "OUT": str(tmp_path / "out")}
    command = re.sub("SCANS|OUT", lambda found: places[found[0]], arguments)
    assert main(command.split()) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    for said in words:
        assert said in shown
