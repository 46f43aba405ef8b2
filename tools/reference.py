"""Write the pages of docs/reference that repeat the code: `python tools/reference.py`, or `make docs`.

`api.md` has every public name with its signature and docstring, `verbs.md` every verb with its options, `settings.md`
every training setting, every setting of a method and every option of a network. All texts and defaults are those of the
code. `--check` writes nothing and exits with 1 if a page is out of date.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pages.common import table
from pydantic import BaseModel
from results import ROOT

import fheat
from fheat.cli import data as data_verbs
from fheat.cli.main import VERBS
from fheat.cli.options import field_docstrings, kind_of_options
from fheat.methods.base import MethodSettings
from fheat.methods.registry import list_methods, method_class
from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.registry import _builder, list_models, model_options
from fheat.system.settings import short_names
from fheat.training.settings import TrainSettings

FOLDER = ROOT / "docs" / "reference"
GENERATED = "`make docs` writes this page from the code; change the docstrings there, not here."
Row = list[str]


def api_page() -> str:
    """Return the page of the public names, and of what they return."""
    objects = {name: getattr(fheat, name) for name in fheat.__all__}
    returned = {kind.__name__: kind for one in objects.values() for kind in _returned(one)}
    names = ", ".join(f"[`{name}`](#fheat{name.lower()})" for name in objects)
    parts = [
        "# Python names\n",
        f"These names of `fheat` are stable; everything else may change between versions. {GENERATED}\n",
        f"{names}\n",
        *(f"## `fheat.{name}`\n\n{_described(one)}" for name, one in objects.items()),
        "## What they return\n",
        *(f"### `{name}`\n\n{_described(kind)}" for name, kind in sorted(returned.items())),
    ]
    return "\n".join(parts)


def _returned(one: Any) -> Iterator[type]:
    """Yield the class of fheat that a function returns, if it is no public name itself, and that of its rows."""
    if inspect.isfunction(one):
        kind = get_type_hints(one).get("return")
        if isinstance(kind, type) and kind.__module__.startswith("fheat.") and kind.__name__ not in fheat.__all__:
            yield kind
            yield from (row for base in getattr(kind, "__orig_bases__", ()) for row in get_args(base))


def _described(one: Any) -> str:
    """Return signature, docstring and, for a class, its public members, from the source."""
    node = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    lines = [f"```py\n{_signature(node)}\n```\n", _prose(inspect.getdoc(one) or ""), ""]
    rows = list(_members(one)) if isinstance(node, ast.ClassDef) else []
    return "\n".join([*lines, table(["member", "meaning"], rows), ""] if rows else lines)


def _signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return how a function or class is called, one argument a line where it is long."""
    if isinstance(node, ast.ClassDef):
        own = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if not own:
            return f"class {node.name}"
        call = own[0].args
        call.args = call.args[1:]
        head, result = f"class {node.name}", ""
    else:
        call, head = node.args, node.name
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{head}({ast.unparse(call)}){result}"
    if len(line) <= 100:
        return line
    count = len(call.posonlyargs) + len(call.args)
    defaults = [None] * (count - len(call.defaults)) + list(call.defaults)
    written = [_argument(one, default) for one, default in zip(call.args, defaults, strict=True)]
    written += [f"*{_argument(call.vararg, None)}"] if call.vararg else ["*"] if call.kwonlyargs else []
    written += [_argument(one, value) for one, value in zip(call.kwonlyargs, call.kw_defaults, strict=True)]
    written += [f"**{_argument(call.kwarg, None)}"] if call.kwarg else []
    return f"{head}(\n" + "".join(f"    {one},\n" for one in written) + f"){result}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: a list of arguments, formulas as code."""
    text = re.sub(r"^\.\. math::\s*(.+)$", lambda found: f"    {_plain_formula(found[1])}", docstring, flags=re.M)
    text = re.sub(r":math:`(.+?)`", lambda found: f"`{_plain_formula(found[1])}`", text)
    text = re.sub(r"((?:^>>> .*\n?(?:^(?!>>>|$).*\n?)*)+)", r"```pycon\n\1\n```\n", text, flags=re.M)
    blocks = []
    for block in re.split(r"\n(?=Args:\n)", text):
        if block.startswith("Args:\n"):
            block = _arguments_as_list(block)
        blocks.append(block)
    return re.sub(r"\n+```\n", "\n```\n", "\n".join(blocks)).rstrip()


