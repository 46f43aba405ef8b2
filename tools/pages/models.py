"""The trained model of the package (zoo.md, probe.md, analyses.md) and the examples (docs/how-to/add-a-gate.md)."""

from pages.common import stored, stored_head, table


def zoo() -> str:
    """Return the table of the models in the package, from their cards."""
    from fheat import Card, load
    from fheat.models.zoo import zoo_names

    rows: list[list[str]] = []
    for name in zoo_names():
        card = load(name).card
        assert isinstance(card, Card)
        rows.append([f"`{name}`", f"{card.metrics['validation_dice']:.4f}", card.data, card.licence])
    return table(["name", "validation Dice", "data", "licence of use"], rows)


def zoo_cards() -> str:
    """Return for what each model of the package is meant and where it must be expected to be wrong, from its card."""
    from fheat.models.folder import read_manifest
    from fheat.models.zoo import zoo_folder, zoo_names

    cards = {name: read_manifest(zoo_folder(name)).card for name in zoo_names()}
    return "\n\n".join(
        f"**`{name}`**: {card.title}. *Intended use:* {card.intended_use} *Limits:* {card.limits}"
        for name, card in cards.items()
    )


def unusual_scans() -> str:
    """Return how many validation scans of each dataset look unlike the training scans of each, by ranges and scans."""
    titles = {"la": "LA", "brats": "BraTS", "hippocampus": "hippocampus"}
    rows: list[list[str]] = []
    for name, found in stored("ranges-cpu")["ranges_of"].items():
        cells = [
            f"{row['unusual']} of {row['scans']} ({row['by_intensity']})"
            for row in (found["compared"][other] for other in titles)
        ]
        rows.append([f"{titles[name]}, {found['training_scans']} scans", *cells])
    return table(["ranges over the training scans of", *titles.values()], rows)


def unusual_brain() -> str:
    """Return what `fheat predict la-4` says of a brain, as a block of code."""
    return f"    note: {stored('ranges-cpu')['la_4_on_a_brain']}"


def unusual_after_few(count: str) -> str:
    """Return the share of a dataset's own validation scans that are unusual after `count` training scans, in per cent.

    It is the greatest over the datasets.
    """
    shares = [found["false_share_after"][count] for found in stored("ranges-cpu")["ranges_of"].values()]
    return f"{100 * max(shares):.1f}"


def measuring_time() -> str:
    """Return the longest of the median milliseconds that measuring a scan takes, over the datasets."""
    return f"{max(times['measuring'] for times in stored('ranges-cpu')['milliseconds'].values()):.1f}"


def probe_output() -> str:
    """Return what `fheat probe` printed for la-4, as a block of code."""
    from fheat.gates.probe import Finding, Probe

    gates = stored("probe-la-4-cpu")["gates"]
    unclear = ", ".join(gate["site"] for gate in gates if abs(gate["pairing"]) < 2 * gate["error"])
    lines = [
        f"$ {stored_head('probe-la-4-cpu').command}",
        "",
        *str(Probe([Finding(**row) for row in gates])).split("\n"),
        "",
        f"P > 0 predicts an open gate, P < 0 a closed one: {probe_agreement()} sites are as predicted.",
        f"Within two standard errors of zero: {unclear}.",
    ]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def probe_agreement() -> str:
    """Return at how many gates of la-4 the sign of P tells whether training left them open."""
    gates = stored("probe-la-4-cpu")["gates"]
    return f"{sum((gate['pairing'] > 0) == (gate['D'] > 0) for gate in gates)} of {len(gates)}"


def survivors() -> str:
    """Return Table I of `fheat allocation` for la-4."""
    gates = stored("probe-la-4-cpu")["gates"]
    kept = [gate for gate in gates if gate["D"] > 0]
    dice = stored("la-4-cuda")["runs"]["seed0-16000"]["best"]["dice"]
    row = [
        "la-4",
        ", ".join(gate["site"] for gate in kept),
        ", ".join(f"{gate['D']:.3f}" for gate in kept),
        ", ".join(f"{gate['alpha']:.3f}" for gate in kept),
        f"{len(gates) - len(kept)} of {len(gates)}",
        f"{dice:.4f}",
        "0",
    ]
    return table(["model", "survivors", "D", "alpha", "closed", "validation Dice", "seed"], [row])


def example(name: str) -> str:
    """Return what an example printed, as a block of code."""
    return "\n".join(["```text", *stored("examples-cpu")[name]["lines"], "```"])


def exports() -> str:
    """Return the table of the exports of the zoo: difference from PyTorch, voxels with another class, time, bytes."""
    rows = [
        [
            f"`{row['model']}`",
            f"`{row['format']}`",
            f"{row['largest_difference']:.1e}" if row["largest_difference"] else "0",
            f"{row['other_class']:,} of {row['voxels']:,}",
            f"{row['cpu_seconds']:.0f}",
            f"{row['bytes'] / 1e6:.1f}",
        ]
        for row in stored("export-cpu")["exports"]
    ]
    return table(["model", "format", "largest difference", "voxels with another class", "seconds", "MB"], rows)


def export_masks() -> str:
    """Return the table of Dice between masks without fheat and those of `fheat predict`."""
    kinds = {"short": "ONNX, segment_onnx.py", "example": "ONNX, segment_onnx_any.py", "bundle": "MONAI bundle"}
    found = stored("export-cpu")["dice_with_predict"]
    rows = [
        [f"`{model}`", title, *(_dice_text(found[model][kind].get(scan)) for scan in ("stored", "resampled"))]
        for model in found
        for kind, title in kinds.items()
    ]
    return table(["model", "segmented with", "scan as stored", "scan resampled"], rows)


def _dice_text(value: float | None) -> str:
    return "refused" if value is None else f"{value:.4f}"
