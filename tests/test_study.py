"""The study of LA: stored runs, outcomes and figures say the same, and its statements hold."""

import figures
import pytest
from results import ROOT, RUNS, read_result

from fheat.studies.inside.figures import pictures
from fheat.studies.inside.record import read_analysis
from fheat.studies.perturbation import gates_after
from fheat.training.runs import read_history


def study(name):
    return read_history(RUNS / f"la-4-{name}")


def outcomes(name):
    return read_result("la-4-study-cuda").results["runs"][name]


@pytest.mark.parametrize("name", ["base", "noise", "spike", "softplus"])
def test_stored_runs_and_outcomes_are_those_of_the_same_runs(name):
    record = study(name)
    assert all(outcomes(name)["gates"][site]["closed_after"] is None for site in record.survivors)
    assert record.validations[-1].mean == pytest.approx(outcomes(name)["validation"]["4000"], abs=1e-4)


def test_what_the_page_says_of_the_probes():
    record = study("base")
    assert len(record.probes) == 11
    assert sum(probe.pairing > 0 for probe in record.probes[20].values()) == 7
    start, end = record.probes[0], record.probes[4000]
    assert {site for site, probe in start.items() if probe.pairing < -2 * probe.error} == {"enc1", "dec1"}
    clear = {site: probe.pairing / probe.error for site, probe in end.items()}
    assert [site for site, errors in clear.items() if abs(errors) > 2] == ["enc1", "dec1"]
    assert max(abs(probe["dec4"].pairing) for at, probe in record.probes.items() if at >= 800) < 1e-5


def test_what_the_page_says_of_perturbed_gates():
    noise, spike = ({gate.site: gate for gate in gates_after(study(name), 2000)} for name in ("noise", "spike"))
    reopened = [site for site, gate in noise.items() if gate.reopened]
    assert len(reopened) == 5
    assert [site for site in reopened if noise[site].reabsorbed] == ["enc2"]
    closed = [site for site, gate in spike.items() if gate.before == 0]
    assert closed == reopened
    assert all(spike[site].end == 0 for site in closed)
    assert study("softplus").survivors == ["dec1"]


def test_trained_networks_in_the_analyses():
    path = ROOT / "benchmarks" / "results" / "analysis-trained-cpu.json"
    caption = pictures(read_analysis(path))[0].caption
    assert "35.5% (SD 1.0, 8 scans) lies above 0.6, where white noise has 54.2%" in caption
    for result, runs in (("trained", "pair"), ("lengths", "short")):
        scores = read_result(f"analysis-{result}-cpu").results["validation_dice"]
        for network, (name, score) in zip(("fheat-seg", "light-unetr"), scores.items(), strict=True):
            assert study(f"{runs}-{network}").validations[-1].mean == pytest.approx(score, abs=1e-4), name
    assert study("pair-fheat-seg").survivors == ["dec1"]
    first, second = (study(f"pair-{network}").settings.model_dump() for network in ("fheat-seg", "light-unetr"))
    assert first | {"network": first["network"] | {"name": "light_unetr"}} == second


@pytest.mark.slow
def test_figures_are_those_of_the_stored_numbers(tmp_path):
    figures.main(out=tmp_path)
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert len(drawn) == 20
    for name in drawn:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), name
    assert (tmp_path / "simulation.png").stat().st_size > 50_000
