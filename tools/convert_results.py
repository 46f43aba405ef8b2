"""Bring the results that were stored before there was a schema into it: `python tools/convert_results.py`, once.

Values only change their place, and paths follow the files that moved. What was not recorded becomes null; where a fact
is known from elsewhere, `note` says so.
"""

import json
import re
from typing import Any

from results import RESULTS, result_text, split_machine

TITLES = {
    "analysis-la-4-cpu": "Residual spectrum and attention of la-4 on LA, beside two networks with fresh weights",
    "analysis-lengths-cpu": "Residual spectrum and attention of both networks after training runs of other lengths",
    "analysis-trained-cpu": "Residual spectrum and attention of FHEAT-Seg and Light-UNETR after 2,000 iterations each",
    "bench-cpu": "Time of one window of every network on one CPU thread, side by side",
    "bench-growth-cpu": "How the time of a window grows with voxels, channels and batch on one CPU thread",
    "bench-growth-cuda": "How the time of a window grows with voxels, channels and batch on a GPU",
    "bench-operator-cuda": "Time of the gate's transform by every algorithm on every grid of the networks on a GPU",
    "bench-window-bf16-cuda": "Time of eight windows in bfloat16 on a GPU, FHEAT-Seg beside Light-UNETR",
    "bench-window-fp32-cuda": "Time of one window in float32 on a GPU, FHEAT-Seg beside Light-UNETR",
    "bypass-cpu": "Time of one window with gates open, closed and retired on two CPU threads, plain PyTorch",
    "bypass-cuda": "Time of one window with gates open, closed and retired on a GPU, plain PyTorch",
    "demo-cpu": "Dice of CSE and of supervised training on the demo's synthetic scans, three seeds",
    "fused-transform-cuda": "Time of the gate's transform in fused kernels beside the library's products on a GPU",
    "inference-cpu": "Memory bound, peak memory and time of fheat predict for volumes up to 512x512x600",
    "la-4-cuda": "CSE on LA with 4 labels: validation Dice and gates of ten runs, plain and ablated",
    "la-4-fused-cuda": "CSE on LA with 4 labels, 16,000 iterations: fused kernels beside plain PyTorch",
    "la-4-study-cuda": "CSE on LA with 4 labels: probes, perturbations, unbounded alpha, and Light-UNETR",
    "phantom-cpu": "How fast the synthetic scans are made, and how hard they are without learning",
    "probe-la-4-cpu": "Pairing of every gate of la-4 on the four labelled scans it was trained with",
    "rational-fit": "Initial coefficients of the rational activation and their largest error",
    "scan-cpu": "Time of one LA scan through every CPU runtime, beside its peers, and how far the masks agree",
    "scans-cuda": "Time of twenty LA scans from memory to memory on a GPU, and their Dice with plain float32",
    "simulation-cpu": "Gates trained alone on 1D signals, with controls, 6,000 iterations",
    "simulation-long-cpu": "Gates trained alone on 1D signals, with controls, 60,000 iterations",
    "step-cuda": "CSE iterations per second and losses, fused kernels beside plain PyTorch",
    "surface-cpu": "Time of surface distances beside medpy on the same masks",
    "transforms-cpu": "Time of the three cosine transforms by length, and from which length each is fastest, on a CPU",
    "transforms-cuda": "Time of the three cosine transforms by length, and from which length each is fastest, on a GPU",
    "zoo-la-4-cpu": "Dice and distances of la-4 on the eight validation scans of LA, on a CPU",
}
SETTINGS = (
    "format", "unit", "load", "precision", "rounds", "not_available", "notes", "data", "network", "parallel",
    "half_width", "spacing", "generator_version", "cases", "scan", "scans", "model", "method", "labelled",
    "patch_size", "batches", "batch", "others", "tolerance", "definitions", "sources", "refused",
)  # fmt: skip
"""Fields that say how something was measured."""
WHOLE = {"simulation-cpu": "simulation", "simulation-long-cpu": "simulation"}
"""Records that fheat reads back; they stay whole under this name."""
AROUND = "The command's own output was put under this head by hand."
SEEDS = (
    "Every run names its seed in its settings, 0 where it names none. The machine was taken from another result of it."
)
NOTES = {
    "analysis-lengths-cpu": AROUND,
    "analysis-trained-cpu": AROUND,
    "zoo-la-4-cpu": AROUND,
    "la-4-cuda": SEEDS,
    "la-4-fused-cuda": SEEDS,
    "la-4-study-cuda": f"{SEEDS} The runs pair-fheat-seg and pair-light-unetr were added to the file later.",
    "probe-la-4-cpu": "The command was completed by hand from the recorded options.",
}
COMMANDS = {"probe-la-4-cpu": "fheat probe la-4 --data la --labelled 4 --batches 48"}


def converted(name: str, old: dict[str, Any]) -> dict[str, Any]:
    machine = dict(old.get("machine") or {"device": old.get("device"), "name": None, "threads": None})
    hardware, versions = split_machine(machine)
    notes = [text for text in (old.get("note"), NOTES.get(name)) if text]
    head = ("command", "machine", "versions", "seed", "seeds", "note", "device")
    if name in WHOLE:
        settings, results = {}, {WHOLE[name]: old}
    else:
        settings = {field: old[field] for field in old if field in SETTINGS}
        results = {field: old[field] for field in old if field not in (*SETTINGS, *head)}
    if name == "demo-cpu":
        results["demos"] = results.pop("results")
    elif "results" in results:
        assert set(results) == {"results"}, (name, list(results))
        results = results["results"]
    return {
        "name": name,
        "title": TITLES[name],
        "command": old.get("command", COMMANDS.get(name)),
        "machine": hardware,
        "versions": versions | old.get("versions", {}),
        "seed": old.get("seed", old.get("seeds")),
        "date": None,
        "note": " ".join(notes) or None,
        "settings": settings,
        "results": results,
    }


def numbers(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inside in value.values() for text in numbers(inside)]
    if isinstance(value, list):
        return [text for inside in value for text in numbers(inside)]
    return [repr(value)] if isinstance(value, int | float | str | bool | None) else []


def main() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        text = path.read_text().replace("benchmarks/runs", "studies/runs")
        old = json.loads(re.sub(r"benchmarks/(analysis|phantom|la)\.py", r"studies/\1.py", text))
        new = converted(path.stem, old)
        before, after = numbers(old), numbers(new)
        for text in before:  # nothing is lost; the head may repeat or add
            if text not in ("None", repr(old.get("note"))):
                after.remove(text)
        print(f"{path.stem}: added {after}")
        path.write_text(result_text(new))
        assert json.loads(path.read_text()) == new


if __name__ == "__main__":
    main()
