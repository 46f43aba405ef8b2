"""Options of a verb: a dataclass becomes the parser, a wrong argument becomes one line."""

import ast
import contextlib
import inspect
import io
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import fields
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from fheat.cli.main import UsageError

VerbOptions = TypeVar("VerbOptions")
_KINDS: Final = {"int": "whole number", "float": "number"}
_COUNTS: Final = {1: "a", 2: "two", 3: "three"}
_COLUMNS: Final = "COLUMNS"
"""Environment variable with the width of the terminal."""
_ASKED_FOR_KIND: ContextVar[bool] = ContextVar("asked_for_kind", default=False)


class _Kind(Exception):  # noqa: N818 - it is no error
    """Carries the dataclass of a verb's options out of the verb before it does anything."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind)
        self.kind = kind


def parse(kind: type[VerbOptions], verb: str, arguments: Sequence[str], *, none: bool = False) -> VerbOptions:
    """Return the options given on the command line; `--help` prints and exits, a mistake raises `UsageError`.

    With `none`, options that may be None take the word None. An empty word is no path: `Path("")` would mean the folder
    in which the program runs, which is what a shell script with an unset variable least wants.
    """
    if _ASKED_FOR_KIND.get():
        raise _Kind(kind)
    complaint, empty = io.StringIO(), list[str]()
    try:
        with contextlib.redirect_stderr(complaint), _paths(empty), _wide(help_wanted={"-h", "--help"} & {*arguments}):
            config = (tyro.conf.FlagCreatePairsOff, *(() if none else (tyro.conf.DisallowNone,)))
            return tyro.cli(_without_empty_defaults(kind), args=list(arguments), prog=f"fheat {verb}", config=config)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        said = complaint.getvalue()
        if empty and (which := re.search(r"Error parsing ([\w.-]+)", _without_colours(said))):
            raise UsageError(f"{which[1]} is empty: give a path") from None
        raise UsageError(_one_line(kind, said)) from None


@contextlib.contextmanager
def _wide(*, help_wanted: object) -> Iterator[None]:
    """Let the parser write on long lines, as it breaks lines within words; help keeps the width of the terminal."""
    before = os.environ.get(_COLUMNS)
    if not help_wanted:
        os.environ[_COLUMNS] = str(2**16)
    try:
        yield
    finally:
        if not help_wanted:
            os.environ.pop(_COLUMNS)
        if before is not None:
            os.environ[_COLUMNS] = before


def _paths(empty: list[str]) -> ConstructorRegistry:
    """Return what makes paths of words; it refuses empty ones, and puts them into `empty`."""
    registry = ConstructorRegistry()

    def path(words: list[str]) -> Path:
        if not words[0]:
            empty.append(words[0])
            raise ValueError("is empty")
        return Path(words[0])

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=path,
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def kind_of_options(run_verb: Callable[[Sequence[str]], None]) -> type[Any]:
    """Return the dataclass that a verb hands to `parse` first; the verb goes no further."""
    token = _ASKED_FOR_KIND.set(True)
    try:
        run_verb([])
    except _Kind as found:
        return found.kind
    finally:
        _ASKED_FOR_KIND.reset(token)
    raise TypeError(f"{run_verb.__module__} does not parse its options")


def field_docstrings(kind: type[Any]) -> dict[str, tuple[ast.expr, str]]:
    """Return annotation and docstring of every field of a class of fheat and of those it is made from, in their order.

    They are read from the source, because Python keeps no docstring of a field; one without a docstring has an empty
    one.
    """
    found: dict[str, tuple[ast.expr, str]] = {}
    for one in reversed(kind.__mro__):
        if not one.__module__.startswith("fheat"):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except OSError:  # made while the program runs
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip_longest(tree.body, tree.body[1:]):
            if isinstance(field, ast.AnnAssign):
                told = after.value if isinstance(after, ast.Expr) else None
                text = str(told.value) if isinstance(told, ast.Constant) else ""
                found[ast.unparse(field.target)] = field.annotation, text
    return found


def given(options: Any, *names: str) -> list[str]:
    """Return those of the named options that are not at their default, as they are written: `--patch-size`."""
    defaults = {field.name: field.default for field in fields(options)}
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) != defaults[name]]


def check_device(name: str | None) -> None:
    """Raise `UsageError` for a device that nothing can be computed on; None is fine, a verb then chooses one."""
    if name is None:
        return
    from fheat.inference.predictor import usable_device  # it imports torch

    try:
        usable_device(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def without_out(arguments: Sequence[str]) -> list[str]:
    """Return what was said, but for where the result went: it changes no number and is of this machine alone."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return kept


