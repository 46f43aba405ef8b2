"""The gates of any network, and what may stand in their places: find them, and take one out."""

from torch import nn

from fheat.ops.heat import FractionalHeat
from fheat.ops.spectral_mixer import SpectralMixer


def gates_of(model: nn.Module) -> dict[str, FractionalHeat]:
    """Return the gates of a network by site. A shared gate is listed once.

    A site is the path of the module. A last part that is just `gate` is left out (`enc1.gate` is the site `enc1`),
    unless another gate has that name already.
    """
    return {site: one for site, one in operators_of(model).items() if isinstance(one, FractionalHeat)}


def operators_of(model: nn.Module) -> dict[str, FractionalHeat | SpectralMixer]:
    """Return the gates of a network by site, and the spectral mixers that stand in the place of gates."""
    operators: dict[str, FractionalHeat | SpectralMixer] = {}
    for path, module in model.named_modules():
        if isinstance(module, FractionalHeat | SpectralMixer):
            short = path.removesuffix(".gate") or "gate"
            operators[path if short in operators else short] = module
    return operators


def take_out(model: nn.Module, gate: FractionalHeat | SpectralMixer, alpha: float) -> None:
    """Bypass a closed gate of a network, or an operator that shall be left out, in place.

    A learned gate returns a new tensor, a bypassed gate returns its input itself. A neighbouring layer that works in
    place would now overwrite the gate's input, so it is switched to working out of place.
    """
    if isinstance(gate, SpectralMixer) or gate.delta is not None:
        for parent in model.modules():
            children = list(parent.children())
            if any(child is gate for child in children):
                for child in children:
                    if getattr(child, "inplace", False) is True:
                        child.inplace = False  # type: ignore[assignment]
    gate.bypass(alpha)
