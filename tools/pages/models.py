"""The trained model of the package (docs/zoo.md, probe.md, analyses.md) and the examples (docs/instrument.md)."""

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
