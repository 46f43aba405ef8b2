"""Where settings come from and go to: TOML files, keywords with dotted or short names, and the form before sections."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fheat.methods.registry import DEFAULT_METHOD, method_class
from fheat.models.start import network_of_start
from fheat.networks.registry import model_options
from fheat.system.errors import BadInput
from fheat.system.files import TEXT_LIMIT, read_capped
from fheat.system.settings import Section, plain, reason_of, short_names
from fheat.training.settings import TrainSettings

PRESETS: dict[str, dict[str, Any]] = {"paper": {"optimiser.clip": None, "validation.every": 200}}
"""Settings by dotted name under one name. `paper` takes the paper and its protocol at their word: no gradient is
clipped, and the network is chosen every 200 iterations. Where the paper is silent, the defaults stay."""

LONGEST_REASON = 500
"""Number of characters of a reason that are shown; it may quote a value, however long."""


def to_toml(settings: TrainSettings) -> str:
    """Return the settings as TOML, a table per section; `read_settings` reads them back as they were."""
    return tomli_w.dumps(plain(settings))


def sections(method: str = DEFAULT_METHOD) -> dict[str, type[Section]]:
    """Return the kind of every section by name; that of `method` is the settings of the method that is named."""
    kinds = {name: field.annotation for name, field in TrainSettings.model_fields.items()}
    kinds["method"] = method_class(method).Settings
    return kinds  # type: ignore[return-value]


def short_to_dotted(method: str = DEFAULT_METHOD) -> dict[str, str]:
    """Return every short name with the dotted name of its setting.

    A field that only one section has is known by its own name as well.
    """
    fields = [(section, name) for section, kind in sections(method).items() for name in kind.model_fields]
    count = Counter(name for _, name in fields)
    names = {name: f"{section}.{name}" for section, name in fields if count[name] == 1}
    names |= {"data": "data.folder", "network": "network.name", "method": "method.name"}
    for section, kind in sections(method).items():
        names |= {short: f"{section}.{name}" for short, name in short_names(kind).items()}
    return names


def dotted_names(method: str = DEFAULT_METHOD, network: str = "fheat_seg") -> list[str]:
    """Return the dotted names of all settings, with those of a method and the options of a network."""
    names = [f"{section}.{name}" for section, kind in sections(method).items() for name in kind.model_fields]
    return [*names, *(f"network.{option}" for option in model_options(network))]


def make_settings(values: Mapping[str, Any], source: str | Path = "settings") -> TrainSettings:
    """Return settings from values by section, by dotted name or by short name, or raise `BadInput` naming the field.

    `{"data": "scans", "labelled": 4, "optimiser.clip": None, "network": {"name": "fheat_seg", "mixer": "gelu"}}`

    A value named `preset` stands for the settings of `PRESETS` that are not given themselves.
    """
    nested: dict[str, Any] = {}
    try:
        nested = with_start(_with_preset(values))
        return TrainSettings.model_validate(nested)
    except (ValidationError, ValueError) as error:
        known = _known(nested)
        reason = reason_of(error, known) if isinstance(error, ValidationError) else str(error)
        raise BadInput(source, f"field {reason[:LONGEST_REASON]}", "see fheat train --help") from None
    except BadInput as error:
        raise BadInput(source, f"field network.start: {error.path} {error.reason}", error.remedy) from None


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sort values by dotted or short name into sections; sections that are given as such stay."""
    method = values.get("method", values.get("method.name"))
    name = method.get("name") if isinstance(method, Mapping) else method
    try:
        short = short_to_dotted(str(name or DEFAULT_METHOD))
    except ValueError:  # validation says so, with the nearest name
        short = short_to_dotted()
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping | Section) and key in TrainSettings.model_fields:
            content = value.model_dump(exclude_unset=True) if isinstance(value, Section) else value
            nested.setdefault(key, {}).update(content)
            continue
        section, dot, field = short.get(key, key).partition(".")
        if key in TrainSettings.model_fields and (not dot or not isinstance(value, str)):
            raise ValueError(f"{key}: is a section and takes a table of settings, not {value!r}")
        if dot:
            nested.setdefault(section, {})[field] = value
        else:
            nested[key] = value
    return nested


