"""Settings of a run as options: every field of every section becomes `--section.field`, common ones a short name too.

The options, their types, their help and their defaults come from the sections themselves. Which options the sections
`network` and `method` have depends on the network and the method that are named, so those names are looked up first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.methods.base import MethodSettings
from fheat.methods.registry import DEFAULT_METHOD, list_methods, method_class
from fheat.models.start import network_of_start
from fheat.networks.registry import list_models, model_options, option_types
from fheat.system.errors import BadInput
from fheat.system.settings import Section, Short, optional
from fheat.training.settings import NetworkSettings, TrainSettings
from fheat.training.settings_sources import make_settings, nest, read_toml, sections, with_start


def parse_settings(
    kind: type[Any], verb: str, arguments: Sequence[str], file: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the options of a verb and the settings that were given as options, by section.

    `kind` is a dataclass with the options of the verb itself; `file` holds the settings of a TOML file by section. They
    may name the network and the method.
    """
    method = _said(arguments, "--method", "--method.name") or _text_in(file.get("method"), "name")
    network = _said(arguments, "--network", "--network.name") or _text_in(file.get("network"), "name")
    start = _said(arguments, "--from", "--network.start") or _text_in(file.get("network"), "start")
    if network is None and start is not None:
        network = network_of_start(start)["name"]
    kinds = _kinds(method or DEFAULT_METHOD, network or NetworkSettings().name)
    members = [(name, section, field(default_factory=section)) for name, section in kinds.items()]
    together = make_dataclass(kind.__name__, members, bases=(kind,), frozen=True, namespace={"__doc__": kind.__doc__})
    options: Any = parse(together, verb, _with_none(arguments, kinds), none=True)
    said = {word.partition("=")[0].replace("_", "-") for word in arguments}
    given: dict[str, Any] = {}
    for words, (section, name) in _words(kinds).items():
        if words & said:
            value = getattr(getattr(options, section), name)
            if value == ():
                raise UsageError(f"{min(words & said)} takes one value or more: give them, or leave the option out")
            given.setdefault(section, {})[name] = value
    return options, given


def merged_settings(file: dict[str, Any], given: dict[str, Any], source: Path | None) -> TrainSettings:
    """Return settings from a TOML file and from the command line, which wins.

    A value that cannot be used is a usage error that names its option where it was given there, else `BadInput` with
    the file. Where the command line names another method or network, settings of the file that it lacks are left out.
    """
    merged = {section: dict(values) if isinstance(values, dict) else values for section, values in file.items()}
    for what, known in (("method", _method_fields), ("network", _network_fields)):
        name = given.get(what, {}).get("name")
        if name is not None and isinstance(merged.get(what), dict) and _text_in(file.get(what), "name") != name:
            merged[what] = {key: value for key, value in merged[what].items() if key in known(name)}
    for section, values in given.items():
        merged[section] = dict(merged.get(section, {})) | values
    try:
        merged = with_start(merged)
    except ValueError as error:
        raise UsageError(_as_option(f"field {error}")) from None
    try:
        return make_settings(merged, source or "options")
    except BadInput as error:
        section, _, name = error.reason.removeprefix("field ").split(":")[0].split(" ")[0].partition(".")
        if source is None or name in given.get(section, {}):
            raise UsageError(_as_option(error.reason)) from None
        raise


def file_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file by section, or raise `BadInput` where it cannot be read."""
    try:
        return nest(read_toml(path))
    except ValueError as error:
        raise BadInput(path, f"field {error}", "see fheat train --help") from None


def _as_option(reason: str) -> str:
    """Name the option instead of the field: `field data.batch: ...` becomes `--data.batch: ...`."""
    words = reason.removeprefix("field ")
    name, _, rest = words.partition(" " if ":" not in words.split(" ")[0] else ":")
    separator = words[len(name) : len(words) - len(rest)]
    return f"--{name.replace('_', '-')}{separator}{rest}" if reason.startswith("field ") else reason


def _said(arguments: Sequence[str], *options: str) -> str | None:
    """Return what follows one of these options, as in `--method NAME` or `--method=NAME`."""
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in options:
            return value if equals else next(iter(arguments[index + 1 :]), None)
    return None


def _text_in(section: Any, field: str) -> str | None:
    text = section.get(field) if isinstance(section, dict) else None
    return text if isinstance(text, str) else None


def _method_fields(name: str) -> Iterable[str]:
    return sections(name)["method"].model_fields


def _network_fields(name: str) -> Iterable[str]:
    return [*NetworkSettings.model_fields, *(model_options(name) if name in list_models() else ())]


def _words(kinds: dict[str, type[BaseModel]]) -> dict[frozenset[str], tuple[str, str]]:
    """Return every setting by the words that give it: its long option and its short one."""
    words: dict[frozenset[str], tuple[str, str]] = {}
    for section, kind in kinds.items():
        for name, one in kind.model_fields.items():
            aliases = [alias for mark in one.metadata for alias in getattr(mark, "aliases", None) or ()]
            words[frozenset([f"--{section}.{name}".replace("_", "-"), *aliases])] = section, name
    return words


def _kinds(method: str, network: str) -> dict[str, type[BaseModel]]:
    """Return for every section a model of its options, as tyro wants it: types with short names and help."""
    try:
        kinds = sections(method)
    except ValueError as error:
        raise UsageError(str(error)) from None
    options = {name: _options(kind) for name, kind in kinds.items()}
    del options["data"]["folder"]  # it is the positional argument
    titles = "; ".join(f"{name}: {method_class(name).title}" for name in list_methods())
    choices: Any = Literal[tuple(list_methods())]
    text = f"{MethodSettings.model_fields['name'].description} {titles}."
    options["method"]["name"] = (Annotated[choices, _argument(["--method"], text)], Field(default=method))
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
    text, types = f"Option of {network}; see docs/evidence/networks.md.", option_types(network)
    options = {}
    for name, default in model_options(network).items():
        if _printable(default):
            off = FieldInfo(annotation=types[name], default=None) if default is None else None
            options[name] = Annotated[types[name], _argument([], text, off)], Field(default=default, description=text)
    return options


def _printable(default: Any) -> bool:
    return isinstance(default, str | int | float | bool | tuple) or default is None


def _defaults(section: type[BaseModel]) -> dict[str, Any]:
    return {name: one.default for name, one in section.model_fields.items()}


def _with_none(arguments: Sequence[str], kinds: dict[str, type[BaseModel]]) -> list[str]:
    """Write the word none as tyro reads it, behind options that may be None."""
    may = {
        word
        for words, (section, name) in _words(kinds).items()
        if optional(kinds[section].model_fields[name])
        for word in words
    }
    written: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if equals and value == "none" and option.replace("_", "-") in may:
            word = f"{option}=None"
        elif word == "none" and written and written[-1].replace("_", "-") in may:
            word = "None"
        written.append(word)
    return written
