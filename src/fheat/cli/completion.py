"""`fheat completion SHELL`: print the script with which a shell completes verbs, options and their values.

The script holds all words, so that a shell completes without starting Python. They are read from the dataclasses that
the verbs parse, so nothing is listed twice. Options that depend on another one are those of the default: `fheat train`
completes the settings of its default network and method.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from pydantic import BaseModel

from fheat.cli import data
from fheat.cli.completion_scripts import Option, Verb, bash_script, fish_script, zsh_script
from fheat.cli.main import VERBS
from fheat.cli.options import field_docstrings, kind_of_options, parse
from fheat.models.zoo import zoo_names

HELP = Option(("-h", "--help"), "Show the options of the verb and exit.", takes_value=False)


@dataclass(frozen=True)
class Completion:
    """Print the script with which a shell completes the verbs of fheat, their options and the values of these. Save it
    where the shell looks for such scripts, and again after an update of fheat.

    Example: fheat completion bash > ~/.local/share/bash-completion/completions/fheat

    Example: fheat completion zsh > ~/.zfunc/_fheat

    Example: fheat completion fish > ~/.config/fish/completions/fheat.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")]
    """bash, zsh or fish. The folder of the script for zsh must be in fpath before compinit is called."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Completion, "completion", arguments)
    write = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[options.shell]
    print(write(list(all_verbs())), end="")


def all_verbs() -> Iterator[Verb]:
    """Yield every verb with its options; the verbs of `fheat data` as `data check` and so on."""
    for name, text in VERBS.items():
        if name != "data":
            yield described(name, text, import_module(f"fheat.cli.{name}").run)
    for name, text in data.VERBS.items():
        yield described(f"data {name}", text, import_module(f"fheat.cli.data_{name}").run)


def described(name: str, text: str, run_verb: Callable[[Sequence[str]], None]) -> Verb:
    """Return a verb with its options and with the words that its positional arguments may be."""
    kind = kind_of_options(run_verb)
    words = [word for field, marks, of in _members(kind) if _positional(marks) for word in _words(field, of)]
    return Verb(name, text, (*_options(kind), HELP), tuple(words))


def _options(kind: type[Any], section: str = "") -> Iterator[Option]:
    """Yield the options of a dataclass, or of a section of settings, whose options are `--section.field`."""
    texts = {name: text for name, (_, text) in field_docstrings(kind).items()}
    for name, marks, of in _members(kind):
        if isinstance(of, type) and issubclass(of, BaseModel):
            yield from _options(of, f"{name}.")
        elif not _positional(marks):
            flag = of is bool
            prefix = "no-" if flag and _default(kind, name) is True else ""
            aliases = [alias for mark in marks for alias in getattr(mark, "aliases", None) or ()]
            help_text = next((mark.help for mark in marks if getattr(mark, "help", None)), texts.get(name, ""))
            own = next((mark.name for mark in marks if getattr(mark, "name", None)), name)
            spelled = f"--{section}{prefix}{own}".replace("_", "-")
            yield Option((spelled, *aliases), help_text, takes_value=not flag, values=tuple(_choices(of)))


def _members(kind: type[Any]) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Yield name, marks and bare type of every field of a dataclass or of a pydantic model."""
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            marks, of = _unwrapped(hints[field.name])
            yield field.name, marks, of
    else:
        for name, one in kind.model_fields.items():
            marks, of = _unwrapped(one.annotation)
            yield name, (*one.metadata, *marks), of


def _unwrapped(annotation: Any) -> tuple[tuple[Any, ...], Any]:
    """Return what `Annotated` adds to a type, and the type."""
    if get_origin(annotation) is Annotated:
        bare, *marks = get_args(annotation)
        return tuple(marks), bare
    return (), annotation


def _positional(marks: Sequence[Any]) -> bool:
    return any(mark is tyro.conf.Positional for mark in marks)


def _words(field: str, of: Any) -> list[str]:
    """Return the words that a positional argument may be: its choices, and the zoo where it is a model."""
    return list(_choices(of)) or (zoo_names() if field in ("model", "models") else [])


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the words of every `Literal` within a type."""
    for inner in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield str(inner)
        else:
            yield from _choices(inner)


def _default(kind: type[Any], name: str) -> Any:
    if not is_dataclass(kind):
        return kind.model_fields[name].default
    (field,) = (field for field in fields(kind) if field.name == name)
    return None if field.default is MISSING else field.default