def with_start(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by section, in which a run that starts from a model and names no network has that of the model.

    Modules behind which gates are to be put come on top of those behind which the model has some. Raises `BadInput`
    where there is no such model, and `ValueError` for an initial strength where all gates are the model's.
    """
    network = sections.get("network")
    start = network.get("start") if isinstance(network, Mapping) else None
    if not isinstance(network, Mapping) or not isinstance(start, str) or start == "none" or "name" in network:
        return dict(sections)
    model = network_of_start(start)
    placed, wanted = model.get("instrument", []), network.get("instrument", ())
    if placed and not wanted and network.get("initial_strength") is not None:
        raise ValueError(
            "network.initial_strength: the gates of the model that the run starts from keep their strengths"
        )
    merged = model | dict(network)
    if placed and isinstance(wanted, list | tuple):
        merged["instrument"] = list(dict.fromkeys([*placed, *wanted]))
    return dict(sections) | {"network": merged}


def read_settings(path: Path, overrides: Mapping[str, Any] | None = None) -> TrainSettings:
    """Read a TOML file and replace what `overrides` names, or raise `BadInput` naming the field."""
    content = read_toml(path)
    try:
        merged = _merged(content, overrides or {})
    except ValueError as error:
        raise BadInput(path, f"field {str(error)[:LONGEST_REASON]}", "see fheat train --help") from None
    return make_settings(merged, path)


def load_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file as it is, or raise `BadInput`."""
    try:
        return tomllib.loads(read_capped(path, TEXT_LIMIT).decode())
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(path, f"is not TOML ({error})", "mend that line") from None
    except RecursionError:
        raise BadInput(path, "is nested too deeply", "give a table of settings, see docs/how-to/train.md") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a settings file by section; one of the flat form before sections is converted."""
    content = load_toml(path)
    try:
        return from_flat(content) if is_flat(content) else content
    except ValueError as error:
        raise BadInput(path, f"field {error}", "see fheat train --help") from None


def stored_settings(content: Mapping[str, Any], source: Path) -> TrainSettings:
    """Return settings that a checkpoint or a model card holds, in the form of today or that before sections."""
    return make_settings(from_flat(content) if is_flat(content) else content, source)


def is_flat(content: Mapping[str, Any]) -> bool:
    """Return whether settings have the form before sections: none of their values is a section."""
    return not any(isinstance(value, Mapping) for name, value in content.items() if name in TrainSettings.model_fields)


_FLAT = {
    "rate": "optimiser.learning_rate",
    "theta_rate": "optimiser.theta",
    "delta_rate": "optimiser.delta",
    "rational_rate": "optimiser.rational",
    "weight_decay": "optimiser.weight_decay",
    "clip": "optimiser.clip",
    "precision": "optimiser.precision",
    "deterministic": "optimiser.deterministic",
    "stride": "validation.stride",
    "probe_batches": "research.probe_batches",
    "noise": "research.noise",
    "spike": "research.spike",
    "spike_for": "research.spike_for",
}
"""Names of settings before there were sections, where they are not short names of today."""


def from_flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of the form without sections, which earlier versions wrote, by section.

    Settings of CSE that a supervised run carried along without using them are left out.
    """
    values = {_FLAT.get(name, name): value for name, value in content.items() if name != "network_options"}
    if values.get("method", DEFAULT_METHOD) != DEFAULT_METHOD:
        values = {name: value for name, value in values.items() if name not in ("box", "ramp")}
    nested = nest(values)
    options = content.get("network_options", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"network_options: takes a table of options, not {options!r}")
    nested.setdefault("network", {}).update(options)
    if "theta_rate" in content:  # a run of an earlier version, which trained exclusive classes
        nested.setdefault("data", {}).setdefault("regions", "no")
    return nested


def _with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in values.items() if name != "preset"}
    name = values.get("preset")
    if name is None:
        return nest(others)
    if name not in PRESETS:
        raise ValueError(f"preset: {name!r} is unknown; use {', '.join(PRESETS)}")
    return _merged(PRESETS[name], others)


def _merged(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    sections = nest(content)
    for section, values in nest(overrides).items():
        if isinstance(values, Mapping) and isinstance(sections.get(section), dict):
            sections[section] = sections[section] | dict(values)
        else:
            sections[section] = values
    return sections


def _known(nested: Mapping[str, Any]) -> list[str]:
    method, network = (
        section.get("name") if isinstance(section, Mapping) else None
        for section in (nested.get("method"), nested.get("network"))
    )
    try:
        return [*dotted_names(method or DEFAULT_METHOD, network or "fheat_seg"), *TrainSettings.model_fields]
    except (ValueError, KeyError, TypeError):
        return dotted_names()
