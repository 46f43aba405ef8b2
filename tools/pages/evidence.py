"""What became of every claim, the blind tests, and choices where the paper is silent (docs/evidence/evidence.md)."""

from collections import Counter
from typing import Any

from pages.claims import VERDICTS, Claim, filled, read_claims, read_parts
from pages.common import stored, table

MEANINGS = {
    "holds": "measured here, and as the paper says",
    "holds with a difference": "the core is right; a number, a condition or the reason is not",
    "does not hold here": "measured here, and otherwise",
    "not testable without the data": "needs scans or code that are not at hand",
    "not run yet": "can be run; nobody has done it here",
}
BASIS = {"measured": "", "printed": " (by the paper's own numbers)", "read": " (by reading)"}
BLIND_ROWS = {
    "la-4": "LA, 4 labels, mean of three seeds",
    "la-4 seed 0": "LA, 4 labels, seed 0",
    "la-4 seed 1": "LA, 4 labels, seed 1",
    "la-4 seed 2": "LA, 4 labels, seed 2",
    "la-4 zoo": "LA, 4 labels, the packaged `la-4`, all components",
    "la-8 seed 0": "LA, 8 labels",
    "la supervised seed 0": "LA, 72 labels, supervised",
    "brats-25 seed 0": "BraTS 2019, 25 labels, all components",
    "brats-25 seed 0, largest component": "BraTS 2019, 25 labels, largest component",
}
SCORES = ("dice", "jaccard", "hd95", "asd")
HIPPOCAMPUS = {
    "hippocampus supervised, 8 labels": "supervised, 8 labels",
    "hippocampus CSE, 8 labels": "CSE, 8 labels",
    "hippocampus supervised, 160 labels": "supervised, 160 labels",
}


def claims_in_all() -> str:
    """Return the number of claims."""
    return str(len(read_claims()))


def verdict_counts() -> str:
    """Return the table that counts the verdicts, and what they rest on."""
    claims = read_claims()
    counts = Counter((claim.verdict, claim.basis) for claim in claims)
    rows = []
    for verdict in VERDICTS:
        of_it = {basis: count for (name, basis), count in counts.items() if name == verdict}
        weaker = [f"{of_it[basis]}{words}" for basis, words in BASIS.items() if words and basis in of_it]
        rows.append([f"**{verdict}**", str(sum(of_it.values())), MEANINGS[verdict], ", ".join(weaker)])
    return table(["verdict", "claims", "meaning", "of these not measured"], rows)


def failed_claims() -> str:
    """Return the table of the claims that do not hold here."""
    rows = [
        [claim.id, f"{claim.claim} ({claim.section})", claim.published or "-", filled(claim.measured) or "-"]
        for claim in read_claims()
        if claim.verdict == "does not hold here"
    ]
    return table(["", "claim", "published", "here"], rows)


def claims_of(name: str) -> str:
    """Return a part of the paper: its heading, the table of its claims, and the reason of every verdict."""
    part = read_parts()[name]
    rows = [
        [
            claim.id,
            f"{claim.claim} ({claim.section})",
            claim.published or "-",
            filled(claim.measured) or "-",
            f"**{claim.verdict}**{BASIS[claim.basis] if claim.basis else ''}",
        ]
        for claim in part.claims
    ]
    cells = table(["", "claim", "published", "here", "verdict"], rows)
    reasons = "\n".join(_reason(claim) for claim in part.claims)
    return "\n\n".join(text for text in (f"### {part.title}", part.text, cells, reasons) if text)


def _reason(claim: Claim) -> str:
    remark = f" *On the paper:* {filled(claim.remark)}" if claim.remark else ""
    command = f" Test: `{claim.command}`." if claim.command else ""
    results = [f"[{name}](../../benchmarks/results/{name}.json)" for name in claim.results()]
    files = f" Stored: {', '.join(results)}." if results else ""
    return f"- **{claim.id}** {filled(claim.reason)}{remark}{command}{files}"


def blind_scores() -> str:
    """Return the table of the blind tests on LA and BraTS 2019, with the paper's scores beside."""
    found = stored("blind")
    rows = []
    for name, words in BLIND_ROWS.items():
        beside = found["beside_the_paper"].get(name)
        here = {score: row["mean"] for score, row in found["la-4"].items()} if name == "la-4" else found["runs"][name]
        printed = " / ".join(f"{beside[score]['paper']:.2f}" for score in SCORES) if beside else ""
        apart = " / ".join(f"{beside[score]['difference']:+.2f}" for score in SCORES) if beside else ""
        rows.append([words, *(f"{here[score]:.2f}" for score in SCORES), printed, apart, _gates(found, name)])
    head = ["run", "Dice", "Jaccard", "95HD", "ASD", "paper", "here minus paper", "open at the end: D (alpha)"]
    return table(head, rows)


def _gates(found: dict[str, Any], name: str) -> str:
    gates = found["gates_open"].get(name, {})
    return ", ".join(f"{site} {strength:.2f} ({alpha:.3f})" for site, (strength, alpha) in gates.items())


def blind_hippocampus() -> str:
    """Return the table of the blind tests on the hippocampus."""
    runs = stored("blind")["hippocampus"]["runs"]
    rows = []
    for name, words in HIPPOCAMPUS.items():
        cells = (
            f"{runs[name][part]['dice']:.2f} / {runs[name][part]['hd95']:.2f}" for part in ("anterior", "posterior")
        )
        rows.append([words, *cells])
    return table(["run", "anterior: Dice / 95HD, mm", "posterior: Dice / 95HD, mm"], rows)


def default_of(section: str, field: str) -> str:
    """Return the default of a training setting."""
    from fheat.training.settings_sources import make_settings

    value = getattr(getattr(make_settings({"data": ""}), section), field)
    return f"{value:,}" if isinstance(value, int) else str(value)
