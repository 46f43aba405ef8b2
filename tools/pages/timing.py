"""Timings: `fheat bench`, the transforms, inference on CPU and GPU (benchmarks.md, operator.md, prediction.md)."""

from math import inf, prod
from typing import Final

from pages.common import formatted, giga, span, stored, stored_head, table


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
    """Return the table of how time grows on a GPU, with what ran the stages of each network."""
    grown = stored("bench-growth-cuda")
    sizes, doubling = grown["sizes"], grown["batches"]["doubling"]
    rows = []
    for name, times in sizes["milliseconds"].items():
        ran_by = "fheat's kernels" if name.startswith("fheat_seg") else "PyTorch"
        power = f"{sizes['exponent'][name]:.2f}"
        steps = [f"{doubling[name][step]:.2f}" for step in ("1 to 2", "2 to 4", "4 to 8")]
        rows.append([f"`{name}`", ran_by, f"{times[0]:.2f} ms", f"{times[-1]:.2f} ms", power, *steps])
    first, last = sizes["patches"][0], sizes["patches"][-1]
    return table(["network", "its stages by", first, last, "p", "batch 1 to 2", "2 to 4", "4 to 8"], rows)


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


def equal_terms(device: str, *only: str) -> str:
    """Return the table of windows in the same runtimes, with ratios to FHEAT-Seg, and what must be said below it.

    The stored result decides which networks and runtimes there are. FHEAT-Seg comes first, then the others by their
    time in the first runtime; what this package made for FHEAT-Seg comes last. Beside a ratio stand the two times that
    it is made of, those of the network and of FHEAT-Seg in the same turns. With `only` these networks are shown, by
    their ratios, in runtimes on equal terms, and nothing below.
    """
    result = stored_head(f"equal-terms-{device}")
    found = result.results
    window, (first, *others) = found["window_ms"], found["window_ms"]
    runtimes = sorted(window[first], key=_is_own)
    others.sort(key=lambda name: window[name].get(runtimes[0], inf))
    if only:
        runtimes = [how for how in runtimes if not _is_own(how)]
        others = [name for name in others if name.split()[0] in only]
    rows = []
    for name in (first, *others):
        known, _, options = name.partition(" ")
        cells = []
        for how in runtimes:
            took, beside = window[name].get(how), found["beside"].get(name, {}).get(how)
            times = "" if took is None else f" ({_milliseconds(took)} ms)"
            if beside is not None:
                times = "" if only else f" ({_milliseconds(took)} against {_milliseconds(beside)} ms)"
            cells.append("not run" if took is None else f"{_ratio(found['ratio'][name][how])}{times}")
        rows.append([f"`{known}` {options}".strip(), f"{_parameters(name):,}", *cells])
    lines = [table(["network", "parameters", *map(_runtime, runtimes)], rows)]
    if only:
        return lines[0]
    if any(map(_is_own, runtimes)):
        lines.append(
            "What is named *fheat's* was made for FHEAT-Seg and serves the other networks in part or not at all: "
            "these columns are not on equal terms."
        )
    for name, errors in found.get("error", {}).items():
        lines += [
            f"`{name.split()[0]}` by {_runtime(how)} is off by {error:.1g} of its largest output."
            for how, error in errors.items()
            if error > _TOLD_ERROR and "bfloat16" not in how
        ]
    for place, reason in found.get("not_run", {}).items():
        name, _, how = place.partition(" / ")
        words = reason.replace("`", "'")  # as code, because a message may look like markup
        lines.append(f"`{name.split()[0]}` was not run by {_runtime(how)}: `{words}`")
    if result.note:
        lines.append(result.note)
    return "\n\n".join(lines)


def equal_terms_ratio(device: str, network: str, spec: str) -> str:
    """Return the time of a network over that of FHEAT-Seg, least and largest over the runtimes on equal terms."""
    found = stored(f"equal-terms-{device}")["ratio"][network]
    return span((ratio for how, ratio in found.items() if not _is_own(how)), spec)


