"""The gates of any network: find them, and take one out."""

from torch import nn

from fheat.ops.heat import FractionalHeat


def gates_of(model: nn.Module) -> dict[str, FractionalHeat]:
    """Return the gates of a network by site. A shared gate is listed once.

    A site is the path of the module. A last part that is just `gate` is left out (`enc1.gate` is the site `enc1`),
    unless another gate has that name already.
    """
    gates: dict[str, FractionalHeat] = {}
    for path, module in model.named_modules():
        if isinstance(module, FractionalHeat):
            short = path.removesuffix(".gate") or "gate"
            gates[path if short in gates else short] = module
    return gates


def take_out(model: nn.Module, gate: FractionalHeat, alpha: float) -> None:
    """Bypass a closed gate of a network, in place.

    A learned gate returns a new tensor, a bypassed gate returns its input itself. A neighbouring layer that works in
    place would now overwrite the gate's input, so it is switched to working out of place.
    """
    if gate.delta is not None:
        for parent in model.modules():
            children = list(parent.children())
            if any(child is gate for child in children):
                for child in children:
                    if getattr(child, "inplace", False) is True:
                        child.inplace = False  # type: ignore[assignment]
    gate.bypass(alpha)