def named_values(texts: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Read NAME=1,2,3 as a class or region with its label values; a bare value is its own name."""
    labels: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, values = text.rpartition("=")
        name = name if equals else values
        try:
            numbers = tuple(int(value) for value in values.split(","))
        except ValueError:
            raise UsageError(f"label {text!r} is not NAME=VALUE: write liver=1, or tumour=1,2,3 for a region") from None
        if not name or name in labels:
            raise UsageError(f"label {text!r} has no name of its own: name every class once")
        labels[name] = numbers
    return labels or None


def _without_empty_defaults(kind: type[VerbOptions]) -> type[VerbOptions]:
    """Keep `(default: None)` out of the help: what an option does when it is left out stands in its own words."""
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is None or isinstance(field.default, bool) or field.default in ((), ""):
            kind.__annotations__[field.name] = Annotated[field.type, tyro.conf.arg(help_behavior_hint="")]
    return kind


def _one_line(kind: type[object], box: str) -> str:
    """Undo the frame tyro draws around a complaint: name what is missing, or keep its first paragraph and its hint."""
    framed = _without_colours(box).splitlines()[1:-1]
    if missing := _missing([re.sub(r"^[│|]|[│|]$", "", line) for line in framed]):
        return f"{_listed(missing)} missing: write for example '{_example(kind)}'"
    lines = [re.sub(r"^[│|] ?| ?[│|]$", "", line).strip() for line in framed]
    # Where the output cannot show boxes, the heading has a rule under it.
    sections = re.split(r"\n[─-]{5,}\n?", re.sub(r"^[─-]{5,}\n", "", "\n".join(lines)))
    complaint = sections[0].split("\n\n")[0]
    for section in sections[1:]:
        if section.startswith("Perhaps you meant"):
            complaint += "; " + " ".join(section.split("\n")[:2])
    complaint = " ".join(complaint.split())
    if found := re.fullmatch(r"Missing value for argument '(\w+)'\. Expected 1 values\.", complaint):
        return f"{_shown(kind, found[1])} is missing: write for example '{_example(kind)}'"
    return _plainly(complaint)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m|\[/?\w+\]", "", text)


def _missing(lines: Sequence[str]) -> list[str]:
    """Return the arguments that tyro lists as missing: below the heading, each before its help, which is set in more.

    A line of the help can look like a name: how wide the terminal is decides where it breaks.
    """
    heading = next((number for number, line in enumerate(lines) if line.strip().startswith("Missing from")), None)
    listed = [] if heading is None else lines[heading + 1 :]
    margin = len(listed[0]) - len(listed[0].lstrip()) if listed else 0
    names = takewhile(lambda line: not line[:margin].strip(), listed)
    return [line.strip() for line in names if line[margin : margin + 1].strip()]


def _plainly(complaint: str) -> str:
    """Say what an option takes, where tyro and Python say what could not be instantiated or converted."""
    option = r"Error parsing (?P<option>--[\w.-]+)(?:/--[\w.-]+)*: "
    patterns = {
        option + r"no type matching (?P<kind>.+) could be instantiated from \[(?P<given>.*)\]\.": None,
        option + r"Could not parse arguments \[(?P<given>.*)\] into tuple type \S*Tuple\[(?P<kind>[\w, ]+)\]": None,
        option + r"invalid literal for int\(\) with base 10: (?P<given>.*)": "a whole number",
        option + r"could not convert string to float: (?P<given>.*)": "a number",
    }
    for pattern, kind in patterns.items():
        if found := re.fullmatch(pattern, complaint):
            return f"{found['option']} takes {kind or _in_words(found['kind'])}, not {found['given']}"
    return complaint.rstrip(".")


def _in_words(kinds: str) -> str:
    """Return what tyro writes as `INT`, `{INT INT INT}` or `int, int, int` in words, such as `three whole numbers`."""
    names = re.findall(r"\w+", kinds.lower())
    kind, count = _KINDS.get(" ".join({*names})), _COUNTS.get(len(names))
    if kind is None or count is None:
        return kinds
    return f"{count} {kind}{'s' if len(names) > 1 else ''}"


def _shown(kind: type[object], field: str) -> str:
    """Return how help names a positional argument, such as `MODEL`."""
    _, *marks = get_args(get_type_hints(kind, include_extras=True)[field])
    return next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), field.upper())


def _listed(names: Sequence[str]) -> str:
    """Return `A is`, `A and B are`, `A, B and C are`."""
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _example(kind: type[object]) -> str:
    """Return the first example in the help of a verb."""
    lines = (kind.__doc__ or "").splitlines()
    return next(line.strip().removeprefix("Example: ") for line in lines if line.strip().startswith("Example: "))
