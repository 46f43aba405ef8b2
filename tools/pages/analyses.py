"""Residual spectrum and attention inside trained networks (docs/evidence/analyses.md, study.md)."""

from typing import Any

from pages.common import per_cent, span, stored, table

PAIR = ("FHEAT-Seg, 2,000 iterations", "Light-UNETR, 2,000 iterations")
SHARE, INSIDE = "residual_share_above", "attention_share"
PAPER = {
    SHARE: {"`la-4`": "33.3", PAIR[1]: "0.2"},
    INSIDE: {"`la-4`": "44.8 (6.1), on 20 test scans", PAIR[1]: "3.4 (1.2)"},
}
ORDER = (
    "`la-4`",
    "`la-4`, the four FHEAT blocks inside these light blocks",
    "FHEAT-Seg, fresh weights",
    "FHEAT-Seg, 240 iterations",
    PAIR[0],
    "FHEAT-Seg, 4,000 iterations",
    "Light-UNETR, fresh weights",
    "Light-UNETR, 240 iterations",
    "Light-UNETR, 800 iterations",
    PAIR[1],
)


def residual_shares() -> str:
    """Return the table of residual energy above a normalised radius of 0.6."""
    rows = [[_bold(name), per_cent(row[SHARE]), PAPER[SHARE].get(name, "")] for name, row in _rows().items()]
    rows.append(["white noise", white_noise(), ""])
    return table(["eight validation scans of LA", "above 0.6, % (SD)", "the paper, %"], rows)


def attention_shares() -> str:
    """Return the table of attention inside the target."""
    rows = []
    for name, row in _rows().items():
        if INSIDE in row:
            chance, ratio = row["attention_chance"]["mean"], row["attention_over_chance"]["mean"]
            paper = PAPER[INSIDE].get(name, "")
            rows.append([_bold(name), per_cent(row[INSIDE]), f"{100 * chance:.1f}", f"{ratio:.2f}", paper])
    head = ["eight validation scans of LA", "inside, % (SD)", "chance, %", "times chance", "the paper, % (SD)"]
    return table(head, rows)


def residual(name: str) -> str:
    """Return the per cent of residual energy above 0.6 of a network, named as in the table."""
    return f"{100 * _rows()[name][SHARE]['mean']:.1f}"


def attention(name: str) -> str:
    """Return the per cent of attention inside the target of a network, named as in the table."""
    return f"{100 * _rows()[name][INSIDE]['mean']:.1f}"


def chance() -> str:
    """Return the per cent of the voxels that are target."""
    return f"{100 * _rows()['`la-4`']['attention_chance']['mean']:.1f}"


def white_noise() -> str:
    """Return the per cent of the energy of white noise above 0.6."""
    return f"{100 * _rows()['`la-4`']['residual_white_noise']:.1f}"


def residual_factor(first: str, second: str, spec: str) -> str:
    """Return the residual energy above 0.6 of one network over that of another, named as in the table."""
    rows = _rows()
    return format(rows[first][SHARE]["mean"] / rows[second][SHARE]["mean"], spec)


def attention_over_chance() -> str:
    """Return the least and the largest of attention over chance for la-4, scan by scan."""
    (model,) = stored("analysis-la-4-cpu")["analysis"]["models"]
    return span((case["over_chance"] for case in model["attention"]["cases"]), ".1f")


def pair_dice(network: str) -> str:
    """Return the validation Dice of one network of the equal pair, `FHEAT-Seg` or `Light-UNETR`."""
    return f"{stored('analysis-trained-cpu')['validation_dice'][f'{network}, 2,000 iterations']:.4f}"


def _rows() -> dict[str, dict[str, Any]]:
    """Return the summary of every network, by its name in the tables and in their order."""
    zoo, pair, lengths = (stored(f"analysis-{name}-cpu") for name in ("la-4", "trained", "lengths"))
    (model,) = zoo["analysis"]["summary"]
    seg, light = zoo["fresh"]
    rows = {"`la-4`": model, ORDER[1]: zoo["fheat_blocks"], ORDER[2]: seg, ORDER[6]: light}
    rows |= {row["name"]: row for row in (*pair["analysis"]["summary"][1:], *lengths["analysis"]["summary"])}
    return {name: rows[name] for name in ORDER}


def _bold(name: str) -> str:
    return f"**{name}**" if name in PAIR else name
