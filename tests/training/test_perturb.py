"""Runs that are looked at or pushed: a probe changes nothing, noise opens closed gates, a spike raises the rate."""

import json
from types import SimpleNamespace

import pytest
import torch

from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from fheat.report.write import write_report
from fheat.system.errors import BadInput
from fheat.training import probing
from fheat.training.checkpoints import Checkpoint, check_same_run
from fheat.training.optimiser import Schedule, Spike
from fheat.training.probing import Probes, measure_pairings
from fheat.training.run_folder import RunFolder
from fheat.training.step import Step
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, settings_of


def reopened(gates, scale, seed):
    """Open gates as a step does that has them."""
    return Step.reopen_gates(SimpleNamespace(gates=gates, _drop_graph=lambda: None), scale, seed)


def lines(run, key):
    found = map(json.loads, (run.folder.path / "log.jsonl").read_text().splitlines())
    return [line for line in found if key in line]


def weights(run):
    return torch.cat([parameter.detach().flatten() for parameter in run.step.model.parameters()])


@pytest.mark.parametrize("method", ["cse", "supervised"])
def test_probing_changes_nothing(config, whole_run, tmp_path, method):
    plain = whole_run(config(method=method))
    looked = Run(config(method=method, probe_at=(0, 3, 6), probe_batches=2), tmp_path / "looked", device="cpu")
    looked.train()
    assert torch.equal(weights(plain), weights(looked))
    assert torch.equal(plain.step.history, looked.step.history)
    found = lines(looked, "probe")
    assert [line["iteration"] for line in found] == [0, 3, 6]
    for line in found:
        assert set(line["probe"]) == set(looked.step.gates)
        for site, measured in line["probe"].items():
            assert (measured["pairing"] != 0) == (measured["error"] > 0) == (site != "enc2")  # of one voxel
            closed = any(
                step["iteration"] == line["iteration"] and step[f"D.{site}"] == 0 for step in lines(looked, "D.enc1")
            )
            assert (measured["attenuation"] == 1.0) == closed
    assert found[0]["probe"] != found[2]["probe"]


def test_the_same_batches_at_every_look(config, tmp_path):
    run = Run(config(probe_at=(1,), probe_batches=2), tmp_path / "run", device="cpu")
    assert measure_pairings(run.trainer) == measure_pairings(run.trainer)


def test_a_probe_before_the_first_iteration_is_logged_once(config, tmp_path):
    settings = config(
        probe_at=(0, 2), probe_batches=1, checkpoint_every=100, iterations=3, method="supervised", batch=1
    )
    run = Run(settings, tmp_path / "run", device="cpu")
    Probes(run.folder).begin(run.trainer)
    again = Run(settings, tmp_path / "run", resume=True, device="cpu")
    again.train()
    assert [line["iteration"] for line in lines(again, "probe")] == [0, 2]


def test_noise_opens_what_was_closed_and_nothing_else():
    gates = {name: FractionalHeat(initial_strength=start) for name, start in (("a", 0.0), ("b", 0.5), ("c", 0.0))}
    gates["d"] = FractionalHeat(strength=0.0)
    gates["a"].sleep()
    opened = reopened(gates, 0.3, 1)
    assert set(opened) == {"a", "c"}
    assert all(0 < strength == pytest.approx(gates[site].strength.item()) for site, strength in opened.items())
    assert not gates["a"].asleep
    assert gates["b"].strength.item() == 0.5
    assert reopened(gates, 0.3, 1) == {}


def test_noise_is_half_a_normal_distribution():
    gates = {str(index): FractionalHeat(initial_strength=0.0) for index in range(2000)}
    values = torch.tensor(list(reopened(gates, 0.3, 0).values()))
    assert values.mean() == pytest.approx(0.3 * (2 / torch.pi) ** 0.5, rel=0.05)
    assert values.square().mean().sqrt() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("at", [1, 3])
