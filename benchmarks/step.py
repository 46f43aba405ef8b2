"""Time CSE iterations, fused and by plain PyTorch, and compare their losses: `python benchmarks/step.py --data LA`.

`--network` names another network than fheat_seg, `--steps` another number of iterations than a hundred, `--patch` other
patches. On a CPU, where there is nothing to capture and nothing fused, it only shows that it runs.

The data are LA in the nnU-Net layout with its splits.json: 4 labels, batch 2 + 2, patches of 112x112x80. All runs
begin from the same weights with the same crops and random numbers. A hundred iterations run in plain PyTorch, in
float32 and in bfloat16, captured in a CUDA graph as the fused run is. Rounding grows from step to step, so the
distance of the two plain runs is the measure for that of the fused one. Iterations per second follow: plain, fused
with all gates open, and fused with all gates but dec1 closed, in a network that has it.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from record import arguments, write_result

from fheat.ops import kernels
from fheat.training.prepare import prepare
from fheat.training.settings_sources import make_settings
from fheat.training.step import Step

STEPS, PATCH = 100, "112,112,80"
SURVIVOR = "dec1"
LOGGED = ("total", "supervised", "consistency", "mix")


@dataclass(frozen=True)
class Case:
    """What is trained where; each run of it begins with the same weights."""

    data: Path
    network: str
    device: str
    patch: list[int]

    def begin(self, precision: str) -> Step:
        """Return a new run in a precision, `fp32` or `bf16`."""
        settings = make_settings(
            {
                "data": str(self.data), "labelled": 4, "network.name": self.network, "patch_size": self.patch,
                "optimiser.precision": precision,
            }
        )  # fmt: skip
        return prepare(settings, device=self.device).step


def advance(step: Step, count: int) -> float:
    """Return iterations per second."""
    int(step.iteration)  # waits for the device
    start = time.perf_counter()
    for _ in range(count):
        step()
    int(step.iteration)
    return count / (time.perf_counter() - start)


def losses(step: Step, count: int) -> dict[str, list[float]]:
    advance(step, count)
    rows = step.history[:count].double().cpu()
    return {name: [round(value, 6) for value in rows[:, step.columns.index(name)].tolist()] for name in LOGGED}


def distance(first: dict[str, list[float]], second: dict[str, list[float]]) -> dict[str, float]:
    """Return how far the total losses are apart, over the larger: in the first ten steps, at most, and on average."""
    apart = [abs(a - b) / max(a, b) for a, b in zip(first["total"], second["total"], strict=True)]
    return {"first_ten": max(apart[:10]), "largest": max(apart), "mean": sum(apart) / len(apart)}


def measured(case: Case, steps: int, rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """Return the losses of each run and the iterations per second, which are printed as soon as they are known."""
    found, speed = {}, {}
    with kernels.use("never"):
        found["plain float32"] = losses(case.begin("fp32"), steps)
        step = case.begin("bf16")
        found["plain bfloat16"] = losses(step, steps)
        speed["plain"] = advance(step, max(rounds // 4, 1))
    print("plain", found["plain bfloat16"]["total"][-1], speed, flush=True)
    step = case.begin("bf16")
    found["fused bfloat16"] = losses(step, steps)
    speed["fused, all gates open" if step.gates else "fused"] = advance(step, max(rounds // 2, 1))
    print("fused", found["fused bfloat16"]["total"][-1], speed, flush=True)
    if SURVIVOR in step.gates:
        for site, gate in step.gates.items():
            if site != SURVIVOR:
                gate.delta.data.fill_(-0.05)
        for _ in range(2):
            step._let_closed_gates_sleep()
        advance(step, 10)
        speed[f"fused, {SURVIVOR} open"] = advance(step, rounds)
    return found, speed


def main() -> None:
    options = arguments(
        __doc__,
        "step",
        rounds=200,
        data="LA with its splits.json",
        network="registered name (default: fheat_seg)",
        steps=f"number of iterations that are compared (default: {STEPS})",
        patch=f"patch (default: {PATCH})",
    )
    network, steps = options.network or "fheat_seg", int(options.steps or STEPS)
    patch = [int(length) for length in (options.patch or PATCH).split(",")]
    if options.network:
        name = f"step-{network.replace('_', '-')}-{options.device}"
        options.out = options.out.with_name(options.out.name.replace(f"{options.name}.json", f"{name}.json"))
        options.name = name
    found, speed = measured(Case(options.data, network, options.device, patch), steps, options.rounds)
    distances = {
        "plain bfloat16 from plain float32": distance(found["plain bfloat16"], found["plain float32"]),
        "fused bfloat16 from plain float32": distance(found["fused bfloat16"], found["plain float32"]),
        "fused bfloat16 from plain bfloat16": distance(found["fused bfloat16"], found["plain bfloat16"]),
    }
    print(json.dumps({"per_second": speed, "distance": distances}, indent=1))
    write_result(
        options.name,
        title="CSE iterations per second and losses, fused kernels beside plain PyTorch",
        command="python benchmarks/step.py --data LA --device cuda"
        + (f" --network {network}" if options.network else "")
        + (f" --steps {steps}" if options.steps else "")
        + (f" --patch {options.patch}" if options.patch else ""),
        seed=0,
        device=options.device,
        results={"per_second": speed, "distance": distances, "losses": found},
        out=options.out,
    )


if __name__ == "__main__":
    main()
