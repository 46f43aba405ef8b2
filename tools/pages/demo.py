"""The demo on synthetic scans and on those of a folder (docs/start/demo.md, README.md)."""

from fheat.system.text import counted
from pages.common import stored, table

SHOWN = 1
"""The seed that `fheat demo` has by default."""


def demo_output() -> str:
    """Return the lines that the demo prints, shortened, as a block of code."""
    demo = stored("demo-cpu")["demos"][SHOWN]
    closed = ", ".join(f"{site} at {iteration}" for site, iteration in demo["closed_at"].items()) or "none"
    iterations, labelled = demo["settings"]["iterations"], demo["settings"]["labelled"]
    cse, supervised = (f"{demo['dice'][method]:.4f}" for method in ("cse", "supervised"))
    dice = f"CSE {cse}, supervised-only {supervised}, margin {demo['margin']:+.4f}"
    scans, labels = demo["counts"], counted(labelled, "label")
    counts = f"{labelled} with a label, {scans['unlabelled']} without, {scans['held_out']} held out for testing"
    return f"""```
a first mask, by the packaged model phantom, after ... s: Dice {demo["first_mask"]["dice"]:.4f}
  see demo/first.png
scans: {counts}, in demo/scans
CSE, {labels} and all scans: {iterations} iterations in ... s
  gates closed for good: {closed}
supervised-only, the same {labels}: {iterations} iterations in ... s
Dice, mean of the {scans["held_out"]} held-out scans: {dice}
...
torch.equal(retire(model)(x), model(x)): {demo["retired_equal"]}
torch.equal(load(folder)(x), retire(model)(x)): {demo["loaded_equal"]}
Dice on a new scan of another size, spacing and orientation: {demo["new_scan_dice"]:.4f}
wrote demo/report.html and more, in ... s; next:
```"""


def demo_wins(name: str = "demo-cpu") -> str:
    """Return for how many of the seeds CSE is ahead."""
    margins = [row["margin"] for row in stored(name)["by_seed"]]
    return f"{sum(margin > 0 for margin in margins)} of {len(margins)}"


def demo_seeds(name: str = "demo-cpu") -> str:
    """Return the table of the three seeds."""
    results = stored(name)
    rows = [
        [
            str(row["seed"]),
            f"{row['cse']:.4f}",
            f"{row['supervised']:.4f}",
            f"{row['margin']:+.4f}",
            f"{row['gates_closed']} of {len(demo['gates'])}",
            f"{row['processor_seconds']:.0f} s",
        ]
        for row, demo in zip(results["by_seed"], results["demos"], strict=True)
    ]
    return table(["seed", "CSE", "supervised-only", "margin", "gates closed", "processor time"], rows)
