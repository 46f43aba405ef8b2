"""What `fheat reproduce` reached (docs/evidence: reproduce.md, evidence.md): scores and gates, beside the published."""

import statistics
from typing import Any

from pages.common import stored, table

RESULT = "reproduced-cuda"
SETTINGS = {
    "la-4": "LA, 4 labels",
    "la-8": "LA, 8 labels",
    "brats-25": "BraTS 2019, 25 labels",
    "la-all": "LA, 72 labels",
    "brats-all": "BraTS 2019, 65 labels",
}
TABLES = {"la-4": "table2", "la-8": "table3", "brats-25": "table3", "la-all": "table4", "brats-all": "table4"}
LONG, SHORT, LARGE = "16000", "4000", "2000"
"""Lengths of runs by which rows are stored: those of the tables, of Table VI here, and of FHEAT-Seg-L."""
METRICS = {"dice": "Dice, %", "jaccard": "Jaccard, %", "hd95": "95HD, voxels", "asd": "ASD, voxels"}
FINAL = "dec1"


def reproduced_gates() -> str:
    """Return the form of Table I: the gates that are open at the end of every long run, with D and alpha."""
    published = _published("table1")
    rows = []
    for setting, words in SETTINGS.items():
        paper = published.get(f"{setting}/fheat-seg")
        printed = f"dec1 ({paper['D'].mean:.3f}; {paper['alpha'].mean:.3f})" if paper else ""
        for seed, run in _row(LONG, f"{setting}/fheat-seg")["seeds"].items():
            opened = sorted((run["gates"][site]["D"], site) for site in run["open"])[::-1]
            gates = ", ".join(f"{site} ({D:.3f}; {run['gates'][site]['alpha']:.3f})" for D, site in opened)
            rows.append([words, seed, gates, str(len(run["gates"]) - len(opened)), printed])
    return table(["setting", "seed", "open gates (D; alpha)", "closed", "paper"], rows)


def reproduced_scores() -> str:
    """Return the rows of FHEAT-Seg and FHEAT-Seg-L in Tables II to IV, ours beside the published ones."""
    shown = [(setting, "fheat-seg", LONG) for setting in SETTINGS] + [("la-all", "fheat-seg-l", LARGE)]
    rows = []
    for setting, system, length in shown:
        row = _row(length, f"{setting}/{system}")
        paper = _published(TABLES[setting])[f"{setting}/{system}"]
        cells = [f"{_score(row, metric)} ({paper[metric].mean:.2f})" for metric in METRICS]
        rows.append([SETTINGS[setting], row["title"], f"{int(length):,}", str(len(row["seeds"])), row["scans"], *cells])
    return table(["setting", "network", "iterations", "seeds", "scans", *METRICS.values()], rows)


def reproduced_methods(setting: str) -> str:
    """Return what every training method reached on FHEAT-Seg, the best first, beside the published Dice on Light-UNETR.

    CSE has seed 0 of its three here, as the others do.
    """
    published = _published(TABLES[setting])
    ends = dict(_lengths())
    rows = []
    for name, row in stored(RESULT)[LONG].items():
        if name not in ends or not name.startswith(f"{setting}/"):
            continue
        run, method = row["seeds"]["0"], name.removeprefix(f"{setting}/fheat-seg").removeprefix("-by-") or "cse"
        paper = published.get(f"{setting}/{method if method != 'cse' else 'light-unetr'}", {})
        cells = [f"{run['dice']:.2f}", f"{run['hd95']:.2f}", f"{run['best_at']:,} of {ends[name]:,}"]
        printed = f"{paper['dice'].mean:.2f}" if "dice" in paper else ""
        rows.append([f"`{method.replace('-', '_')}`", *cells, ", ".join(run["open"]) or "none", printed])
    rows.sort(key=lambda cells: -float(cells[1]))
    head = ["method", "Dice, %", "95HD, voxels", "best iteration", "open gates", "paper, on Light-UNETR: Dice, %"]
    return table(head, rows)


def reproduced_on_light_unetr() -> str:
    """Return the rows of Light-UNETR in Table II that were run, ours beside the published ones."""
    published, rows = _published("table2"), []
    for system in ("light-unetr", "bcp", "mlrp", "ua-mt"):
        row, paper = stored(RESULT)[LONG].get(f"la-4/{system}"), published[f"la-4/{system}"]
        if row is None:
            continue
        run = row["seeds"]["0"]
        cells = [f"{run[metric]:.2f} ({paper[metric].mean:.2f})" for metric in ("dice", "hd95")]
        name, rate = "cse" if system == "light-unetr" else system.replace("-", "_"), run.get("learning_rate", 0.01)
        rows.append([f"`{name}`", f"{rate:g}", *cells, f"{run['best_at']:,}", str(run["skipped"])])
    return table(["method", "learning rate", "Dice, %", "95HD, voxels", "best iteration", "skipped updates"], rows)


def reproduced_ablations() -> str:
    """Return the rows of Table VI that were run, shortened, beside the published ones."""
    published = _published("table6")
    rows = []
    for name, row in stored(RESULT)[SHORT].items():
        paper = published[name]
        cells = [
            _score(row, metric) + (f" ({paper[metric].mean:.2f})" if metric in paper else "") for metric in METRICS
        ]
        opened = "; ".join(", ".join(run["open"]) or "none" for run in row["seeds"].values())
        rows.append([row["title"], str(len(row["seeds"])), *cells, opened])
    return table(["row", "seeds", *METRICS.values(), "open gates, seed by seed"], rows)


def reproduced_orders() -> str:
    """Return the points that Section V leaves open: alpha with and without its bound, its gradient, and no gates."""
    rows = []
    for name in ("la-4/fheat-seg", "la-4/unbounded-alpha", "la-4/all-closed"):
        row = _row(LONG, name)
        run = row["seeds"]["0"]
        measured = {one["site"]: one for one in run.get("order_gradients", [])}
        slope = f"{measured[FINAL]['mean']:+.1e} ± {measured[FINAL]['error']:.1e}" if FINAL in measured else "-"
        gate = run["gates"][FINAL]
        alpha = f"{gate['alpha']:.3f}" if FINAL in run["open"] else "-"
        rows.append([row["title"], f"{run['dice']:.2f}", f"{run['hd95']:.2f}", f"{gate['D']:.3f}", alpha, slope])
    return table(["row, seed 0", "Dice, %", "95HD, voxels", "D of dec1", "alpha of dec1", "dL/dalpha of dec1"], rows)


def _score(row: dict[str, Any], metric: str) -> str:
    values = [run[metric] for run in row["seeds"].values()]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _row(length: str, name: str) -> dict[str, Any]:
    row: dict[str, Any] = stored(RESULT)[length][name]
    return row


def _lengths() -> list[tuple[str, int]]:
    """Return the rows of item methods with their numbers of iterations."""
    from fheat.experiments.plan import FULL
    from fheat.experiments.records import item as record

    return [(row.name, int(row.options.get("schedule.iterations", FULL))) for row in record("methods").rows]


def _published(item: str) -> dict[str, Any]:
    from fheat.experiments.records import item as record

    return {row.name: row.published for row in record(item).rows}
