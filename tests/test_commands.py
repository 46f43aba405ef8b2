"""Every command of fheat that a page shows is one that the program understands."""

import re
import shlex
from importlib import import_module

import pytest
from results import ROOT

from fheat.cli import train
from fheat.cli.main import VERBS, UsageError

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SYNOPSIS = re.compile(r"\[|\||\.\.\.|, then ")
"""Marks of a line that describes commands and is none."""
REDIRECTION = re.compile(r" > \S+")


def commands_of(text):
    """Yield the lines of code, fenced or indented, that begin with `fheat`, without comments."""
    text = re.sub(r"\\\n *", "", text)  # a command may go on in the next line
    for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.S | re.M):
        yield from re.findall(r"^fheat .+$", block, re.M)
    yield from re.findall(r"^ {4}(fheat .+)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)


COMMANDS = [
    pytest.param(words, id=f"{page.stem}: {' '.join(words)}"[:90])
    for page in PAGES
    for line in commands_of(page.read_text())
    if not SYNOPSIS.search(line) and (words := shlex.split(REDIRECTION.sub("", line), comments=True)[1:])
]


class Parsed(BaseException):
    """Ends a verb as soon as its options are parsed, before it does anything."""


@pytest.fixture
def parse_only(monkeypatch):
    """Return a function that parses a command and does not run it."""

    def stopping(parse):
        def parsed(*arguments, **options):
            parse(*arguments, **options)
            raise Parsed

        return parsed

    def try_command(words):
        if words[0] in ("--version", "--help"):
            return
        assert words[0] in VERBS
        name, options = (f"data_{words[1]}", words[2:]) if words[0] == "data" else (words[0], words[1:])
        verb = import_module(f"fheat.cli.{name}")
        with monkeypatch.context() as patch:
            if verb is train:
                patch.setattr(train, "file_settings", lambda path: {})
                patch.setattr(train, "parse_settings", stopping(train.parse_settings))
            else:
                patch.setattr(verb, "parse", stopping(verb.parse))
            run = train._settings if verb is train else verb.run
            with pytest.raises(Parsed):
                run(options)

    return try_command


def test_there_are_commands():
    assert len(COMMANDS) > 100
    assert {command.values[0][0] for command in COMMANDS} >= VERBS.keys()


@pytest.mark.parametrize("words", COMMANDS)
def test_the_program_understands_it(words, parse_only):
    if "--help" not in words:
        parse_only(words)


@pytest.mark.parametrize("line", ["train scans --no-such-option 3", "data check", "predict la-4"])
def test_a_wrong_command_would_be_noticed(line, parse_only):
    with pytest.raises(UsageError):
        parse_only(line.split())