def timed_networks(device: str) -> str:
    """Return how many of the registered networks are timed on equal terms."""
    timed = len({name.split()[0] for name in stored(f"equal-terms-{device}")["window_ms"]})
    known = len(stored("sizes")["networks"])
    return f"all {known}" if timed == known else f"{timed} of the {known}"


_TOLD_ERROR: Final = 1e-3
"""Differences of float32 from plain PyTorch that a page tells are larger than this."""


def _is_own(runtime: str) -> bool:
    """Return whether a runtime has something that was made for FHEAT-Seg."""
    return "fheat's" in runtime


def _runtime(name: str) -> str:
    """Return the name of a runtime in words; what follows a comma, or is no runtime, is in words already."""
    words = {"torch": "PyTorch", "torch.compile": "`torch.compile`", "openvino": "OpenVINO", "graph": "captured graph"}
    first, *others = name.split(", ")
    return ", ".join((words.get(first, first), *others))


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _parameters(name: str) -> int:
    """Return the number of parameters of a network at 112x112x80 by its name, with options as (name=value, ...)."""
    for row in stored("sizes")["published"]["112x112x80"]:
        options = ", ".join(f"{option}={value}" for option, value in row["options"].items())
        if name == (f"{row['network']} ({options})" if options else row["network"]):
            return round(1e6 * row["ours"]["parameters"])
    return int(stored("sizes")["networks"][name.split()[0]]["112x112x80"]["parameters"])


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


def loss_distances() -> str:
    """Return how far total losses of fused and of plain steps come apart, beside what rounding does to plain ones."""
    rows = []
    for name in ("fheat-seg", "light-unetr", "segresnet", "fheat-seg-l"):
        found = stored("step-cuda" if name == "fheat-seg" else f"step-{name}-cuda")
        fused, rounded = (
            found["distance"][f"{one} bfloat16 from plain {other}"]
            for one, other in (("fused", "bfloat16"), ("plain", "float32"))
        )
        cells = [f"{part[which]:.1e}" for which in ("first_ten", "largest") for part in (fused, rounded)]
        rows.append([f"`{name.replace('-', '_')}`", str(len(found["losses"]["plain float32"]["total"])), *cells])
    head = ["network", "iterations", "fused, first ten", "rounding, first ten", "fused, all", "rounding, all"]
    return table(head, rows)


def compile_gains() -> str:
    """Return what `torch.compile` gains by network and how soon it is repaid, the greatest gain first."""
    rows = []
    for part in ("", "-convolutions", "-unetr-pp", "-swin-unetr"):
        [found] = stored(f"bench-compiled{part}-cuda")["step"]
        for compiled, seconds in found["compile_seconds"].items():
            name = compiled.removesuffix("/compiled")
            plain, quick = (found["milliseconds"][one] for one in (name, compiled))
            rows.append((plain / quick, name, 1e3 / plain, 1e3 / quick, seconds, 1e3 * seconds / (plain - quick)))
    head = ["network", "iterations per second", "compiled", "ratio", "seconds to compile", "repaid after"]
    return table(
        head,
        [
            [f"`{name}`", f"{plain:.1f}", f"{quick:.1f}", f"{ratio:.2f}", f"{seconds:.0f}", f"{round(after, -2):,.0f}"]
            for ratio, name, plain, quick, seconds, after in sorted(rows, reverse=True)
        ],
    )


def neighbours() -> str:
    """Return milliseconds of units of work beside so many busy programs, by how their threads are chosen."""
    found = stored("neighbours-cpu")
    rows = [
        [work, beside, *(f"{value:,.0f}" for value in times.values())]
        for work, by_count in found.items()
        for beside, times in by_count.items()
    ]
    return table(["unit of work", "busy programs", "all threads", "one thread", "as chosen"], rows)


def gpu_scans() -> str:
    """Return the seconds of the fastest round of twenty scans on a GPU."""
    return f"{min(stored('scans-cuda')['seconds']):.1f}"


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
