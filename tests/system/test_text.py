"""Text from files on its way to a terminal: shown, never obeyed."""

import errno
import pickle

import pytest

from fheat.system.errors import FULL, BadInput
from fheat.system.files import write_file, write_folder
from fheat.system.text import aligned, duration, printable, some_of

HOSTILE = {
    "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
    "two\nlines\r\t": r"two\nlines\r\t",
    "\u202egpj.exe\u2066": r"\u202egpj.exe\u2066",
    "\udcff\udc80.nii": r"\udcff\udc80.nii",
    "\x9b31m\x00": r"\x9b31m\x00",
    "Vorhof links, 左心房 ü": "Vorhof links, 左心房 ü",
    "": "",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_printable_is_an_escape(text):
    assert printable(text) == HOSTILE[text]
    assert printable(text).isprintable()
    printable(text).encode()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_refusals_and_tables_are_printable(text):
    error = BadInput(f"scan{text}", f"reason{text}", f"remedy{text}")
    assert str(error) == f"scan{HOSTILE[text]}: reason{HOSTILE[text]}; remedy{HOSTILE[text]}"
    assert error.reason == f"reason{text}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert aligned([["a", text], ["b", "c"]]).count("\n") == 1
    assert HOSTILE[text] in aligned([["a", text], ["b", "c"]])


@pytest.mark.parametrize("number", FULL)
@pytest.mark.parametrize("what", ["file", "parts", "folder"])
def test_a_full_disk_names_the_file_and_the_bytes(number, what, tmp_path, monkeypatch):
    def full(file, parts):
        list(parts)
        raise OSError(number, "no room")  # without a file name, as the system does it

    monkeypatch.setattr("fheat.system.files._write_through", full)
    target = tmp_path / "target"
    write = write_folder if what == "folder" else write_file
    data = {"file": bytes(1234), "parts": iter([bytes(1234)]), "folder": {"a": bytes(1000), "b": bytes(234)}}[what]
    with pytest.raises(OSError, match="bytes are free") as failed:
        write(target, data)
    assert (failed.value.errno, failed.value.filename) == (number, str(target))
    assert ("(1,234 bytes are needed and " in str(failed.value)) == (what != "parts")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_are_as_they_were(tmp_path, monkeypatch):
    failure = InterruptedError(errno.EINTR, "no", "elsewhere")

    def refuse(file, parts):
        raise failure

    monkeypatch.setattr("fheat.system.files._write_through", refuse)
    with pytest.raises(InterruptedError) as failed:
        write_file(tmp_path / "target", b"")
    assert failed.value is failure


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5900, "98 min"),
        (6000, "1 h 40 min"),
        (90000, "25 h 0 min"),
    ],
)
def test_times_are_as_people_say_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ([], []),
        (["a"] * 8, ["a"] * 8),
        (["a"] * 9, [*["a"] * 7, "2 more"]),
        (["a" * 50] * 6, ["a" * 50] * 6),
        (["a" * 50] * 7, ["a" * 50, "a" * 50, "5 more"]),
        (["a" * 400], ["a" * 400]),
    ],
)
def test_long_lists_are_cut_and_say_so(words, listed):
    assert some_of(words) == listed
