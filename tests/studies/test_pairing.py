"""Probes in a log: parsed as they are, drawn, and compared with what became of the gates."""

import math

import pytest

from fheat.report.gates import probes_section
from fheat.studies.pairing import agreement, attenuation_figure, pairing_figure, prediction_sentence
from fheat.training.runs import ProbeAt, RunHistory, read_history
from tests.report.test_report import Reader, probe, write_lines
from tests.training.helpers import settings_of

SITES = ("enc1", "enc2", "dec1")


def at(pairing, attenuation=1.0, error=math.nan):
    return ProbeAt(pairing, error, 0.0, math.nan, attenuation)


def record(tmp_path, probes):
    """enc1 closes at 2, enc2 at 3, dec1 survives four iterations."""
    ends = {"enc1": (0.1, 0, 0, 0), "enc2": (0.1, 0.1, 0, 0), "dec1": (0.1, 0.2, 0.3, 0.4)}
    steps = [
        {"iteration": n + 1, "total": 1.0, **{f"D.{site}": ends[site][n] for site in SITES}}
        | {f"alpha.{site}": 0.5 for site in SITES}
        for n in range(4)
    ]
    return RunHistory(tmp_path, settings_of(data="scans", iterations=4), steps, [], {}, probes)


def test_a_probe_is_read_as_it_is_written(run):
    step = {"iteration": 1, "total": 1.0, "D.x": 1.0, "alpha.x": 0.5}
    later = probe(pairing=-2, error=math.nan, attenuation=None) | {"iteration": 1}
    write_lines(run, later, step, probe())
    found = read_history(run).probes
    assert list(found) == [0, 1]
    assert found[0]["x"].pairing == 1.0
    assert math.isnan(found[0]["x"].slope_error)
    assert found[1]["x"].pairing == -2.0
    assert math.isnan(found[1]["x"].error)
    assert math.isnan(found[1]["x"].attenuation)
    assert read_history(run).losses == ["total"]


def test_agreement_counts_signs_that_told_the_end(tmp_path):
    probes = {
        0: dict(zip(SITES, map(at, (1e-3, -1.0, 2.0)), strict=True)),
        2: dict(zip(SITES, map(at, (-1e-3, -1.0, 2.0)), strict=True)),
        4: dict(zip(SITES, map(at, (0.0, math.nan, -2.0)), strict=True)),
    }
    found = record(tmp_path, probes)
    assert found.survivors == ["dec1"]
    assert agreement(found) == {0: (2, 3), 2: (3, 3), 4: (0, 1)}
    assert prediction_sentence(found) == (
        "At iteration 0 the sign of the pairing P agrees with the last state of 2 of 3 gates (enc1 has P = +1.00e-03 "
        "and is closed); at 4 with that of 0 of 1. P > 0: the loss falls when the gate opens."
    )
    sure = {0: dict(zip(SITES, (at(1.0, error=0.4), at(1.0, error=0.6), at(-1.0, error=0.1)), strict=True))}
    found = record(tmp_path, sure)
    assert agreement(found, beyond_errors=2.0) == {0: (0, 2)}
    assert Reader(probes_section(found).body).tables[0][-2:] == [
        ["signs that agree", "", "0 of 3"],
        ["beyond 2 errors", "", "0 of 2"],
    ]


def test_captions_have_the_numbers(tmp_path):
    probes = {
        0: dict(zip(SITES, (at(-1.0, 0.9), at(-1.0, 0.9), at(2.0, 0.472, 0.5)), strict=True)),
        3: dict(zip(SITES, (at(-1.0), at(-1.0), at(2.0, 0.111, 0.5)), strict=True)),
    }
    deepens = "dec1 deepens from 0.4720 at iteration 0 to 0.1110 at 3"
    found = record(tmp_path, probes)
    assert f"{deepens}; closed gates hold at exactly 1." in attenuation_figure(found)
    assert "at iteration 3: enc1 -1.00e+00, enc2 -1.00e+00, dec1 +2.00e+00." in pairing_figure(found)
    probes[4] = {"enc1": at(-1.0, 0.999)}
    assert f"{deepens}; closed gates lie between 0.999000 and 1.000000." in attenuation_figure(record(tmp_path, probes))
    body = Reader(probes_section(record(tmp_path, probes)).body)
    assert body.tables[0] == [
        ["site", "state", "P at 0", "P at 3", "P at 4"],
        ["enc1", "closed", "-1.00e+00", "-1.00e+00", "-1.00e+00"],
        ["enc2", "closed", "-1.00e+00", "-1.00e+00", ""],
        ["dec1", "open", "+2.00e+00 ± 5.0e-01", "+2.00e+00 ± 5.0e-01", ""],
        ["signs that agree", "", "3 of 3", "3 of 3", "1 of 1"],
        ["beyond 2 errors", "", "1 of 1", "1 of 1", ""],
    ]


@pytest.mark.parametrize("value", [0.0, math.nan, 1e-30, -1e30, math.inf])
def test_any_number_can_be_drawn(tmp_path, value):
    found = record(tmp_path, {0: {site: at(value, value, value) for site in SITES}})
    assert Reader(probes_section(found).body).tags.count("svg") == 2
    assert record(tmp_path, {0: {}}).probes == {0: {}}
    probes_section(record(tmp_path, {0: {}}))
