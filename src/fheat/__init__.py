"""fheat: networks that learn how much global spectral mixing each layer needs, and drop the rest exactly.

The public names below are imported on first use, so that `import fheat` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fheat.allocation.cost import cost as cost
    from fheat.allocation.instrument import instrument as instrument
    from fheat.allocation.merge import compose as compose
    from fheat.allocation.merge import merge as merge
    from fheat.allocation.probe import probe as probe
    from fheat.allocation.retire import retire as retire
    from fheat.allocation.table import allocation as allocation
    from fheat.errors import BadInput as BadInput
    from fheat.inference.predictor import Predictor as Predictor
    from fheat.metrics.evaluate import evaluate as evaluate
    from fheat.models.card import Card as Card
    from fheat.models.folder import load as load
    from fheat.models.folder import save as save
    from fheat.models.registry import create_model as create_model
    from fheat.models.registry import list_models as list_models
    from fheat.models.registry import register_model as register_model
    from fheat.ops.heat import FractionalHeat as FractionalHeat

_HOME = {
    "BadInput": "fheat.errors",
    "Card": "fheat.models.card",
    "FractionalHeat": "fheat.ops.heat",
    "Predictor": "fheat.inference.predictor",
    "allocation": "fheat.allocation",
    "compose": "fheat.allocation.merge",
    "cost": "fheat.allocation.cost",
    "create_model": "fheat.models.registry",
    "evaluate": "fheat.metrics.evaluate",
    "instrument": "fheat.allocation.instrument",
    "list_models": "fheat.models.registry",
    "load": "fheat.models.folder",
    "merge": "fheat.allocation.merge",
    "probe": "fheat.allocation.probe",
    "register_model": "fheat.models.registry",
    "retire": "fheat.allocation.retire",
    "save": "fheat.models.folder",
}

_ROOMS = ("data", "inference", "io", "metrics", "nn", "ops", "testing")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fheat.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fheat' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = module if name == "allocation" else getattr(module, name)  # a room that can be called, see there
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
