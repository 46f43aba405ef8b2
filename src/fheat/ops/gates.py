"""Find the gates of any network."""

from torch import nn

from fheat.ops.heat import FractionalHeat


def gates_of(model: nn.Module) -> dict[str, FractionalHeat]:
    """Return the gates by site: the module path without a closing `gate`. A shared gate is listed once."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, FractionalHeat):
            found[path.removesuffix("gate").removesuffix(".") or "gate"] = module
    return found
