"""The study of LA: page, stored runs and figures say the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fheat.report.pairing import agreement
from fheat.report.perturbation import after
from fheat.report.record import read_record

ROOT = Path(__file__).parents[1]


def study(name):
    return read_record(ROOT / "benchmarks" / "runs" / f"la-4-{name}")


def test_study_page_has_the_numbers_of_the_stored_runs():
    text = (ROOT / "docs" / "study.md").read_text().replace("\n", " ").replace("  ", " ")
    outcomes = json.loads((ROOT / "benchmarks" / "results" / "la-4-study-cuda.json").read_text())["runs"]
    for name in ("base", "noise", "spike", "softplus"):
        record = study(name)
        for site in record.survivors:
            assert f"{site} {record.steps[-1][f'D.{site}']:.3f}" in text, (name, site)
            assert outcomes[name]["gates"][site]["closed_after"] is None
        assert f"{record.validations[-1].mean:.4f}" in text
        assert record.validations[-1].mean == pytest.approx(outcomes[name]["validation"]["4000"], abs=1e-4)
    probes = study("base").probes
    assert len(probes) == 11
    for site, at in (("enc1", 0), ("dec1", 0), ("enc1", 4000), ("dec1", 4000)):
        found = probes[at][site]
        assert f"{found.pairing:+.4f} +- {found.error:.4f}" in text
    assert f"dec1 (+{probes[20]['dec1'].pairing:.3f}) and enc1 (+{probes[20]['enc1'].pairing:.3f})" in text
    assert sum(found.pairing > 0 for found in probes[20].values()) == 7
    left = {site: [probes[at][site].attenuation for at in (0, 4000)] for site in ("dec1", "enc1")}
    assert (
        f"dec1 leaves {left['dec1'][0]:.3f} of the gradient at the start and {left['dec1'][1]:.3f} at the end" in text
    )
    assert f"enc1 {left['enc1'][0]:.3f} to {left['enc1'][1]:.3f}" in text


def test_study_page_counts_signs_as_the_report_does():
    record = study("base")
    signs, sure = agreement(record), agreement(record, sure=2.0)
    assert (signs[0], signs[4000]) == ((6, 8), (4, 8))
    assert [sure[at] for at in (0, 1600, 2400, 3200, 4000)] == [(0, 2), (2, 2), (2, 2), (2, 2), (2, 2)]
    last = {site: abs(found.pairing) > 2 * found.error for site, found in record.probes[4000].items()}
    assert [site for site, clear in last.items() if clear] == ["enc1", "dec1"]


def test_study_page_tells_what_became_of_pushed_gates():
    noise, spike = ({gate.site: gate for gate in after(study(name), 2001)} for name in ("noise", "spike"))
    reopened = [site for site, gate in noise.items() if gate.reopened]
    assert len(reopened) == 5
    assert [site for site in reopened if noise[site].reabsorbed] == ["enc2"]
    assert noise["enc2"].closed_at == 2120
    closed = [site for site, gate in spike.items() if gate.before == 0]
    assert closed == reopened
    assert all(spike[site].end == 0 for site in closed)
    assert spike["enc1"].before > 0.2
    assert spike["enc1"].closed_at == 2075
    alone = study("softplus")
    assert alone.survivors == ["dec1"]


def test_trained_networks_in_the_analyses():
    stored = json.loads((ROOT / "benchmarks" / "results" / "analysis-trained-cpu.json").read_text())["analysis"]
    text = (ROOT / "docs" / "analyses.md").read_text()
    for row in stored["summary"][1:]:
        share, inside = row["residual_share_above"], row["attention_share"]
        assert f"| {row['name']} | {100 * share['mean']:.1f} ({100 * share['sd']:.1f}) |" in text
        assert f"| {row['name']} | {100 * inside['mean']:.1f} ({100 * inside['sd']:.1f}) |" in text


def test_figures_are_those_of_the_stored_numbers(tmp_path):
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "figures.py"), "--out", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert len(drawn) == 16
    for name in drawn:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), name
    assert (tmp_path / "simulation.png").stat().st_size > 50_000