def _arguments_as_list(block: str) -> str:
    lines = ["Arguments:", ""]
    for line in block.split("\n")[1:]:
        if found := re.match(r"    (\*{0,2}\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif line.startswith("        "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _plain_formula(text: str) -> str:
    """Return a formula of LaTeX as plain text, such as `exp(-(D r)^alpha)`."""
    text = re.sub(r"\\mathrm\{(\w+)\}", r"\1", text)
    for old, new in {r"\,": " ", r"\qquad": "   ", r"\cdot": ".", r"\le": "<=", r"\ge": ">="}.items():
        text = text.replace(old, new)
    return re.sub(r"\s{4,}", "    ", re.sub(r"[{}]", "", text.replace("\\", ""))).strip()


def _members(kind: type) -> Iterator[Row]:
    """Yield the public fields, properties and methods of a class that have a docstring, in the order of the source."""
    texts = _field_texts(kind)
    for name, text in texts.items():
        yield [f"`{name}`", _cell(text)]
    for name, one in vars(kind).items():
        if name.startswith("_") or name in texts:
            continue
        function = one.fget if isinstance(one, property) else one
        if inspect.isfunction(function) and function.__doc__:
            call = name if isinstance(one, property) else f"{name}{_short_call(function)}"
            yield [f"`{call}`", _cell((inspect.getdoc(function) or "").split("\n\n")[0])]


def _short_call(function: Callable[..., Any]) -> str:
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return f"({', '.join(names)})"


def _field_texts(kind: type) -> dict[str, str]:
    """Return the docstring below each public field of a class, of its bases too; its type where it has none."""
    return {
        name: inspect.cleandoc(text) if text else _type_name(annotation)
        for name, (annotation, text) in field_docstrings(kind).items()
        if not name.startswith("_")
    }


def _type_name(annotation: ast.expr) -> str:
    """Return a type as text; no bar, which would end the cell of a table."""
    return " or ".join(f"`{one}`" for one in ast.unparse(annotation).split(" | "))


def verbs_page() -> str:
    """Return the page of the command line."""
    parts = [
        "# Command line\n",
        f"One program, `fheat VERB`. `fheat VERB --help` prints what stands here. {GENERATED}\n",
        table(["verb", "what it does"], [[f"[`{name}`](#fheat-{name})", text] for name, text in VERBS.items()]),
        "\nVerbs that print a result take `--json`. All of them end with the same [exit codes](exit-codes.md).\n",
    ]
    for verb in VERBS:
        if verb == "data":
            rows = [[f"[`{name}`](#fheat-data-{name})", text] for name, text in data_verbs.VERBS.items()]
            parts.append(f"## `fheat data`\n\n{table(['verb', 'what it does'], rows)}\n")
            parts += [_verb(f"data {name}", f"fheat.cli.data_{name}") for name in data_verbs.VERBS]
        else:
            parts.append(_verb(verb, f"fheat.cli.{verb}"))
    return "\n".join(parts)


def _verb(verb: str, module: str) -> str:
    kind = kind_of_options(import_module(module).run)
    assert is_dataclass(kind)
    texts, rows = _field_texts(kind), []
    for field in (field for field in fields(kind) if field.name in texts):  # the others are training settings
        word = _metavar(kind, field.name) or f"--{field.name.replace('_', '-')}"
        needed = field.default is MISSING and field.default_factory is MISSING
        rows.append([f"`{word}`", "required" if needed else _default(field.default), _cell(texts[field.name])])
    prose, *examples = re.split(r"\n*Example: ", inspect.getdoc(kind) or "")
    shown = "\n".join(f"{example.strip()}" for example in examples)
    more = "\nEvery [training setting](settings.md) is an option of this verb, too.\n" if verb == "train" else ""
    level = "##" if " " not in verb else "###"
    options = table(["option", "default", "meaning"], rows)
    return f"{level} `fheat {verb}`\n\n{prose}\n\n```sh\n{shown}\n```\n\n{options}\n{more}"


def _metavar(kind: type, name: str) -> str | None:
    """Return the word of a positional argument, such as MODEL; None for an option."""
    for one in kind.__mro__:
        annotation = vars(one).get("__annotations__", {}).get(name)
        if annotation is not None:
            marks = getattr(annotation, "__metadata__", ())
            positional = any("Positional" in str(mark) for mark in marks)
            words = [mark.metavar for mark in marks if getattr(mark, "metavar", None)]
            return (words or [name.upper()])[0] if positional else None
    return None


def settings_page() -> str:
    """Return the page of the training settings."""
    parts = [
        "# Training settings\n",
        "Every setting is an option of `fheat train` (`--section.field`, common ones also by a short name), a line of\n"
        "the TOML file for `--config`, and a keyword of `fheat.train`: [train](../how-to/train.md#settings) shows it.\n"
        f"{GENERATED}\n",
    ]
    for name, field in TrainSettings.model_fields.items():
        kind = MethodSettings if name == "method" else field.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        text = inspect.getdoc(kind) or ""
        head = ["option", "short", "default", "meaning"]
        parts.append(f"## Section {name}\n\n{text}\n\n{table(head, _settings_rows(name, kind))}\n")
    parts.append("## Settings of the methods\n\nThey belong to the section `method` of a run with that method.\n")
    for method in own_methods():
        own = method_class(method).Settings
        rows = [row for row in _settings_rows("method", own) if row[0] != "`--method.name`"]
        shown = table(["option", "short", "default", "meaning"], rows) if rows else "No settings of its own."
        parts.append(f"### Method {method}\n\n{method_class(method).title}\n\n{shown}\n")
    parts.append("## Options of the networks\n\nThey belong to the section `network` of a run with that network.\n")
    for network in own_networks():
        parts.append(f"### Network {network}\n\n{_network(network)}\n")
    return "\n".join(parts)


def own_methods() -> list[str]:
    """Return the names of the training methods of this package, without those that others have registered."""
    return [name for name in list_methods() if method_class(name).__module__.startswith("fheat.")]


def own_networks() -> list[str]:
    """Return the names of the networks of this package, without those that others have registered."""
    return [name for name in list_models() if _builder(name).__module__.startswith("fheat.")]


def _settings_rows(section: str, kind: type[BaseModel]) -> list[Row]:
    shorts = {name: short for short, name in short_names(kind).items()}  # type: ignore[arg-type]
    rows = []
    for name, field in kind.model_fields.items():
        option = f"`--{section}.{name}`".replace("_", "-")
        short = f"`--{shorts[name].replace('_', '-')}`" if name in shorts else ""
        if (section, name) == ("data", "folder"):
            option, short = "`DATA`", "`data`"
        default = "required" if field.is_required() else _default(field.default)
        rows.append([option, short, default, _cell(field.description or "")])
    return rows


def _network(name: str) -> str:
    build = _builder(name)
    docstring = inspect.getdoc(build) or ""
    first = docstring.split("\n\n")[0].replace("\n", " ")
    texts = _argument_texts(FHEATSeg) | _argument_texts(build)  # FHEAT-Seg-L refers to FHEAT-Seg for its options
    rows = [
        [f"`--network.{option.replace('_', '-')}`", _default(default), _cell(texts.get(option, ""))]
        for option, default in model_options(name).items()
    ]
    return f"{first}\n\n{table(['option', 'default', 'meaning'], rows)}" if rows else f"{first} It has no options."


def _argument_texts(build: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring of a network says of each of its options."""
    _, heading, arguments = (inspect.getdoc(build) or "").partition("Args:\n")
    return dict(re.findall(r"^- `(\w+)`: (.*)$", _arguments_as_list(heading + arguments), re.M))


def _default(value: Any) -> str:
    """Return a default as it is written on the command line; nothing for an option that is off or empty."""
    if value is None or value is False or value in ((), ""):
        return ""
    if isinstance(value, tuple | list):
        return f"`{' '.join(map(str, value))}`"
    return f"`{'yes' if value is True else value.as_posix() if isinstance(value, Path) else value}`"


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {"api.md": api_page, "verbs.md": verbs_page, "settings.md": settings_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    options = parser.parse_args()
    stale = False
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if path.is_file() and path.read_text() == text:
            continue
        stale = True
        if not options.check:
            path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {'is out of date; run make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
