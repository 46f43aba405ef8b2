"""Completion scripts for bash, zsh and fish from the verbs and their options."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fheat import __version__
from fheat.cli import data
from fheat.cli.main import VERBS

TOP = ("--help", "--version")
"""Options of the program without a verb."""


@dataclass(frozen=True)
class Option:
    """One option of a verb."""

    words: tuple[str, ...]
    """Its spellings: `--patch-size`, and shorter ones."""
    text: str
    """Its description in the help."""
    takes_value: bool = True
    values: tuple[str, ...] = ()
    """The words that it takes, where only some are possible; else files are offered."""

    @property
    def title(self) -> str:
        """First sentence of the text on one line."""
        return " ".join(self.text.split()).split(". ")[0].split("; ")[0].rstrip(".")


@dataclass(frozen=True)
class Verb:
    """A verb, or a verb of `fheat data`, whose name has two words."""

    name: str
    text: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()
    """Words that its positional arguments may be, beside files."""

    @property
    def valued(self) -> list[Option]:
        """Options that take one of some words."""
        return [option for option in self.options if option.values]


def bash_script(verbs: Sequence[Verb]) -> str:
    """Return the script for bash 4 or newer; where nothing matches, bash completes files."""
    values = [
        f"        {'|'.join(shlex.quote(f'{verb.name} {word}') for word in option.words)}) "
        f"offered={_quoted(option.values)} ;;"
        for verb in verbs
        for option in verb.valued
    ]
    taking = [
        f"        {'|'.join(shlex.quote(f'{verb.name} {word}') for word in words)}) return ;;"
        for verb in verbs
        if (words := [word for one in verb.options if one.takes_value and not one.values for word in one.words])
    ]
    options = [f"            {shlex.quote(verb.name)}) offered={_quoted(_every_word(verb))} ;;" for verb in verbs]
    words = [f"            {shlex.quote(verb.name)}) offered={_quoted(verb.words)} ;;" for verb in verbs if verb.words]
    return "\n".join(
        [
            *_head("bash"),
            "_fheat() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}"',
            '    local verb="${COMP_WORDS[1]}" offered=""',
            "    COMPREPLY=()",
            "    # bash makes a word of its own of the equals sign in --option=value.",
            '    if [[ $word == "=" ]]; then word=""; fi',
            '    if [[ $before == "=" ]]; then before="${COMP_WORDS[COMP_CWORD - 2]}"; fi',
            "    if ((COMP_CWORD == 1)); then",
            f'        mapfile -t COMPREPLY < <(compgen -W {_quoted([*VERBS, *TOP])} -- "$word")',
            "        return",
            "    fi",
            "    if [[ $verb == data ]]; then",
            "        if ((COMP_CWORD == 2)); then",
            f'            mapfile -t COMPREPLY < <(compgen -W {_quoted([*data.VERBS, "--help"])} -- "$word")',
            "            return",
            "        fi",
            '        verb="data ${COMP_WORDS[2]}"',
            "    fi",
            '    case "$verb $before" in',
            *values,
            *taking,
            "    esac",
            "    if [[ -z $offered && $word == -* ]]; then",
            '        case "$verb" in',
            *options,
            "        esac",
            "    elif [[ -z $offered ]]; then",
            '        case "$verb" in',
            *words,
            "        esac",
            "    fi",
            '    mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")',
            "}",
            "complete -o bashdefault -o default -F _fheat fheat",
            "",
        ]
    )


def zsh_script(verbs: Sequence[Verb]) -> str:
    """Return the script for zsh, which is loaded from a folder of `fpath` or sourced after `compinit`."""
    values = [
        f"        ({'|'.join(_zsh_pattern(f'{verb.name} {word}') for word in option.words)}) "
        f"compadd -- {shlex.join(option.values)}; return ;;"
        for verb in verbs
        for option in verb.valued
    ]
    options = [f"            ({_zsh_pattern(verb.name)}) offered=({_zsh_described(verb)}) ;;" for verb in verbs]
    words = [
        f"        ({_zsh_pattern(verb.name)}) compadd -- {shlex.join(verb.words)} ;;" for verb in verbs if verb.words
    ]
    return "\n".join(
        [
            "#compdef fheat",
            *_head("zsh"),
            "_fheat() {",
            "    local -a offered",
            "    local verb=$words[2] before=$words[CURRENT-1] word=$words[CURRENT]",
            "    if ((CURRENT == 2)); then",
            f"        offered=({_zsh_pairs(VERBS.items())})",
            "        _describe verb offered",
            "        return",
            "    fi",
            "    if [[ $verb == data ]]; then",
            "        if ((CURRENT == 3)); then",
            f"            offered=({_zsh_pairs(data.VERBS.items())})",
            "            _describe verb offered",
            "            return",
            "        fi",
            '        verb="data $words[3]"',
            "    fi",
            '    case "$verb $before" in',
            *values,
            "    esac",
            "    if [[ $word == -* ]]; then",
            '        case "$verb" in',
            *options,
            "        esac",
            "        _describe -o option offered",
            "        return",
            "    fi",
            '    case "$verb" in',
            *words,
            "    esac",
            "    _files",
            "}",
            'if [[ $funcstack[1] == _fheat ]]; then _fheat "$@"; else compdef _fheat fheat; fi',
            "",
        ]
    )


def fish_script(verbs: Sequence[Verb]) -> str:
    """Return the script for fish."""
    lines = [
        *_head("fish"),
        "function __fheat_is",
        "    set -l words (commandline -opc)",
        "    test (count $words) -gt (count $argv); or return 1",
        "    set -l last (math 1 + (count $argv))",
        '    test "$words[2..$last]" = "$argv"',
        "end",
        *(_fish("test (count (commandline -opc)) -eq 1", f"-f -a {name}", text) for name, text in VERBS.items()),
        *(
            _fish("test (commandline -opc | string join ' ') = 'fheat data'", f"-f -a {name}", text)
            for name, text in data.VERBS.items()
        ),
    ]
    for verb in verbs:
        here = f"__fheat_is {verb.name}"
        if verb.words:
            lines.append(_fish(here, f"-a {_fish_quoted(' '.join(verb.words))}", ""))
        for option in verb.options:
            spelled = " ".join(f"-{'l' if word.startswith('--') else 's'} {word.lstrip('-')}" for word in option.words)
            values = f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else ""
            takes = values or (" -r" if option.takes_value else "")
            lines.append(_fish(here, f"{spelled}{takes}", option.title))
    return "\n".join([*lines, ""])


def _head(shell: str) -> list[str]:
    return [f"# Completion of fheat {__version__}, written by 'fheat completion {shell}'."]


def _every_word(verb: Verb) -> list[str]:
    return [word for option in verb.options for word in option.words]


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _zsh_pattern(text: str) -> str:
    return f'"{text}"'


def _zsh_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return entries NAME:TEXT, as `_describe` wants them."""
    return " ".join(shlex.quote(f"{name.replace(':', chr(92) + ':')}:{text}") for name, text in pairs)


def _zsh_described(verb: Verb) -> str:
    return _zsh_pairs((word, option.title) for option in verb.options for word in option.words)


def _fish(condition: str, what: str, text: str) -> str:
    described = f" -d {_fish_quoted(text)}" if text else ""
    return f"complete -c fheat -n {_fish_quoted(condition)} {what}{described}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
