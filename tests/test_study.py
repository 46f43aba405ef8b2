"""The study of LA: page, stored runs and figures say the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fheat.studies.inside.figures import pictures
from fheat.studies.inside.record import read_analysis
from fheat.studies.pairing import agreement
from fheat.studies.perturbation import gates_after
from fheat.training.runs import read_history

ROOT = Path(__file__).parents[1]


def study(name):
    return read_history(ROOT / "benchmarks" / "runs" / f"la-4-{name}")


def test_study_page_has_the_numbers_of_the_stored_runs():
    page = (ROOT / "docs" / "study.md").read_text()
    text = page.replace("\n", " ").replace("  ", " ")
    outcomes = json.loads((ROOT / "benchmarks" / "results" / "la-4-study-cuda.json").read_text())["runs"]
    for name in ("base", "noise", "spike", "softplus"):
        record = study(name)
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        named = re.findall(r"\b((?:enc|dec)\d) (\d\.\d+)", row.split("|")[2])
        assert named == [(site, f"{record.steps[-1][f'D.{site}']:.3f}") for site in record.survivors]
        assert all(outcomes[name]["gates"][site]["closed_after"] is None for site in record.survivors)
        assert row.split("|")[3].strip() == f"{record.validations[-1].mean:.4f}"
        assert record.validations[-1].mean == pytest.approx(outcomes[name]["validation"]["4000"], abs=1e-4)
    probes = study("base").probes
    assert len(probes) == 11
    for site, at in (("enc1", 0), ("dec1", 0), ("enc1", 4000), ("dec1", 4000)):
        found = probes[at][site]
        assert f"{found.pairing:+.4f} +- {found.error:.4f}" in text
    assert sum(found.pairing > 0 for found in probes[20].values()) == 7
    left = {site: [probes[at][site].attenuation for at in (0, 4000)] for site in ("dec1", "enc1")}
    assert (
        f"dec1 leaves {left['dec1'][0]:.3f} of the gradient at the start and {left['dec1'][1]:.3f} at the end" in text
    )
    assert f"enc1 {left['enc1'][0]:.3f} to {left['enc1'][1]:.3f}" in text


def test_study_page_counts_signs_as_the_report_does():
    record = study("base")
    text = (ROOT / "docs" / "study.md").read_text()
    for words, sure in (("signs that agree with the end", 0.0), ("the same beyond two standard errors", 2.0)):
        counts = agreement(record, sure).values()
        assert f"| {words} | {' | '.join(f'{agreed} of {signs}' for agreed, signs in counts)} |" in text
    clear = {site: found.pairing / found.error for site, found in record.probes[4000].items()}
    assert [site for site, errors in clear.items() if abs(errors) > 2] == ["enc1", "dec1"]
    dec2 = record.probes[200]["dec2"]
    assert f"{dec2.pairing / dec2.error:.1f} standard errors" in text
    assert max(abs(found["dec4"].pairing) for at, found in record.probes.items() if at >= 800) < 1e-5


def test_study_page_tells_what_became_of_pushed_gates():
    text = (ROOT / "docs" / "study.md").read_text().replace("\n", " ")
    outcomes = json.loads((ROOT / "benchmarks" / "results" / "la-4-study-cuda.json").read_text())["runs"]
    noise, spike = ({gate.site: gate for gate in gates_after(study(name), 2000)} for name in ("noise", "spike"))
    reopened = [site for site, gate in noise.items() if gate.reopened]
    assert len(reopened) == 5
    assert [site for site in reopened if noise[site].reabsorbed] == ["enc2"]
    assert f"iteration {outcomes['noise']['gates']['enc2']['closed_after'] + 1:,} on" in text
    assert f"dec2 closes at {outcomes['base']['gates']['dec2']['closed_after'] + 1}" in text
    closed = [site for site, gate in spike.items() if gate.before == 0]
    assert closed == reopened
    assert all(spike[site].end == 0 for site in closed)
    assert f"open with D = {spike['enc1'].before:.2f} before" in text
    assert f"closed for good at {outcomes['spike']['gates']['enc1']['closed_after'] + 1:,}" in text
    assert study("softplus").survivors == ["dec1"]


def test_trained_networks_in_the_analyses():
    path = ROOT / "benchmarks" / "results" / "analysis-trained-cpu.json"
    said = pictures(read_analysis(path))[0].caption
    assert "35.5% (SD 1.0, 8 scans) lies above 0.6, where white noise has 54.2%" in said
    text = (ROOT / "docs" / "analyses.md").read_text().replace("**", "")
    pair, lengths = (
        json.loads((path.parent / f"analysis-{name}-cpu.json").read_text()) for name in ("trained", "lengths")
    )
    for stored, runs in ((pair, "pair"), (lengths, "short")):
        for network, (name, score) in zip(("fheat-seg", "light-unetr"), stored["validation_dice"].items(), strict=True):
            assert study(f"{runs}-{network}").validations[-1].mean == pytest.approx(score, abs=1e-4), name
            assert f"{score:.4f}" in text
    for row in (*pair["analysis"]["summary"][1:], *lengths["analysis"]["summary"]):
        share, inside = row["residual_share_above"], row["attention_share"]
        assert f"| {row['name']} | {100 * share['mean']:.1f} ({100 * share['sd']:.1f}) |" in text
        assert f"| {row['name']} | {100 * inside['mean']:.1f} ({100 * inside['sd']:.1f}) |" in text
    above, inside = (
        [row[name]["mean"] for row in pair["analysis"]["summary"][1:]]
        for name in ("residual_share_above", "attention_share")
    )
    short = [row["residual_share_above"]["mean"] for row in lengths["analysis"]["summary"][:2]]
    said = text.replace("\n", " ")
    assert f"the factor is {above[0] / above[1]:.1f}; after 240 iterations it was {short[0] / short[1]:.0f}" in said
    page = (ROOT / "docs" / "study.md").read_text().replace("\n", " ")
    assert f"{above[0]:.1%} lies above".replace("%", " %") in page
    assert f"for FHEAT-Seg and {above[1]:.1%} for Light-UNETR".replace("%", " %") in page
    assert f"the paper: {inside[0]:.1%} and {inside[1]:.1%}, chance".replace("%", " %") in page
    assert "Dice {:.4f} and {:.4f}".format(*pair["validation_dice"].values()) in page
    assert study("pair-fheat-seg").survivors == ["dec1"]
    settings = [study(f"pair-{network}").settings.model_dump() for network in ("fheat-seg", "light-unetr")]
    assert settings[0] | {"network": "light_unetr"} == settings[1]


def test_figures_are_those_of_the_stored_numbers(tmp_path):
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "figures.py"), "--out", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert len(drawn) == 15
    for name in drawn:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), name
    assert (tmp_path / "simulation.png").stat().st_size > 50_000
