"""Find the gates of any network, and take one out."""

from torch import nn

from fheat.ops.heat import FractionalHeat


def gates_of(model: nn.Module) -> dict[str, FractionalHeat]:
    """Return the gates by site. A shared gate is listed once.

    A site is the module path; a last part that is just `gate` is left out (`enc1.gate` is the site `enc1`) unless
    another gate has that name already.
    """
    found: dict[str, FractionalHeat] = {}
    for path, module in model.named_modules():
        if isinstance(module, FractionalHeat):
            short = path.removesuffix(".gate") or "gate"
            found[path if short in found else short] = module
    return found


def take_out(model: nn.Module, gate: FractionalHeat, alpha: float) -> None:
    """Bypass a closed gate of a network in place.

    A learned gate returns a new tensor, a bypassed one its input itself. A layer beside it that works in place would
    now write into what stands before the gate, so it is made to work out of place.
    """
    if gate.delta is not None:
        for parent in model.modules():
            children = list(parent.children())
            if any(child is gate for child in children):
                for child in children:
                    if getattr(child, "inplace", False) is True:
                        child.inplace = False  # type: ignore[assignment]
    gate.bypass(alpha)
