"""Find the gates of any network."""

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
