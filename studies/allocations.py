"""Count what became of the gates in every stored run on LA with 4 labels: `python studies/allocations.py`.

It reads `la-4-cuda.json`, `la-4-fused-cuda.json`, `la-4-command-cuda.json`, `la-4-command-earlier-cuda.json`,
`la-4-study-cuda.json`, `probe-la-4-cpu.json` and the logs in `studies/runs`, and needs no network and no scans.
"""

import json
from itertools import pairwise
from typing import Any

from record import RUNS, read_result, write_result

from fheat.studies.perturbation import gates_after
from fheat.training.runs import RunHistory, read_history

LONG = {
    "la-4-cuda": ("seed0-16000",),
    "la-4-fused-cuda": ("fused-seed0", "fused-seed1", "earlier-fused-seed0", "plain-seed0"),
    "la-4-command-cuda": ("seed0", "seed1", "seed2"),
    "la-4-command-earlier-cuda": ("seed0",),
}
"""Runs of 16,000 iterations with the default settings."""
SHORT = {"la-4-cuda": ("seed1", "seed2", "seed3"), "la-4-study-cuda": ("base",)}
"""Runs of 4,000 iterations with the default settings."""
FINAL = "dec1"
"""The stage that the paper calls Block_Final."""
CERTAIN = 2.0
"""Number of standard errors from which on the sign of a pairing counts as certain."""

Gates = dict[str, dict[str, Any]]


def at_the_end(runs: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Count open gates at the end of runs; give the ranges of D and alpha of the final block and of closed gates."""
    gates: dict[str, Gates] = {
        f"{result}: {name}": read_result(result).results["runs"][name]["gates"]
        for result, names in runs.items()
        for name in names
    }
    opened = {
        run: [site for site, gate in sites.items() if gate["closed_after"] is None] for run, sites in gates.items()
    }
    closed = [gate for sites in gates.values() for gate in sites.values() if gate["closed_after"] is not None]
    final = [sites[FINAL] for sites in gates.values()]
    return {
        "runs": len(gates),
        "exactly_one_open": sum(len(sites) == 1 for sites in opened.values()),
        "final_block_open": sum(FINAL in sites for sites in opened.values()),
        "open": opened,
        "final_block_D": _range(gate["D"] for gate in final),
        "final_block_alpha": _range(gate["alpha"] for gate in final),
        "closed_gates_alpha": _range(gate["alpha"] for gate in closed),
        "closed_after": _range(gate["closed_after"] for gate in closed),
    }


def _range(values: Any) -> dict[str, float]:
    every = list(values)
    return {"least": min(every), "largest": max(every)}


def signs(history: RunHistory) -> dict[str, Any]:
    """Count the signs of P before the first iteration and after the last, beside the gates that are open at the end."""
    counted = {}
    for name, probe in (("start", history.probes[0]), ("end", history.probes[history.done])):
        counted[name] = {
            "positive": sum(at.pairing > 0 for at in probe.values()),
            "negative": sum(at.pairing < 0 for at in probe.values()),
            "certain": sum(abs(at.pairing) > CERTAIN * at.error for at in probe.values()),
            "certain_and_as_the_end": sum(
                (at.pairing > 0) == (site in history.survivors)
                for site, at in probe.items()
                if abs(at.pairing) > CERTAIN * at.error
            ),
            "final_block": probe[FINAL].pairing,
        }
    return {"open_at_the_end": len(history.survivors), **counted}


def zoo_signs() -> dict[str, Any]:
    """Count the signs of P at the gates of la-4, and compare closed gates with the final block."""
    gates = {gate["site"]: gate for gate in read_result("probe-la-4-cpu").results["gates"]}
    closed = [abs(gate["pairing"]) for gate in gates.values() if gate["D"] == 0]
    return {
        "positive": sum(gate["pairing"] > 0 for gate in gates.values()),
        "negative": sum(gate["pairing"] < 0 for gate in gates.values()),
        "open": sum(gate["D"] > 0 for gate in gates.values()),
        "final_block": gates[FINAL]["pairing"],
        "final_block_error": gates[FINAL]["error"],
        "final_block_attenuation": gates[FINAL]["attenuation"],
        "largest_closed_over_final_block": max(closed) / gates[FINAL]["pairing"],
    }


def growth(history: RunHistory) -> dict[str, Any]:
    """Return D of the final block in the first and last logged iteration, and in how many steps it fell."""
    values = [step[f"D.{FINAL}"] for step in history.steps]
    return {
        "first": values[0],
        "last": values[-1],
        "steps": len(values) - 1,
        "falling": sum(after < before for before, after in pairwise(values)),
    }


def attenuation(history: RunHistory) -> dict[str, float]:
    """Return what the final block leaves of the gradient at the start and the end, and the least of a closed gate."""
    start, end = history.probes[0], history.probes[history.done]
    closed = [at.attenuation for site, at in end.items() if site not in history.survivors]
    return {"start": start[FINAL].attenuation, "end": end[FINAL].attenuation, "least_closed": min(closed)}


def perturbed(name: str) -> dict[str, Any]:
    """Count the gates that were closed before the perturbation after iteration 2,000, and what became of them."""
    history = read_history(RUNS / f"la-4-{name}")
    gates = [gate for gate in gates_after(history, 2000) if gate.before == 0]
    return {
        "closed_before": len(gates),
        "opened": sum(gate.reopened for gate in gates),
        "closed_at_the_end": sum(gate.end == 0 for gate in gates),
        "last_dice": history.validations[-1].mean,
    }


def count() -> dict[str, Any]:
    """Return all counts."""
    base = read_history(RUNS / "la-4-base")
    return {
        "long_runs": at_the_end(LONG),
        "short_runs": at_the_end(SHORT),
        "signs": signs(base),
        "zoo_signs": zoo_signs(),
        "growth": growth(base),
        "attenuation": attenuation(base),
        "base_last_dice": base.validations[-1].mean,
        "noise": perturbed("noise"),
        "spike": perturbed("spike"),
    }


def main() -> None:
    results = count()
    print(json.dumps(results, indent=1))
    write_result(
        "allocations",
        title="What became of the gates in the stored runs on LA with 4 labels, counted",
        command="python studies/allocations.py",
        seed=None,
        settings={"runs": {"long": LONG, "short": SHORT, "logs": ["la-4-base", "la-4-noise", "la-4-spike"]}},
        results=results,
    )


if __name__ == "__main__":
    main()
