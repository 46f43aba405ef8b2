"""Settings of a run as options: every field of every section becomes `--section.field`, common ones a short name too.

The options, their types, their help and their defaults come from the sections themselves. Which options the sections
`network` and `method` have depends on the network and the method that are named, so those names are looked up first.
"""

from collections.abc import Sequence
from dataclasses import field, make_dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.methods.base import MethodSettings
from fheat.methods.registry import DEFAULT_METHOD, list_methods
from fheat.networks.registry import list_models, model_options, option_types
from fheat.system.errors import BadInput
from fheat.system.settings import Section, Short, optional
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import make_settings, nest, read_toml, sections


def parse_settings(
    kind: type[Any], verb: str, arguments: Sequence[str], values: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the options of a verb and the settings that were given, by section.

    `kind` is a dataclass with the options of the verb itself; `values` are settings known so far, from a file or a run,
    which become the defaults that `--help` shows.
    """
    known = nest(values)
    method = _named(arguments, "method") or known.get("method", {}).get("name", DEFAULT_METHOD)
    network = _named(arguments, "network") or known.get("network", {}).get("name", "fheat_seg")
    kinds = _kinds(method, network)
    defaults = {
        name: section.model_construct(**_defaults(section) | known.get(name, {})) for name, section in kinds.items()
    }
    members = [(name, kinds[name], field(default_factory=partial(_same, value))) for name, value in defaults.items()]
    together = make_dataclass(kind.__name__, members, bases=(kind,), frozen=True, namespace={"__doc__": kind.__doc__})
    options: Any = parse(together, verb, _with_none(arguments, kinds), none=True)
    given = {
        name: {
            one: value
            for one in section.model_fields
            if (value := getattr(getattr(options, name), one)) != getattr(defaults[name], one)
        }
        for name, section in kinds.items()
    }
    for what in ("method", "network"):
        if _named(arguments, what) is not None:  # the defaults are those of the one that is named
            given[what]["name"] = getattr(options, what).name
    return options, {name: values for name, values in given.items() if values}


def checked_settings(known: dict[str, Any], given: dict[str, Any]) -> TrainSettings:
    """Return settings from what is known, which was checked, and what was given on the command line, which wins.

    A value that cannot be used is a usage error that names its option.
    """
    merged = nest(known)
    for section, values in given.items():
        merged[section] = dict(merged.get(section, {})) | values
    try:
        return make_settings(merged)
    except BadInput as error:
        raise UsageError(_as_option(error.reason)) from None


def config_values(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file by section, or raise `BadInput` where one cannot be used.

    The dataset may be missing there: it can be given on the command line.
    """
    content = nest(read_toml(path))
    data = content.get("data", {})
    whole = content | {"data": {"folder": ""} | data} if isinstance(data, dict) else content
    return make_settings(whole, path).model_dump()


def _as_option(reason: str) -> str:
    """Name the option instead of the field: `field data.batch: ...` becomes `--data.batch: ...`."""
    words = reason.removeprefix("field ")
    name, _, rest = words.partition(" " if ":" not in words.split(" ")[0] else ":")
    separator = words[len(name) : len(words) - len(rest)]
    return f"--{name.replace('_', '-')}{separator}{rest}" if reason.startswith("field ") else reason


def _named(arguments: Sequence[str], what: str) -> str | None:
    """Return the name that `--method NAME`, `--method=NAME` or `--method.name NAME` gives."""
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in (f"--{what}", f"--{what}.name"):
            return value if equals else next(iter(arguments[index + 1 :]), None)
    return None


def _kinds(method: str, network: str) -> dict[str, type[BaseModel]]:
    """Return for every section a model of its options, as tyro wants it: types with short names and help."""
    try:
        kinds = sections(method)
    except ValueError as error:
        raise UsageError(str(error)) from None
    options = {name: _options(kind) for name, kind in kinds.items()}
    del options["data"]["folder"]  # it is the positional argument
    name = options["method"]["name"]
    text = MethodSettings.model_fields["name"].description
    choices: Any = Literal[tuple(list_methods())]
    options["method"]["name"] = (Annotated[choices, _argument(["--method"], text)], name[1])
    options["network"] |= _network_options(network)
    return {name: create_model(kind.__name__, __doc__=kind.__doc__, **options[name]) for name, kind in kinds.items()}


def _options(kind: type[Section]) -> dict[str, Any]:
    """Return the fields of a section without their bounds, which are checked when all settings are known."""
    options: dict[str, Any] = {}
    for name, one in kind.model_fields.items():
        short = [f"--{mark.name.replace('_', '-')}" for mark in one.metadata if isinstance(mark, Short)]
        annotation: Any = Annotated[_bare(one.annotation), _argument(short, one.description, one)]
        options[name] = (annotation, Field(default=one.default))
    return options


def _bare(annotation: Any) -> Any:
    """Return a type without the bounds of its parts: PositiveInt | None becomes int | None."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _bare(inner[0])
    if get_origin(annotation) is tuple:
        return tuple[tuple(_bare(one) for one in inner)]  # type: ignore[misc]
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_bare(one) for one in inner)]  # noqa: UP007 - the members are not known beforehand
    return annotation


def _argument(aliases: list[str], text: str | None, one: FieldInfo | None = None) -> Any:
    """Return how an option is written and described; a default of None is described by its own words."""
    quiet = one is not None and (one.default is None or isinstance(one.default, bool) or one.default == ())
    words: dict[str, Any] = {"help": " ".join((text or "").split())}
    if aliases:
        words["aliases"] = aliases
    if quiet:
        words["help_behavior_hint"] = ""
    if one is not None and optional(one):
        words["metavar"] = f"{_metavar(one.annotation)}|none"
    return tyro.conf.arg(**words)


def _metavar(annotation: Any) -> str:
    """Return what an option takes, in capitals: INT, or FLOAT FLOAT FLOAT."""
    inner = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) is Annotated:
        return _metavar(inner[0])
    if get_origin(annotation) is tuple or inner:
        return " ".join(_metavar(one) for one in inner)
    return str(getattr(annotation, "__name__", annotation)).upper()


def _network_options(network: str) -> dict[str, Any]:
    """Return the options of a network with the types and defaults of its builder."""
    if network not in list_models():
        return {}
    text, types = f"Option of {network}; see docs/networks.md.", option_types(network)
    return {
        name: (Annotated[types[name], _argument([], text)], Field(default=default, description=text))
        for name, default in model_options(network).items()
        if _printable(default)
    }


def _printable(default: Any) -> bool:
    return isinstance(default, str | int | float | bool | tuple) or default is None


def _defaults(section: type[BaseModel]) -> dict[str, Any]:
    return {name: one.default for name, one in section.model_fields.items()}


def _with_none(arguments: Sequence[str], kinds: dict[str, type[BaseModel]]) -> list[str]:
    """Write the word none as tyro reads it, behind options that may be None."""
    may = {f"--{section}.{name}" for section, kind in kinds.items() for name in kind.model_fields}
    may = {
        option.replace("_", "-")
        for option in may
        if optional(kinds[option[2:].split(".")[0]].model_fields[option.split(".", 1)[1]])
    }
    words = list(arguments)
    for index in range(1, len(words)):
        if words[index] == "none" and words[index - 1].replace("_", "-") in may:
            words[index] = "None"
    return [
        f"{word.partition('=')[0]}=None" if word.endswith("=none") and word.partition("=")[0] in may else word
        for word in words
    ]


def _same(value: BaseModel) -> BaseModel:
    return value
