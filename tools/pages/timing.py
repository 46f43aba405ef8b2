"""Timings: `fheat bench`, the transforms, inference on CPU and GPU (benchmarks.md, operator.md, prediction.md)."""

from math import prod

from pages.common import formatted, giga, span, stored, table


def bench_window() -> str:
    """Return the table of one window of every network."""
    window = stored("bench-cpu")["window"]
    rows = [[f"`{name}`", f"{giga(window['macs'][name])} G", f"{ratio:.2f}"] for name, ratio in window["ratio"].items()]
    return table(["network", "multiply-adds", "time over `fheat_seg/retired`"], rows)


def growth_cpu() -> str:
    """Return the table of how time grows on a CPU."""
    grown = stored("bench-growth-cpu")
    doubling = grown["batches"]["doubling"]
    rows = [
        [f"`{name}`", f"{power:.2f}", *(f"{doubling[name][step]:.2f}" for step in ("1 to 2", "2 to 4"))]
        for name, power in grown["sizes"]["exponent"].items()
    ]
    return table(["network", "p of time ~ voxels^p", "batch 1 to 2", "2 to 4"], rows)


def growth_cuda() -> str:
    """Return the table of how time grows on a GPU."""
    grown = stored("bench-growth-cuda")
    sizes, doubling = grown["sizes"], grown["batches"]["doubling"]
    rows = []
    for name, times in sizes["milliseconds"].items():
        power = f"{sizes['exponent'][name]:.2f}"
        steps = [f"{doubling[name][step]:.2f}" for step in ("1 to 2", "2 to 4", "4 to 8")]
        rows.append([f"`{name}`", f"{times[0]:.2f} ms", f"{times[-1]:.2f} ms", power, *steps])
    first, last = sizes["patches"][0], sizes["patches"][-1]
    return table(["network", first, last, "p", "batch 1 to 2", "2 to 4", "4 to 8"], rows)


def operator_ratio(algorithm: str, spec: str) -> str:
    """Return the time of an algorithm over that of plain products, over all grids, forward and with backward."""
    gates = stored("bench-operator-cuda")["operator"]["gates"]
    return span((gate[way]["ratio"][algorithm] for gate in gates for way in ("forward", "with_backward")), spec)


def crossovers() -> str:
    """Return the table of the lengths at which `auto` changes its algorithm."""
    found = [stored(f"transforms-{device}")["crossovers"] for device in ("cpu", "cuda")]
    rows = [
        ["`product`, one matrix product", "N", *(f"below {at['split_from']}" for at in found)],
        ["`split`, even/odd symmetry", "N / 2", *(f"{at['split_from']} to {at['fft_from'] - 1}" for at in found)],
        ["`fft`", "about 1.25 log2 N + 2", *(f"from {at['fft_from']}" for at in found)],
    ]
    return table(["", "multiply-adds per element and axis of length N", "used by `auto` on CPU", "on CUDA"], rows)


def split_price(device: str) -> str:
    """Return the time of the split over that of the product, forward, over the grids of the networks."""
    gates = stored(f"transforms-{device}")["gate"].values()
    return span((gate["forward"]["split"] / gate["forward"]["product"] for gate in gates), ".1f")


def equal_terms() -> str:
    """Return the table of one window of every network in the same runtimes, with ratios to FHEAT-Seg."""
    found = stored("equal-terms-cpu")
    titles = {"torch": "PyTorch", "torch.compile": "`torch.compile`", "openvino": "OpenVINO"}
    rows = []
    for name, times in found["window_ms"].items():
        size = stored("sizes")["networks"][name.split()[0]]["112x112x80"]["parameters"]
        cells = [f"{times[how]:.0f} ms ({found['ratio'][name][how]:.1f})" for how in titles]
        rows.append([f"`{name.split()[0]}`{name.partition(' ')[1]}{name.partition(' ')[2]}", f"{size:,}", *cells])
    return table(["network", "parameters", *titles.values()], rows)


def network_speeds() -> str:
    """Return iterations of CSE per second with fused kernels and by plain PyTorch, and their ratio, all of one run."""
    speeds = stored("bench-step-cuda")["step"][0]["per_second"]
    rows = []
    for name, fused in speeds.items():
        known, _, state = name.partition("/")
        if name.endswith("/plain"):
            continue
        words = f"`{known}`" + (", dec1 open, the others closed" if state == "survivor" else "")
        plain = speeds.get(f"{name}/plain")
        compared = ["", ""] if plain is None else [f"{plain:.1f}", f"{fused / plain:.1f}"]
        rows.append([words, f"{fused:.1f}", *compared])
    return table(["network", "iterations per second", "plain PyTorch", "ratio"], rows)


def segresnet_part() -> str:
    """Return the time of a scan as a fraction of SegResNet-16's."""
    return f"1/{1 / stored('scan-cpu')['ratios_of_auto']['to segresnet_16, from its windows']:.0f}"


def gpu_scans() -> str:
    """Return the seconds of the fastest round of twenty scans on a GPU."""
    return f"{min(stored('scans-cuda')['seconds']):.1f}"


def kernels_built() -> str:
    """Return how many seconds the first round on a GPU takes longer than the second."""
    first, second = stored("scans-cuda")["seconds"][:2]
    return f"{first - second:.0f}"


def memory_bound() -> str:
    """Return the table of printed and measured memory for the largest volume."""
    row = stored("inference-cpu")["volumes"][-1]
    shape = "x".join(map(str, row["shape"]))
    bound, peak = (f"{formatted(row[name], 'MiB')} MiB" for name in ("bound_bytes", "peak_bytes"))
    return table(["volume", "windows", "printed bound", "measured peak"], [[shape, f"{row['windows']:,}", bound, peak]])


def timed_voxels() -> str:
    """Return the smallest and the largest of the timed volumes, in million voxels."""
    sizes = [prod(row["shape"]) / 1e6 for row in stored("inference-cpu")["volumes"]]
    return f"{min(sizes):.1f} to {max(sizes):.0f}"
