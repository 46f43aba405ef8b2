"""Measure every claim of the paper that needs no training and no data: `python studies/theory.py`, ten seconds.

The numbers are those of the docstrings in `theory_operator.py`, `theory_gradient.py` and `theory_network.py`, each with
the claims of docs/evidence/evidence.md that it tests.
"""

import json
from types import ModuleType
from typing import Any

import theory_gradient
import theory_network
import theory_operator
import torch
from record import write_result

SEED = 0
MEASURES = {
    theory_operator: (
        "heat_flow", "start", "identity", "rounding", "norm", "monotonicity", "transform_cost", "semigroup", "tikhonov",
        "shape",
    ),
    theory_gradient: (
        "first_variation", "sign", "absorption", "left_closed", "slope_at_zero", "even_split", "lock",
    ),
    theory_network: ("architecture", "stage_collapse", "mirrored_grids", "attention", "splits", "zoo_responses"),
}  # fmt: skip


def measure() -> dict[str, Any]:
    """Return what every function measured, by its name."""
    return {name: _measured(module, name) for module, names in MEASURES.items() for name in names}


def _measured(module: ModuleType, name: str) -> Any:
    torch.manual_seed(SEED)
    return getattr(module, name)()


def main() -> None:
    results = measure()
    print(json.dumps(results, indent=1))
    write_result(
        "theory-cpu",
        title="Theorems and counts of the paper that need no training, each measured against a definition",
        command="python studies/theory.py",
        seed=SEED,
        settings={"precision": "float64, except rounding, identity, stage_collapse and attention"},
        results=results,
    )


if __name__ == "__main__":
    main()
