"""The cache returns what was put in or nothing: never a damaged, cut, renamed or foreign entry."""

import multiprocessing
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fheat.system import cache
from fheat.system.cache import cache_folder, cached, clear_cache, read_cached, write_cached

KEY, OTHER = "a" * 64, "a" * 63 + "b"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def only_file():
    (entry,) = cached()
    return entry.file


def test_what_was_kept_is_returned(folder):
    assert read_cached("openvino-1", KEY) is None
    write_cached("openvino-1", KEY, b"content")
    assert read_cached("openvino-1", KEY) == b"content"
    assert read_cached("openvino-2", KEY) is None
    assert [(entry.kind, entry.file.parent) for entry in cached()] == [("openvino-1", folder)]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_keys_that_share_a_file_name_are_told_apart():
    write_cached("onnx-1", KEY, b"content")
    assert read_cached("onnx-1", OTHER) is None


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_changed_or_missing_byte_is_noticed(content, data):
    write_cached("onnx-1", KEY, content)
    file = only_file()
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(data.draw(st.sampled_from([bytes(damaged), whole[:place], whole + b"x"])))
    assert read_cached("onnx-1", KEY) is None
    assert not file.exists()
    write_cached("onnx-1", KEY, content)
    assert read_cached("onnx-1", KEY) == content


def test_the_longest_unused_goes_first(monkeypatch):
    monkeypatch.setattr(cache, "LARGEST", 3 * 1100)
    for number in range(3):
        write_cached(f"onnx-{number}", KEY, bytes(1000))
        os.utime(cache._file(f"onnx-{number}", KEY), (number, number))
    read_cached("onnx-0", KEY)
    write_cached("onnx-3", KEY, bytes(1000))
    assert [entry.kind for entry in cached()] == ["onnx-0", "onnx-2", "onnx-3"]
    monkeypatch.setattr(cache, "LARGEST_ENTRY", 1000)
    write_cached("onnx-4", KEY, bytes(1000))
    assert len(cached()) == 3


def test_folders_that_others_can_write_are_left_alone(folder):
    write_cached("onnx-1", KEY, b"content")
    folder.chmod(0o777)
    assert read_cached("onnx-1", KEY) is None
    assert cached() == []
    write_cached("onnx-2", KEY, b"content")
    assert len(list(folder.iterdir())) == 1


def test_special_files_and_missing_rights_do_no_harm(folder, tmp_path):
    write_cached("onnx-1", KEY, b"content")
    only_file().unlink()
    os.mkfifo(cache._file("onnx-1", KEY))
    start = time.monotonic()
    assert read_cached("onnx-1", KEY) is None
    assert cached() == []
    assert time.monotonic() - start < 1
    write_cached("onnx-2", KEY, b"content")
    (tmp_path / "file").write_bytes(b"")
    os.environ["FHEAT_CACHE"] = str(tmp_path / "file" / "below")
    write_cached("onnx-1", KEY, b"content")
    assert read_cached("onnx-1", KEY) is None


def test_clearing_removes_the_entries_and_nothing_else(folder):
    write_cached("onnx-1", KEY, b"content")
    (folder / "notes.txt").write_text("of somebody")
    assert [entry.kind for entry in clear_cache()] == ["onnx-1"]
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("FHEAT_CACHE", "")
    assert cache_folder() is None
    write_cached("onnx-1", KEY, b"content")
    assert read_cached("onnx-1", KEY) is None
    monkeypatch.delenv("FHEAT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "fheat"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert tmp_path / "home" in cache_folder().parents


def _write_and_read(folder, number, wrong):
    os.environ["FHEAT_CACHE"] = str(folder)
    for turn in range(60):
        write_cached("onnx-1", KEY, bytes([number, turn]) * 5000)
        found = read_cached("onnx-1", KEY)
        if found is not None and (len(found) != 10_000 or found != found[:2] * 5000):
            wrong.value += 1


def test_processes_that_write_the_same_entry(folder):
    context = multiprocessing.get_context("fork")
    wrong = context.Value("i", 0)
    processes = [context.Process(target=_write_and_read, args=(folder, number, wrong)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert wrong.value == 0
    assert read_cached("onnx-1", KEY) is not None
    assert len(list(folder.iterdir())) == 1
