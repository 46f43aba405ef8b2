"""Runs whose network got gates by a setting: what they begin with, log, save, go on with and start from."""

import json
from types import SimpleNamespace

import pytest
import torch

import fheat
from fheat.cli.main import main
from fheat.experiments import planned as planned_runs
from fheat.experiments.planned import PlannedRun
from fheat.gates.hook import gate_hooks, placed_by, with_gates_of
from fheat.gates.table import allocation
from fheat.models.folder import read_manifest
from fheat.ops.gates import gates_of
from fheat.report.curves import strengths
from fheat.report.gates import allocation_section
from fheat.report.write import _costs
from fheat.system.errors import BadInput
from fheat.training import step as training_step
from fheat.training.plan import plan_run
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Stopped
from tests.training.helpers import SMALL_WORDS, Run, StopAfter, changed

OWN = ["enc1", "enc2", "dec1"]
"""Gates that the network is built with."""
PATTERNS = ("stem", "*.project")
PUT_IN = ["stem", "enc1.project", "dec1.project"]
"""Sites of these patterns; enc2.project sees a single voxel in crops of 16, where there is nothing to mix."""


@pytest.fixture
def gated(config):
    def make(**settings):
        return config(**{"network.instrument": PATTERNS} | settings)

    return make


def tensors(run):
    return {name: value.clone() for name, value in run.step.model.state_dict().items()}


def sites(network):
    return [site for site, gate in gates_of(network).items() if placed_by(gate) is not None]


def test_gates_are_put_in_and_nothing_else_changes(config, gated, tmp_path):
    plain, run = Run(config(), tmp_path / "plain"), Run(gated(), tmp_path / "gated")
    assert sorted(sites(run.step.model)) == sorted(PUT_IN)
    assert sorted(run.step.gates) == sorted([*OWN, *PUT_IN])
    began = {site: run.step.gates[site].strength.item() for site in PUT_IN}
    assert began == pytest.approx(dict.fromkeys(PUT_IN, 0.03))
    after = tensors(run)
    assert all(torch.equal(value, after[name]) for name, value in tensors(plain).items())
    strong = Run(gated(**{"network.initial_strength": 0.25}), tmp_path / "strong")
    assert all(strong.step.gates[site].strength.item() == 0.25 for site in PUT_IN)


def test_gates_that_begin_closed_leave_every_bit_of_a_run_as_it_is(config, gated, tmp_path):
    plain = Run(config(**{"optimiser.clip": None}), tmp_path / "plain")
    plain.train()
    closed = Run(gated(**{"optimiser.clip": None, "network.initial_strength": 0.0}), tmp_path / "closed")
    closed.train()
    after = tensors(closed)
    assert all(torch.equal(value, after[name]) for name, value in tensors(plain).items())
    assert all(closed.step.gates[site].closed for site in PUT_IN)


def test_gates_that_begin_closed_are_probed(gated, tmp_path):
    """P is not zero: opening any of them would change the loss."""
    settings = gated(**{"network.initial_strength": 0.0, "research.probe_at": (0,), "research.probe_batches": 2})
    Run(settings, tmp_path / "run").train()
    found = read_history(tmp_path / "run").probes[0]
    assert all(0 < abs(found[site].pairing) < 1 for site in PUT_IN)


@pytest.mark.parametrize(("method", "other"), [("mean_teacher", "teacher.network"), ("cps", "second")])
def test_the_other_network_of_a_method_has_the_gates_too(gated, tmp_path, method, other):
    run = Run(gated(method=method), tmp_path / "run")
    network = run.step.method.get_submodule(other)
    assert sorted(sites(network)) == sorted(PUT_IN)
    assert not set(map(id, gates_of(network).values())) & set(map(id, run.step.gates.values()))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    run.train()
    assert {name for name in before if not torch.equal(before[name], network.state_dict()[name])} >= {
        f"{site}.gate.delta" for site in PUT_IN
    }


