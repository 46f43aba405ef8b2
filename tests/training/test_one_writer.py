"""A run folder has one writer: a second process is refused in one line, and takes over only from a dead one."""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from fheat.cli.main import main
from fheat.system.claims import Displaced, Holder, claimed, holder
from fheat.system.errors import BadInput
from fheat.training.run_folder import CLAIMS, RunFolder, _refuse_living
from tests.attack.campaigns.races import KINDS, alone, damage, race
from tests.forks import Fork
from tests.training.helpers import SMALL_WORDS, Run, content_of
from tests.training.programs import train

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs forks")


@pytest.mark.slow
def test_racing_pairs_leave_the_run_that_one_alone_leaves(scans, tmp_path):
    expected = alone(scans, tmp_path)
    for kind in KINDS:
        codes, said, left = race(scans, tmp_path, kind, pause=0.0)
        assert damage(codes, said, left, expected) == ""


def test_who_writes_is_named_with_host_and_time_and_what_to_do(config, tmp_path, capsys):
    Run(config(), tmp_path / "run")
    before = content_of(tmp_path / "run")
    with claimed(tmp_path / "run" / CLAIMS):
        owner = holder(tmp_path / "run" / CLAIMS)
        assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--device", "cpu"]) == 3
    line = capsys.readouterr().err
    assert line == (
        f"fheat: {tmp_path / 'run'}: is being written by process {os.getpid()} on {owner.host} since {owner.since}; "
        "wait until it ends, or stop it and go on with --resume\n"
    )
    assert content_of(tmp_path / "run") == before


def test_a_new_run_where_one_lies_is_refused_before_anything_is_claimed(config, scans, tmp_path, capsys):
    Run(config(), tmp_path / "run")
    before = sorted((tmp_path / "run" / CLAIMS).iterdir())
    words = ["train", str(scans), *SMALL_WORDS, "--out", str(tmp_path / "run")]
    for _ in range(2):
        assert main(words) == 3
        assert "exists and is not empty; choose another folder, or pass --resume" in capsys.readouterr().err
    assert sorted((tmp_path / "run" / CLAIMS).iterdir()) == before


def test_the_folder_of_a_killed_run_is_taken_over_at_once(scans, tmp_path):
    words = ["train", str(scans), *SMALL_WORDS, "--method", "supervised", "--iterations", "100000"]
    job = Fork(train, *words, "--out", str(tmp_path / "run"))
    while not (tmp_path / "run" / "log.jsonl").exists():
        time.sleep(0.02)
        assert job.code is None
    assert holder(tmp_path / "run" / CLAIMS) is not None
    job.send(signal.SIGKILL)
    job.outcome(60)
    assert holder(tmp_path / "run" / CLAIMS) is None
    with RunFolder(tmp_path / "run") as folder:
        folder.claim()
        assert holder(tmp_path / "run" / CLAIMS).pid == os.getpid()


def test_a_beginning_that_was_cut_off_is_no_run(config, tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.claim()
    (tmp_path / "run" / ".config.toml.0123").write_bytes(b"[da")
    run = Run(config(iterations=2), tmp_path / "run")
    run.train()
    assert not list((tmp_path / "run").glob(".config.toml.*"))


def test_an_owner_on_another_machine_is_refused_once_it_gives_a_sign_of_life(tmp_path):
    wait = _refuse_living(tmp_path / "run")
    owner = Holder("token", "elsewhere", 7, "elsewhere 1", "noon", beat=7)
    for _ in range(3):
        wait(owner)  # not seen to live so far
        wait(None)  # nor is one whose claim cannot be read
    with pytest.raises(BadInput, match="is being written by process 7 on elsewhere since noon; wait until it ends"):
        wait(replace(owner, beat=8))


def test_a_run_that_was_taken_over_writes_nothing_any_more(config, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    with folder:
        folder.begin(config())
        folder.log([{"iteration": 1}])
        (tmp_path / "run" / CLAIMS / "7").write_bytes(b"of another process")
        later = time.monotonic() + 31
        monkeypatch.setattr("fheat.system.claims.time.monotonic", lambda: later)
        with pytest.raises(Displaced, match=r"run: was taken over by another process, .*; let that one go on"):
            folder.log([{"iteration": 2}])
    assert (tmp_path / "run" / "log.jsonl").read_bytes().count(b"\n") == 1
