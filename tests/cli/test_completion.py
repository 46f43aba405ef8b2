"""Completion: the scripts know what the help shows, and real shells complete with them."""

import re
import shutil
import subprocess

import pytest

from fheat.cli import data
from fheat.cli.completion import all_verbs
from fheat.cli.completion_scripts import Option, bash_script, fish_script, zsh_script
from fheat.cli.main import VERBS, main
from fheat.cli.options import kind_of_options
from fheat.models.zoo import zoo_names

NAMES = [*(name for name in VERBS if name != "data"), *(f"data {name}" for name in data.VERBS)]


@pytest.fixture(scope="module")
def verbs():
    return {verb.name: verb for verb in all_verbs()}


def test_every_verb_is_described(verbs):
    assert list(verbs) == NAMES
    assert all(option.title for verb in verbs.values() for option in verb.options)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_are_those_of_the_help(name, verbs, capsys):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    completed = {word for option in verbs[name].options for word in option.words}
    assert set(re.findall(r"^[│|]? ?(--[a-z][\w.-]*)", shown, re.M)) <= completed
    assert completed <= set(re.findall(r"(?<![\w-])--?[\w.-]*\w", shown))


def test_values_and_words(verbs):
    options = {word: option for option in verbs["predict"].options for word in option.words}
    assert options["--runtime"].values == ("auto", "torch", "onnx", "openvino")
    assert not options["--no-preview"].takes_value
    assert options["--stride"].takes_value
    assert verbs["predict"].words == tuple(zoo_names())
    assert verbs["completion"].words == ("bash", "zsh", "fish")
    settings = {word: option for option in verbs["train"].options for word in option.words}
    assert settings["--method"] is settings["--method.name"]
    assert "cse" in settings["--method"].values


def test_a_title_is_one_sentence_on_one_line():
    assert Option(("--x",), "One\n  thing; another. And more.").title == "One thing"


def test_a_verb_without_options_is_a_mistake():
    with pytest.raises(TypeError, match="does not parse its options"):
        kind_of_options(lambda arguments: None)


def test_the_verb_prints_the_script(capsys, verbs):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == bash_script(list(verbs.values()))
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


CASES = [
    (["pre"], {"predict"}),
    (["predict", "--run"], {"--runtime"}),
    (["predict", "--runtime", "o"], {"onnx", "openvino"}),
    (["predict", "la-"], {"la-4", "la-8", "la-full", "la-full-l"}),
    (["data", "ph"], {"phantom"}),
    (["data", "check", "--js"], {"--json"}),
    (["train", "--network.mix"], {"--network.mixer"}),
    (["completion", "z"], {"zsh"}),
]
"""Words behind `fheat`, of which the last is completed, and what it may become."""


def shell(name, script, *arguments):
    """Run a script in a shell that reads no file of its user."""
    bare = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    words = [name, *bare, *arguments]
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(("words", "wanted"), CASES, ids=lambda case: " ".join(sorted(case)))
def test_bash_completes(words, wanted, verbs, tmp_path):
    (tmp_path / "fheat.bash").write_text(bash_script(list(verbs.values())))
    line = " ".join(f"'{word}'" for word in ("fheat", *words))
    script = f"source {tmp_path}/fheat.bash\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
    found = shell("bash", script + "_fheat\nprintf '%s\\n' \"${COMPREPLY[@]}\"\ncomplete -p fheat\n")
    assert found[-1] == "complete -o bashdefault -o default -F _fheat fheat"
    assert set(found[:-1]) == wanted


def test_bash_splits_at_the_equals_sign(verbs, tmp_path):
    (tmp_path / "fheat.bash").write_text(bash_script(list(verbs.values())))
    for words, wanted in (("--runtime =", {"auto", "torch", "onnx", "openvino"}), ("--runtime = to", {"torch"})):
        line = f"fheat predict {words}"
        script = f"source {tmp_path}/fheat.bash\nCOMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}\n"
        assert set(shell("bash", script + "_fheat\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")) == wanted


@pytest.mark.parametrize(("words", "wanted"), CASES, ids=lambda case: " ".join(sorted(case)))
def test_fish_completes(words, wanted, verbs):
    line = " ".join(["fheat", *words])
    found = shell("fish", fish_script(list(verbs.values())) + f"complete -C '{line}'\n")
    assert {entry.split("\t")[0] for entry in found} >= wanted
    assert {word for entry in found if (word := entry.split("\t")[0]).startswith(words[-1])} == wanted


@pytest.mark.parametrize(("words", "wanted"), CASES, ids=lambda case: " ".join(sorted(case)))
def test_zsh_offers(words, wanted, verbs):
    """The functions of zsh that filter and show are replaced by some that print all that they are given."""
    stand_ins = (
        'compdef() { : }\n_describe() { print -rl -- "${(@P)@[-1]%%:*}" }\n'
        'compadd() { shift; print -rl -- "$@" }\n_files() { : }\n'
    )
    line = " ".join(f"'{word}'" for word in ("fheat", *words))
    script = f"{stand_ins}{zsh_script(list(verbs.values()))}words=({line}); CURRENT={len(words) + 1}\n_fheat\n"
    assert {word for word in shell("zsh", script, "-s") if word.startswith(words[-1])} == wanted
