"""The demo on synthetic scans (README.md)."""

from pages.common import stored, table

SHOWN = 1
"""The seed that `fheat demo` has by default."""


def demo_output() -> str:
    """Return the lines that the demo prints, shortened, as a block of code."""
    demo = stored("demo-cpu")["demos"][SHOWN]
    closed = ", ".join(f"{site} at {iteration}" for site, iteration in demo["closed_at"].items())
    iterations = demo["settings"]["iterations"]
    cse, supervised = (f"{demo['dice'][method]:.4f}" for method in ("cse", "supervised"))
    return f"""```
scans: 2 with labels, 34 without, 12 held out for testing, in demo/scans
CSE, 2 labels and all scans: {iterations} iterations in ... s
  gates closed for good: {closed}
supervised-only, the same 2 labels: {iterations} iterations in ... s
Dice, mean of the 12 held-out scans: CSE {cse}, supervised-only {supervised}, margin {demo["margin"]:+.4f}
...
torch.equal(retire(model)(x), model(x)): {demo["retired_equal"]}
torch.equal(load(folder)(x), retire(model)(x)): {demo["loaded_equal"]}
Dice on a new scan of another size, spacing and orientation: {demo["new_scan_dice"]:.4f}
wrote demo/report.html and more, in ... s; next:
```"""


def demo_wins() -> str:
    """Return for how many of the seeds CSE is ahead."""
    margins = [row["margin"] for row in stored("demo-cpu")["by_seed"]]
    return f"{sum(margin > 0 for margin in margins)} of {len(margins)}"


def demo_seeds() -> str:
    """Return the table of the three seeds."""
    results = stored("demo-cpu")
    rows = [
        [
            str(row["seed"]),
            f"{row['cse']:.4f}",
            f"{row['supervised']:.4f}",
            f"{row['margin']:+.4f}",
            f"{row['gates_closed']} of {len(demo['gates'])}",
        ]
        for row, demo in zip(results["by_seed"], results["demos"], strict=True)
    ]
    return table(["seed", "CSE", "supervised-only", "margin", "gates closed"], rows)
