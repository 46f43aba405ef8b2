"""Count parameters and multiply-adds of every network at two patch sizes: `python studies/sizes.py`.

The counts are those of `fheat models`: one input channel, two classes, fvcore's rules. `open` includes the transforms
of all gates, `closed` leaves them out; a network without gates has the same number twice. `fourier` is what Fourier
transforms outside of gates would add, which fvcore does not count. `published` has the counts of `fheat models --cost`,
beside those of the paper.
"""

from record import write_result

import fheat
from fheat.experiments.items.cost import compared, cost_rows

PATCHES = ((112, 112, 80), (96, 96, 96))


def counts(name: str, patch: tuple[int, int, int]) -> dict[str, int]:
    counted = fheat.cost(fheat.create_model(name, patch_size=patch))
    gates = {"open": counted.macs, "closed": counted.rest}
    return {"parameters": counted.parameters, **gates, "fourier": counted.fourier}


def main() -> None:
    networks = {
        name: {"x".join(map(str, patch)): counts(name, patch) for patch in PATCHES} for name in fheat.list_models()
    }
    for name, row in networks.items():
        print(name, row, flush=True)
    published = {"x".join(map(str, patch)): [compared(row) for row in cost_rows(patch)] for patch in PATCHES}
    write_result(
        "sizes",
        title="Parameters and multiply-adds of every network at two patch sizes",
        command="python studies/sizes.py",
        seed=None,
        settings={"channels": 1, "classes": 2, "counter": "fvcore's rules, as `fheat models` prints them"},
        results={"networks": networks, "published": published},
    )


if __name__ == "__main__":
    main()
