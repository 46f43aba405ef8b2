"""What was attacked and what came of it (docs/evidence/trust.md)."""

from pages.common import stored, stored_head, table

GOOD = ("read right", "refused")


def attack_table() -> str:
    """Return the counts of the stored campaign by kind of file."""
    results = stored("attack-cpu")
    rows = []
    for kind, row in results["kinds"].items():
        outcomes = row["outcomes"]
        failures = sum(count for name, count in outcomes.items() if name not in GOOD)
        rows.append([kind, *(f"{count:,}" for count in (row["cases"], *(outcomes[name] for name in GOOD), failures))])
    rows.append(["all", *(f"{sum(int(row[column].replace(',', '')) for row in rows):,}" for column in range(1, 5))])
    return table(["kind", "cases", "read right", "refused", "went wrong"], rows)


def attack_classes() -> str:
    """Return how often each way of going wrong occurred."""
    kinds = stored("attack-cpu")["kinds"].values()
    names = [name for name in next(iter(kinds))["outcomes"] if name not in GOOD]
    return ", ".join(f"{name} {sum(row['outcomes'][name] for row in kinds):,}" for name in names)


def special_table() -> str:
    """Return the exit codes of the stored matrix of special files by verb."""
    verbs = stored("special-files-cpu")["verbs"]
    codes = sorted({code for row in verbs.values() for code in row["codes"]})
    rows = [
        [f"`fheat {verb}`", str(row["places"]), str(row["calls"]), *(str(row["codes"].get(code, 0)) for code in codes)]
        for verb, row in verbs.items()
    ]
    return table(["verb", "places", "calls", *(f"exit {code}" for code in codes)], rows)


def special_kinds() -> str:
    """Return the names of the special files of the stored matrix."""
    *names, last = stored("special-files-cpu")["special"]
    return f"{', '.join(names)} and {last}"


CAMPAIGNS = {
    "kills-cpu": (
        "training killed by SIGKILL, all methods: weights, log or checkpoints that differ",
        "kills",
    ),
    "kill-predict-cpu": ("`predict` killed by SIGKILL: masks or `run.json` that differ in the end", "kills"),
    "lock-races-cpu": ("two processes that want one run folder: runs that were damaged", "pairs"),
    "flips-cpu": ("single bits flipped in a run folder: other values accepted", "flips"),
    "command-line-cpu": ("calls with odd streams, names and signals: other exit codes, or a traceback", "calls"),
    "soak-cpu": ("iterations of one training: memory or descriptors that grow", "iterations"),
    "soak-predict-cpu": ("scans of one `predict`: memory or descriptors that grow", "scans"),
}
"""Stored campaigns: what was done and what would be a fault, and the result that says how often."""


def campaign_table() -> str:
    """Return how often each campaign tried, and the number of its faults."""
    rows = []
    for name, (what, count) in CAMPAIGNS.items():
        results = stored(name)
        rows.append([what, f"{results[count]:,}", str(len(results["faults"])), f"`{stored_head(name).command}`"])
    return table(["campaign", "times", "faults", "command"], rows)
