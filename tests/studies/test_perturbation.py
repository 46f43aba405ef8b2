"""After a perturbation: which gates opened, which went back to exactly zero, and what validation made of it."""

import math

import pytest

from fheat.report.curves import losses, orders, strengths, validation
from fheat.report.gates import perturbation_section
from fheat.studies.perturbation import GateAfter, gates_after, perturbation_marks
from fheat.training.runs import RunHistory, ValidationScore
from tests.report.test_report import Reader
from tests.training.helpers import settings_of

# D in iterations 1 to 6; iteration 4 is disturbed.
STRENGTHS = {
    "back": (0.1, 0, 0, 0.3, 0.1, 0),
    "stays": (0.1, 0, 0, 0.3, 0.35, 0.4),
    "held": (0.1, 0, 0, 0, 0, 0),
    "later": (0.1, 0, 0, 0, 0, 0.1),
    "open": (0.1, 0.2, 0.3, 0.5, 0.6, 0.7),
    "shut": (0.1, 0.2, 0.3, 0.5, 0, 0),
}


@pytest.fixture
def record(tmp_path):
    steps = [
        {"iteration": n + 1, "total": 1.0}
        | {f"D.{site}": float(values[n]) for site, values in STRENGTHS.items()}
        | {f"alpha.{site}": 0.5 for site in STRENGTHS}
        for n in range(6)
    ]
    scores = [
        ValidationScore(iteration, mean, {"a": mean}) for iteration, mean in ((2, 0.9026), (4, 0.85), (6, 0.8722))
    ]
    return RunHistory(tmp_path, settings_of(data="scans", iterations=6), steps, scores, {})


def test_every_gate_before_right_after_and_at_the_end(record):
    found = {gate.site: gate for gate in gates_after(record, 3)}
    for site, values in STRENGTHS.items():
        gate = found[site]
        assert (gate.before, gate.right_after, gate.end) == (values[2], values[3], values[5])
        assert gate.reopened == (site in ("back", "stays"))
        assert gate.reabsorbed == (site == "back")
    assert {site: gate.outcome for site, gate in found.items()} == {
        "back": "back at exactly 0 from 6 on",
        "stays": "stays open",
        "held": "stays at exactly 0",
        "later": "opened later",
        "open": "was open, is open",
        "shut": "closed at 5",
    }


def test_at_the_edges_of_the_log(record):
    assert gates_after(record, 6) == []
    assert "has not come that far" in perturbation_section(record, (6, "noise")).body
    first = gates_after(record, 0)[0]
    assert math.isnan(first.before)
    assert first == GateAfter("back", first.before, 0.1, 0.0, 6)
    assert not first.reopened
    assert "No gate was closed before." in perturbation_section(record, (0, "noise")).body


def test_words_and_table(record):
    section = perturbation_section(record, (3, "noise 0.3"))
    assert section.title == "Perturbed after iteration 3: noise 0.3"
    reader = Reader(section.body)
    assert "2 of 4 closed gates opened, 1 of them went back to exactly D = 0." in reader.text
    said = "0.9026 before (iteration 2), 0.8500 the first after (iteration 4), 0.8722 at the end (iteration 6)."
    assert f"Validation Dice: {said}" in reader.text
    assert reader.tables[0][1] == ["back", "0", "0.3000", "0", "back at exactly 0 from 6 on"]
    assert "0 of 4 closed gates opened, all held at exactly D = 0." in perturbation_section(record, (2, "spike")).body


def test_marks_are_drawn_and_named(record):
    for draw in (losses, validation, strengths, orders):
        plain, marked = draw(record), draw(record, [(4, "noise <0.3>")])
        assert "noise" not in plain
        assert "noise &lt;0.3&gt;</text>" in marked
        assert Reader(marked).tags.count("figcaption") == 1


def test_marks_of_the_settings():
    assert perturbation_marks(settings_of(data="x").research) == []
    assert perturbation_marks(settings_of(data="x", noise_at=8000).research) == [(8000, "noise 0.3")]
    both = settings_of(data="x", noise_at=8000, spike_at=6000, spike_for=200)
    assert perturbation_marks(both.research) == [(6000, "rate x 10 for 200"), (8000, "noise 0.3")]
