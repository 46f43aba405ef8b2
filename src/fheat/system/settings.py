"""Typed settings: frozen sections of data that become a TOML file, command-line options and their help.

A section is a pydantic model whose fields have defaults and a docstring each. `Short` gives a field a second, short
name on the command line and in Python, such as `--labelled` for `--data.labelled`.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(ge=0)]
Triple = tuple[PositiveInt, PositiveInt, PositiveInt]


class Section(BaseModel):
    """A group of settings: immutable, without unknown fields, its fields described by the docstrings below them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        """Read the word none as None, which TOML does not have, in fields that may be None."""
        if not isinstance(values, dict):
            return values
        return {
            name: None if value == "none" and name in cls.model_fields and optional(cls.model_fields[name]) else value
            for name, value in values.items()
        }


def optional(field: FieldInfo) -> bool:
    """Return whether a field may be None."""
    return type(None) in get_args(field.annotation)


def plain(section: Section) -> dict[str, Any]:
    """Return a section as nested values that TOML can hold.

    What is None by default is left out; None in place of another default becomes the word none.
    """
    values = section.model_dump(mode="json")
    for name in list(values):
        value, field = getattr(section, name), type(section).model_fields.get(name)
        if isinstance(value, Section):
            values[name] = plain(value)
        elif value is None:
            if field is not None and field.default is None:
                del values[name]
            else:
                values[name] = "none"
    return values


@dataclass(frozen=True)
class Short:
    """Marks a field that has a short name: `labelled: Annotated[int, Short("labelled")]`."""

    name: str


def short_names(section: type[Section]) -> dict[str, str]:
    """Return the short names of a section's fields, each with the name of its field."""
    return {
        mark.name: name
        for name, field in section.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Short)
    }


def reason_of(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return the first complaint of a validation in one line: the dotted name of the field, and what is wrong."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{name} does not exist{nearest(name, known)}"
    context = first.get("ctx", {}).get("error")
    if context is not None:  # raised by a check of ours, which names its field itself where it spans several
        return f"{name}: {context}" if name and ": " not in str(context) else str(context)
    return f"{name}: {first['msg']}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ", perhaps data.labelled is meant", empty where nothing resembles the word.

    The last part of a dotted name is compared as well, so that `labeled` leads to `data.labelled`.
    """
    by_last = {name.rpartition(".")[2]: name for name in known}
    whole = difflib.get_close_matches(word, list(by_last.values()), n=1, cutoff=0.7)
    last = difflib.get_close_matches(word.rpartition(".")[2], list(by_last), n=1, cutoff=0.7)
    close = whole or [by_last[name] for name in last]
    return f", perhaps {close[0]} is meant" if close else ""
