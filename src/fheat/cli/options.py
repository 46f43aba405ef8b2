"""Options of a verb: a dataclass becomes the parser, a wrong argument becomes one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

from fheat.cli.main import UsageError

Options = TypeVar("Options")


def parse(kind: type[Options], verb: str, arguments: Sequence[str]) -> Options:
    """Return the options given on the command line; `--help` prints and exits, a mistake raises `UsageError`."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=list(arguments), prog=f"fheat {verb}", config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(_one_line(complaint.getvalue())) from None


def _one_line(box: str) -> str:
    """Undo the frame tyro draws around a complaint: keep its first paragraph, and the option it suggests."""
    text = re.sub(r"\x1b\[[0-9;]*m|\[/?\w+\]", "", box)
    lines = [re.sub(r"^[│|] ?| ?[│|]$", "", line).strip() for line in text.splitlines()[1:-1]]
    sections = re.split(r"\n[─-]{5,}\n?", "\n".join(lines))
    complaint = sections[0].split("\n\n")[0]
    for section in sections[1:]:
        if section.startswith("Perhaps you meant"):
            complaint += "; " + " ".join(section.split("\n")[:2])
    return " ".join(complaint.split())
