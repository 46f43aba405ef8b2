"""Training methods by name: those of this package, those registered at run time, and those of installed plug-ins."""

import inspect
from importlib import import_module

from fheat.methods.base import Method, MethodSettings
from fheat.system.plugins import PluginGroup
from fheat.system.settings import nearest

GROUP = "fheat.methods"
DEFAULT_METHOD = "cse"
"""Method of a run that names none."""
_BUILT_IN = {
    "cse": "fheat.methods.cse:CSE",
    "supervised": "fheat.methods.supervised:Supervised",
    "mean_teacher": "fheat.methods.mean_teacher:MeanTeacher",
    "ua_mt": "fheat.methods.ua_mt:UAMT",
    "bcp": "fheat.methods.bcp:BCP",
    "cps": "fheat.methods.cps:CPS",
    "fixmatch": "fheat.methods.fixmatch:FixMatch",
    "caml": "fheat.methods.caml:CAML",
    "mlrp": "fheat.methods.mlrp:MLRP",
    "sassnet": "fheat.methods.sassnet:SASSNet",
    "ss_net": "fheat.methods.ss_net:SSNet",
}
_REGISTERED: dict[str, type[Method]] = {}


def register_method(name: str, method: type[Method]) -> None:
    """Add a training method, so that `fheat.train(method=name)` knows it in this process.

    A package makes its methods known to the command line as well, by an entry point of the group `fheat.methods`.
    """
    if name in _BUILT_IN or name in _REGISTERED:
        raise ValueError(f"method {name!r} exists already: choose another name")
    _REGISTERED[name] = _checked(name, method)


def _register_plugin(name: str, method: type[Method]) -> None:
    if _REGISTERED.get(name) is not method:  # its own module may have registered it already
        register_method(name, method)


_PLUGINS = PluginGroup(GROUP, _register_plugin)


def list_methods() -> list[str]:
    """Return the names of all training methods."""
    _PLUGINS.load()
    return [*_BUILT_IN, *_REGISTERED]


def method_class(name: str) -> type[Method]:
    """Return the method of this name, or raise `ValueError` that names the nearest one."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return _checked(name, getattr(import_module(module), attribute))
    known = list_methods()
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _PLUGINS.refused:
        raise ValueError(f"method {name!r} is a plug-in that cannot be used ({_PLUGINS.refused[name]})")
    raise ValueError(f"method {name!r} is unknown{nearest(name, known)}: use {', '.join(known)}")


def _checked(name: str, method: object) -> type[Method]:
    if not inspect.isclass(method) or not issubclass(method, Method):
        raise ValueError(f"method {name!r} is {method!r}: it must be a subclass of fheat.methods.base.Method")
    if not issubclass(method.Settings, MethodSettings):
        raise ValueError(f"method {name!r} has Settings that are not a MethodSettings: derive them from it")
    return method
