"""fheat: networks that learn how much global spectral mixing each layer needs, and drop the rest exactly.

The public names below are imported on first use, so that `import fheat` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fheat.gates.cost import cost as cost
    from fheat.gates.instrument import instrument as instrument
    from fheat.gates.probe import probe as probe
    from fheat.gates.retire import compose as compose
    from fheat.gates.retire import merge as merge
    from fheat.gates.retire import retire as retire
    from fheat.gates.table import allocation as allocation
    from fheat.inference.predictor import Predictor as Predictor
    from fheat.methods.registry import register_method as register_method
    from fheat.metrics.evaluate import evaluate as evaluate
    from fheat.models.card import Card as Card
    from fheat.models.folder import load as load
    from fheat.models.folder import save as save
    from fheat.networks.registry import create_model as create_model
    from fheat.networks.registry import list_models as list_models
    from fheat.networks.registry import register_model as register_model
    from fheat.ops.heat import FractionalHeat as FractionalHeat
    from fheat.system.errors import BadInput as BadInput
    from fheat.training.train import train as train

_HOME = {
    "BadInput": "fheat.system.errors",
    "Card": "fheat.models.card",
    "FractionalHeat": "fheat.ops.heat",
    "Predictor": "fheat.inference.predictor",
    "allocation": "fheat.gates.table",
    "compose": "fheat.gates.retire",
    "cost": "fheat.gates.cost",
    "create_model": "fheat.networks.registry",
    "evaluate": "fheat.metrics.evaluate",
    "instrument": "fheat.gates.instrument",
    "list_models": "fheat.networks.registry",
    "load": "fheat.models.folder",
    "merge": "fheat.gates.retire",
    "probe": "fheat.gates.probe",
    "register_method": "fheat.methods.registry",
    "register_model": "fheat.networks.registry",
    "retire": "fheat.gates.retire",
    "save": "fheat.models.folder",
    "train": "fheat.training.train",
}

_ROOMS = ("data", "inference", "io", "metrics", "nn", "ops", "testing")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fheat.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fheat' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
