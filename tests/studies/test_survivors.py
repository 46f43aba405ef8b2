"""The table of several runs: its numbers are those of the gates and of the log."""

import json
import shutil

import pytest

from fheat import create_model, load, save
from fheat.cli.main import main
from fheat.models.card import Card
from fheat.ops.gates import gates_of
from fheat.studies.survivors import markdown, survivor_row
from fheat.training.runs import open_saved


def test_a_run_means_its_best_network(finished, run, capsys):
    log = [json.loads(line) for line in (finished / "log.jsonl").read_text().splitlines()]
    reached = [line["validation"] for line in log if "validation" in line]
    row = survivor_row(open_saved(str(finished)))
    best = load(finished).card
    assert (row.part, row.iteration, row.seed, row.gates) == ("best", best.training["iteration"], 0, 3)
    assert row.validation_dice == row.best_validation_dice == max(reached) == best.metrics["validation_dice"]
    gates = gates_of(load(finished / "best"))
    opened = {site: gate for site, gate in gates.items() if not gate.closed}
    assert row.idle == ("enc2",)  # a single voxel at this patch
    assert [one.site for one in row.survivors] == [site for site in opened if site not in row.idle]
    assert f"| {3 - len(opened)} of 3, 1 on one voxel |" in markdown([row])
    for one in row.survivors:
        assert (one.D, one.alpha) == (opened[one.site].strength.item(), opened[one.site].alpha.item())
    assert main(["allocation", str(finished)]) == 0
    assert f"{finished}: the network in best" in capsys.readouterr().out
    shutil.rmtree(run / "best")
    other = survivor_row(open_saved(f"{run}/"))
    assert (other.part, other.name, other.iteration) == ("final", str(run), 6)
    assert (other.validation_dice, other.best_validation_dice) == (reached[-1], max(reached))
    shutil.rmtree(run / "final")
    assert main(["allocation", str(run)]) == 3
    assert "is of a run that is over, without its networks" in capsys.readouterr().err


@pytest.fixture
def models(tmp_path):
    """One survivor, two, none, and a network that has no gates."""
    for name, opened in (("one", ["dec1"]), ("two|x", ["enc1", "dec1"]), ("none", [])):
        model = create_model("miniature", patch_size=(32, 32, 32))
        for site, gate in gates_of(model).items():
            gate.set_strength(0.5 if site in opened else 0.0)
        save(model, tmp_path / name, Card(training={"seed": 3}, metrics={"validation_dice": 0.5}))
    save(create_model("light_unetr", patch_size=(32, 32, 32)), tmp_path / "peer")
    return [str(tmp_path / name) for name in ("one", "two|x", "none", "peer")]


def test_one_row_per_model(models, capsys):
    assert main(["allocation", *models]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model | survivors | D | alpha | closed | validation Dice | seed |"
    assert len(lines) == 6
    cells = [[cell.strip() for cell in line.replace("\\|", "/").split("|")[2:-1]] for line in lines[2:]]
    assert cells[0] == ["dec1", "0.500", "0.372", "2 of 3", "0.5000", "3"]
    assert cells[1] == ["enc1, dec1", "0.500, 0.500", "0.372, 0.372", "1 of 3", "0.5000", "3"]
    assert cells[2] == ["none", "-", "-", "3 of 3", "0.5000", "3"]
    assert cells[3] == ["no gates", "-", "-", "-", "-", "-"]
    assert main(["allocation", *models, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [len(row["survivors"]) for row in rows] == [1, 2, 0, 0]
    assert rows[0]["survivors"][0]["D"] == 0.5
    assert rows[3]["network"] == "light_unetr"


def test_the_zoo_model_is_a_row():
    row = survivor_row(open_saved("la-4"))
    assert [one.site for one in row.survivors] == ["enc1", "dec1"]
    assert "| la-4 | enc1, dec1 | 0.178, 0.590 | 0.693, 0.888 | 6 of 8 | 0.9043 | 0 |" in markdown([row])
