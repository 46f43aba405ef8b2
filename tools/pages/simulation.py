"""The simulation of gates on plain signals (docs/evidence/simulation.md)."""

from typing import Any

from pages.common import span, stored, table


def simulation_summary() -> str:
    """Return the table of what the simulation shows beside the exact values and the paper's."""
    found = _simulation("simulation-cpu")
    even, planted, remark = found["interchangeable"], found["differentiated"], found["remark_3"]
    runs = planted["runs"]
    apart = max(abs(_planted(run, "D") - run["best"]) for run in runs)
    no_pairing = sum(value == 0 for run in runs for value in _idle(run, "pairing"))
    rows = [
        ["(a) mean D of eight interchangeable gates", _even(found, "mean"), f"{even['exact']:.4f}", "0.248"],
        [f"(a) their SD, over {len(even['runs'])} seeds", _even(found, "sd"), "0", "0.011"],
        [
            "(b) idle sites with pairing P = 0 exactly, before training",
            f"{no_pairing} of {planted['idle']}",
            "all",
            "all",
        ],
        ["(b) P at the planted site, before training", planted_pairings(), "", "about 1609"],
        [
            "(b) idle sites with D = 0 exactly, after it",
            f"{planted['idle_closed']} of {planted['idle']}",
            "all",
            "all",
        ],
        ["(b) D at the planted site, after it", planted_strengths(), f"best fit, within {apart:.1e}", "1.12"],
        [
            "(b) sites where the sign of P tells which survive",
            f"{planted['predicted']} of {planted['sites']}",
            "",
            "8 of 8",
        ],
        [
            "Remark 3: sum D^2, even split / one gate",
            f"{remark['even']:.4f} / {remark['concentrated']:.4f}",
            "the same",
            "0.20 / 6.35",
        ],
    ]
    return table(["", "measured", "exact", "paper"], rows)


def simulation_controls() -> str:
    """Return the table of the controls."""
    head = ["control", "(a) exact D", "mean D", "SD", "closed", "(b) planted D", "idle D", "idle at 0", "sign right"]
    rows = []
    for name, control in _simulation("simulation-cpu")["controls"].items():
        even, planted = control.get("interchangeable"), control.get("differentiated")
        cells = [name, *([""] * 8)]
        if even:
            shares = [_even(control, field) for field in ("mean", "sd")]
            cells[1:5] = [f"{even['exact']:.4f}", *shares, _of(even, "closed", "gates")]
        if planted:
            idle = [planted["smallest_idle"], planted["largest_idle"]]
            cells[5:] = [
                span((_planted(run, "D") for run in planted["runs"]), ".3f"),
                "0" if idle[1] == 0 else span(idle, ".1e"),
                _of(planted, "idle_closed", "idle"),
                _of(planted, "predicted", "sites"),
            ]
        rows.append(cells)
    return table(head, rows)


def planted_pairings() -> str:
    """Return the span of P at the planted site."""
    runs = _simulation("simulation-cpu")["differentiated"]["runs"]
    return span((_planted(run, "pairing") for run in runs), ".0f")


def planted_strengths() -> str:
    """Return the span of D at the planted site after training."""
    return span((_planted(run, "D") for run in _simulation("simulation-cpu")["differentiated"]["runs"]), ".3f")


def simulated_sd(result: str, control: str = "", field: str = "sd") -> str:
    """Return the span of the SD of interchangeable gates, at the end (`sd`) or the start (`start_sd`)."""
    found = _simulation(result)
    return _even(found["controls"][control] if control else found, field)


def _simulation(name: str) -> dict[str, Any]:
    return dict(stored(name)["simulation"])


def _even(found: dict[str, Any], field: str) -> str:
    return span((run[field] for run in found["interchangeable"]["runs"]), ".4f")


def _of(found: dict[str, Any], part: str, whole: str) -> str:
    return f"{found[part]} of {found[whole]}"


def _planted(run: dict[str, Any], field: str) -> float:
    return float(run[field][run["planted"] - 1])


def _idle(run: dict[str, Any], field: str) -> list[float]:
    return [value for site, value in enumerate(run[field], start=1) if site != run["planted"]]