def test_the_log_and_the_model_folder_have_them(gated, tmp_path, capsys):
    run = Run(gated(), tmp_path / "run")
    folder = run.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(lines) if "total" in line)
    assert {f"{name}.{site}" for site in PUT_IN for name in ("D", "alpha")} <= last.keys()
    assert last["D.stem"] == pytest.approx(run.step.gates["stem"].strength.item())
    assert [one.site for one in read_manifest(folder).instrumented] == sites(run.step.model)
    loaded, x = fheat.load(folder), torch.randn(1, 1, 16, 16, 16)
    with torch.no_grad():
        assert torch.equal(loaded(x), run.step.model.eval()(x))
    assert loaded.card.training["network"]["instrument"] == list(PATTERNS)
    assert main(["allocation", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["gates"]
    assert [row["site"] for row in rows] == list(gates_of(run.step.model))


def test_retiring_what_closed_leaves_the_output_and_the_count_of_the_rest(gated, tmp_path):
    run = Run(gated(), tmp_path / "run")
    for site in PUT_IN[:2]:
        run.step.gates[site].set_strength(0.0)
    loaded, x = fheat.load(run.train()), torch.randn(1, 1, 16, 16, 16)
    small = fheat.retire(loaded)
    with torch.no_grad():
        assert torch.equal(small(x), loaded(x))
    assert [bool(gate_hooks(small.get_submodule(site))) for site in PUT_IN] == [False, False, True]
    before, after = _costs(loaded)
    rows = fheat.allocation(with_gates_of(loaded.spec.build(), loaded))
    assert sorted(rows.open) == sorted([*OWN, *PUT_IN])
    gone = {row.site for row in fheat.allocation(small) if row.retired}
    assert gone >= set(PUT_IN[:2])
    assert before.macs - after.macs == sum(row.macs for row in rows if row.site in gone)
    assert sum(rows[site].macs for site in PUT_IN[:2]) > 0


def test_a_run_that_was_stopped_goes_on_bit_by_bit(gated, tmp_path):
    settings = gated()
    whole = Run(settings, tmp_path / "whole")
    whole.train()
    with pytest.raises(Stopped):
        Run(settings, tmp_path / "run", observers=[StopAfter(3)]).train()
    again = Run(RunFolder(tmp_path / "run").settings(), tmp_path / "run", resume=True)
    assert again.done == 3
    again.train()
    assert all(torch.equal(value, tensors(again)[name]) for name, value in tensors(whole).items())
    assert torch.equal(whole.step.history, again.step.history)
    with pytest.raises(BadInput, match=r"was begun with another network.instrument"):
        Run(changed(settings, **{"network.instrument": ["dec1.project"]}), tmp_path / "run", resume=True)


def test_gates_that_closed_leave_the_iteration_and_nothing_changes(gated, tmp_path, monkeypatch):
    def trained(look):
        monkeypatch.setattr(training_step, "ITERATIONS_BETWEEN_GATE_CHECKS", look)
        run = Run(gated(iterations=8), tmp_path / f"every {look}")
        run.step.gates["stem"].set_strength(0.0)
        run.train()
        return run

    kept, left = trained(1000), trained(2)
    assert left.step.gates["stem"].asleep
    assert not kept.step.gates["stem"].asleep
    assert torch.equal(kept.step.history, left.step.history)
    assert all(torch.equal(value, tensors(left)[name]) for name, value in tensors(kept).items())


def test_a_pattern_that_fits_nothing_is_one_line_with_near_misses(scans, tmp_path, capsys):
    words = ["train", str(scans), *SMALL_WORDS, "--out", str(tmp_path / "run")]
    assert main([*words, "--network.instrument", "stem", "enc*.projekt"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "fheat: network.instrument: Miniature has no module that fits 'enc*.projekt': close ones are "
    )
    assert "enc1.project" in line
    assert not (tmp_path / "run").exists()
    assert main([*words, "--network.initial-strength", "0.1"]) == 2
    assert "--network.initial-strength: is that of the gates of network.instrument" in capsys.readouterr().err


def test_the_verb_takes_them_and_the_plan_names_them(scans, tmp_path, capsys):
    words = ["train", str(scans), *SMALL_WORDS, "--plan-only", "--network.instrument", *PATTERNS]
    assert main([*words, "--network.initial-strength", "0.1"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[0] == "gates")
    assert line.split(maxsplit=1)[1] == "3 put in: stem, enc1.project, dec1.project"


def test_the_plan_of_a_network_without_such_gates_has_no_line_for_them(config, tmp_path):
    plan = plan_run(Run(config(), tmp_path / "run").trainer.prepared)
    assert plan.gates == ()
    assert not any(line.split()[0] == "gates" for line in plan.text().splitlines())


def test_the_key_of_a_planned_run_knows_the_gates_and_no_run_without_them_has_another(config, gated, monkeypatch):
    keys = [PlannedRun("a", one).key for one in (config(), gated(), gated(**{"network.initial_strength": 0.1}))]
    assert len(set(keys)) == 3
    dumped = []
    monkeypatch.setattr(planned_runs, "json", SimpleNamespace(dumps=lambda facts, **_: dumped.append(facts) or "{}"))
    assert PlannedRun("a", config()).key
    assert not any(name.startswith("network.in") for name in dumped[0]["settings"])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models without gates that were put in, with them, and with one that settings cannot describe."""
    torch.manual_seed(5)
    folder, network = tmp_path_factory.mktemp("models"), fheat.create_model("miniature", patch_size=(16, 16, 16))
    gated = fheat.instrument(network, PATTERNS, initial_strength=0.4, dims=3)
    gates_of(gated)["stem"].set_strength(0.0)
    fixed = fheat.instrument(network, "stem", initial_strength=0.4, alpha=0.7)
    saved = {"plain": network, "gated": fheat.retire(gated), "fixed": fixed}
    return {name: str(fheat.save(one, folder / name)) for name, one in saved.items()}


def started(scans, start, **network):
    values = {"data": str(scans), "labelled": 2, "patch_size": (16, 16, 16), "iterations": 2, "method": "supervised"}
    return make_settings(values | {"network": {"start": start, **network}})


def test_the_gates_of_the_model_are_those_of_the_run(scans, models, tmp_path):
    settings = started(scans, models["gated"])
    assert settings.network.instrument == tuple(sites(fheat.load(models["gated"])))
    run = Run(settings, tmp_path / "run")
    strengths = {site: run.step.gates[site].strength.item() for site in PUT_IN}
    assert strengths == pytest.approx({"stem": 0.0, "enc1.project": 0.4, "dec1.project": 0.4})
    assert run.trainer.prepared.start.changed == {"stem.gate": "stays closed, as in the model"}


def test_gates_are_put_into_a_model_without_them(scans, models, tmp_path):
    run = Run(started(scans, models["plain"], instrument=("stem",)), tmp_path / "run")
    assert run.trainer.prepared.start.fresh == ["stem.gate.theta", "stem.gate.delta"]
    assert run.step.gates["stem"].strength.item() == pytest.approx(0.03)
    expected = fheat.load(models["plain"]).state_dict()
    assert all(torch.equal(value, tensors(run)[name]) for name, value in expected.items())


def test_a_gate_that_settings_cannot_describe_is_refused(scans, models, tmp_path):
    with pytest.raises(BadInput, match=r"does not fit miniature: its gate at stem.gate"):
        Run(started(scans, models["fixed"]), tmp_path / "run")


def test_open_gates_are_not_left_out(scans, models, tmp_path):
    settings = started(scans, models["gated"], name="miniature")
    with pytest.raises(BadInput, match=r"the network of the run has no .*project.gate"):
        Run(settings, tmp_path / "run")


def test_further_gates_come_on_top_of_those_of_the_model(scans, models, tmp_path):
    settings = started(scans, models["gated"], instrument=("enc1.norm", "stem"), initial_strength=0.1)
    assert settings.network.instrument == (*sites(fheat.load(models["gated"])), "enc1.norm")
    run = Run(settings, tmp_path / "run")
    strengths = {site: run.step.gates[site].strength.item() for site in (*PUT_IN, "enc1.norm")}
    assert strengths == pytest.approx({"stem": 0.0, "enc1.project": 0.4, "dec1.project": 0.4, "enc1.norm": 0.1})


def test_a_strength_that_no_gate_would_begin_with_is_refused(scans, models, capsys):
    says = r"network.initial_strength: the gates of the model that the run starts from keep their strengths"
    with pytest.raises(BadInput, match=says):
        started(scans, models["gated"], initial_strength=0.1)
    assert main(["train", str(scans), "--from", models["gated"], "--network.initial-strength", "0.1"]) == 2
    assert "--network.initial-strength: the gates of the model that" in capsys.readouterr().err


def test_gates_that_begin_closed_are_told_to_be_closed_from_the_beginning(gated, tmp_path):
    """Strengths are logged after each update, so a line before the first one tells these gates apart."""
    settings = gated(**{"network.initial_strength": 0.0, "iterations": 3})
    run = Run(settings, tmp_path / "run")
    run.train()
    first = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert (first["iteration"], sorted(first["closed"])) == (0, sorted(PUT_IN))
    history = read_history(tmp_path / "run")
    assert {site: history.closed_at(site) for site in PUT_IN} == dict.fromkeys(PUT_IN, 0)
    assert all(history.closed_at(site) != 0 for site in OWN)
    section = allocation_section(history, allocation(run.step.model), "here").body
    assert "stem from the beginning" in section
    assert "stem at iteration" not in section
    assert "<td>the beginning</td>" in section
    assert "stem from the beginning" in strengths(history)
    lines = (tmp_path / "run" / "log.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "log.jsonl").write_bytes(b"".join(lines[1:]))  # as an earlier version wrote it
    assert read_history(tmp_path / "run").closed_at("stem") == 1


def test_a_run_of_open_gates_logs_nothing_before_its_first_iteration(gated, tmp_path):
    Run(gated(iterations=1), tmp_path / "run").train()
    assert "closed" not in (tmp_path / "run" / "log.jsonl").read_text()
