"""Time the exact cosine transforms against each other and say from which length each is fastest.

`python benchmarks/transforms.py [--device cuda]`. Two experiments, both interleaved so that drift hits every candidate
alike; the median counts, only ratios are claimed.

- axis: one transform pair (forward and inverse) along one axis of a million numbers (16 million on a GPU), first of
  two axes and last, forward only and with backward. This decides `fheat.ops.dct`.
- gate: the whole operator on every grid of the two networks, by each algorithm and by `auto`.
"""

import torch
from record import arguments, write_result
from torch import Tensor

from fheat import FractionalHeat
from fheat.bench.timing import interleaved
from fheat.ops.dct import transform_axis

METHODS = ("product", "split", "fft")
LENGTHS = (3, 4, 6, 8, 10, 14, 20, 28, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
GRIDS = {
    "fheat_seg enc1/dec1": (24, (28, 28, 20)),
    "fheat_seg enc2/dec2": (48, (14, 14, 10)),
    "fheat_seg enc3/dec3": (60, (8, 8, 6)),
    "fheat_seg enc4/dec4": (96, (4, 4, 3)),
    "fheat_seg_l enc3/dec3": (96, (28, 28, 20)),
    "fheat_seg_l enc4/dec4": (150, (14, 14, 10)),
    "fheat_seg_l bottom": (198, (8, 8, 6)),
}
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}  # enough to fill the device


def axis_times(length: int, last: bool, rounds: int, device: str) -> dict[str, dict[str, float]]:
    other = max(1, ELEMENTS[device] // length // 16)
    shape = (16, other, length) if last else (16, length, other)
    x = torch.randn(shape, device=device)

    axis = -1 if last else -2

    def along(method: str, x: Tensor) -> Tensor:
        spectrum = transform_axis(x, axis, method)  # type: ignore[arg-type]
        return transform_axis(spectrum, axis, method, inverse=True)  # type: ignore[arg-type]

    def backward(method: str) -> None:
        leaf = x.clone().requires_grad_()
        along(method, leaf).sum().backward()

    methods = [method for method in METHODS if method == "product" or length > 1]
    with torch.no_grad():
        forward = interleaved({m: (lambda m=m: along(m, x)) for m in methods}, rounds, device)
    both = interleaved({m: (lambda m=m: backward(m)) for m in methods}, rounds, device)
    return {"forward": forward, "with_backward": both}


def gate_times(channels: int, grid: tuple[int, ...], rounds: int, device: str) -> dict[str, dict[str, float]]:
    x = torch.randn(1, channels, *grid, device=device)
    gates = {m: FractionalHeat(transform=m).to(device) for m in (*METHODS, "auto")}  # type: ignore[arg-type]

    def backward(gate: FractionalHeat) -> None:
        gate(x.clone().requires_grad_()).sum().backward()

    with torch.no_grad():
        forward = interleaved({m: (lambda g=g: g(x)) for m, g in gates.items()}, rounds, device)
    both = interleaved({m: (lambda g=g: backward(g)) for m, g in gates.items()}, rounds, device)
    return {"forward": forward, "with_backward": both}


def crossover(table: dict[str, dict[str, dict[str, dict[str, float]]]], method: str, rivals: tuple[str, ...]) -> int:
    """Smallest measured length from which `method` beats `rivals` at every longer one, summed over all four cases."""
    best = 10**9
    for length in sorted(map(int, table), reverse=True):
        total = {m: sum(c[p][m] for c in table[str(length)].values() for p in c) for m in (method, *rivals)}
        if any(total[method] >= total[rival] for rival in rivals):
            break
        best = length
    return best


def main() -> None:
    options = arguments(__doc__, "transforms", rounds=25)
    torch.manual_seed(0)
    axis = {}
    for length in LENGTHS:
        axis[str(length)] = {
            "last": axis_times(length, True, options.rounds, options.device),
            "inner": axis_times(length, False, options.rounds, options.device),
        }
        cases = axis[str(length)]
        total = {m: sum(c[p][m] for c in cases.values() for p in c) for m in METHODS}
        print(f"axis {length:>5}: " + "  ".join(f"{m} {t:8.2f} ms" for m, t in total.items()), flush=True)
    gates = {}
    for name, (channels, grid) in GRIDS.items():
        gates[name] = gate_times(channels, grid, 2 * options.rounds, options.device)
        ratio = {m: t / gates[name]["forward"]["product"] for m, t in gates[name]["forward"].items()}
        print(
            f"gate {name:<22} forward, product = 1: " + "  ".join(f"{m} {r:.2f}" for m, r in ratio.items()),
            flush=True,
        )
    found = {
        "split_from": crossover(axis, "split", ("product",)),
        "fft_from": crossover(axis, "fft", ("product", "split")),
    }
    print(f"crossovers on {options.device}: {found}")
    write_result(
        options.name,
        title=f"Time of the three cosine transforms by length, and the fastest at each, on {options.device}",
        command=f"python benchmarks/transforms.py --device {options.device}",
        seed=0,
        device=options.device,
        settings={"unit": "milliseconds, median of interleaved runs"},
        results={"crossovers": found, "axis": axis, "gate": gates},
        out=options.out,
    )


if __name__ == "__main__":
    main()