def test_a_run_with_noise_goes_on_as_one_that_was_not_interrupted(config, tmp_path, at):
    """The cut run ends after its first iteration, which is also where the noise of one of the two comes."""
    settings = config(noise_at=at, checkpoint_every=3, method="supervised", batch=1)

    def closed_from_the_start(name):
        run = Run(settings, tmp_path / name, device="cpu")  # seeds the generators
        for gate in gates_of(run.step.model).values():
            gate.set_strength(0.0)
        return run

    whole = closed_from_the_start("whole")
    whole.train()
    cut = closed_from_the_start("cut")
    cut.stop()
    with pytest.raises(Stopped):
        cut.train()
    assert cut.done == 1
    resumed = Run(settings, tmp_path / "cut", resume=True, device="cpu")
    resumed.train()
    assert torch.equal(weights(whole), weights(resumed))
    strengths = {line["iteration"]: line["D.enc1"] for line in lines(whole, "D.enc1")}
    assert strengths[at] == 0
    assert strengths[at + 1] > 0


def test_a_spike_multiplies_the_rate_for_a_while(config, tmp_path):
    plain, spiked = (
        [schedule.factor(torch.tensor(n)).item() for n in range(100)]
        for schedule in (Schedule(100, 20), Schedule(100, 20, Spike(50, 7, 10.0)))
    )
    ratio = [after / before for before, after in zip(plain, spiked, strict=True)]
    assert ratio == pytest.approx([10.0 if 50 <= n < 57 else 1.0 for n in range(100)])
    run = Run(config(spike_at=3, spike_for=2, spike=10.0, method="supervised", batch=1), tmp_path / "run", device="cpu")
    run.train()
    rates = [line["rate"] for line in lines(run, "rate")]
    expected = [Schedule(6, 2).factor(torch.tensor(n)).item() for n in range(6)]
    assert rates == pytest.approx([value * (10 if n in (3, 4) else 1) for n, value in enumerate(expected)])


@pytest.mark.parametrize(("field", "last"), [("noise_at", 9), ("spike_at", 9), ("probe_at", 10)])
def test_beyond_the_end_is_refused(field, last):
    def settings(at):
        return {"data": "x", "iterations": 10, field: [at] if field == "probe_at" else at}

    settings_of(**settings(last))
    with pytest.raises(BadInput, match=f"{field}: {last + 1} comes too late in 10 iterations, at most {last} does"):
        settings_of(**settings(last + 1))


def test_a_probe_that_fails_does_not_end_the_run(config, tmp_path, monkeypatch):
    def broken(*args, **options):
        raise ValueError("the gradient at enc1 is not finite")

    monkeypatch.setattr(probing, "probe", broken)
    run = Run(
        config(probe_at=(2,), probe_batches=1, iterations=3, method="supervised", batch=1),
        tmp_path / "run",
        device="cpu",
    )
    run.train()
    assert [line["probe"] for line in lines(run, "probe")] == [{}]
    assert "P > 0: the loss falls" in write_report(tmp_path / "run", scans=0).read_text().replace("&gt;", ">")


def test_probes_need_gates(config, larger_scans, tmp_path):
    with pytest.raises(BadInput, match="is for networks with gates, not segresnet"):
        Run(
            config(probe_at=(2,), network="segresnet", patch_size=(32, 32, 32), data=str(larger_scans)),
            tmp_path / "run",
        )


OLD = {
    "data": "", "method": "cse", "labelled": 2, "network": "miniature", "network_options": {},
    "patch_size": [16, 16, 16], "box": "unlabelled", "ramp": 0, "batch": 2, "iterations": 6, "warm_up": 2,
    "rate": 0.01, "theta_rate": 1.0, "delta_rate": 1.0, "rational_rate": 0.05, "weight_decay": 0.0001, "clip": 1.0,
    "intensity": "zscore", "spacing": None, "stride": None, "validate_every": 4, "checkpoint_every": 2, "seed": 0,
    "resident": "auto", "precision": "bf16", "deterministic": False,
}  # fmt: skip
"""What a checkpoint held before there were perturbations, and sections."""


def test_a_run_from_before_there_were_perturbations_goes_on(config, tmp_path):
    settings = config(regions="no")
    run = Run(settings, tmp_path / "run", device="cpu")
    run.stop()
    with pytest.raises(Stopped):
        run.train()
    facts = {"settings": OLD | {"data": settings.data.folder}}
    folder = RunFolder(tmp_path / "run")
    check_same_run(folder, settings, {}, Checkpoint(1, {}, facts))
    with pytest.raises(BadInput, match=r"another research\.noise_at"):
        check_same_run(folder, config(noise_at=3, regions="no"), {}, Checkpoint(1, {}, facts))
    check_same_run(folder, config(probe_at=(3,), regions="no"), {}, Checkpoint(1, {}, facts))
