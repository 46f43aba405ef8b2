"""Claims: one owner at a time, dead owners are replaced at once or after a while, a displaced one learns of it."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import pytest

from fheat.system import claims
from fheat.system.claims import Displaced, Holder, claimed, holder

QUICK = {"every": 0.02, "patience": 0.2}


def write_claim(folder, number=0, **values):
    """Write the claim of some other process."""
    other = Holder(token="other", host="elsewhere", pid=1, process=None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).write_text(json.dumps(asdict(other) | values))


def test_the_holder_is_known_while_the_body_runs_with_its_note(tmp_path):
    assert holder(tmp_path / "run") is None
    with claimed(tmp_path / "run", **QUICK) as claim:
        claim.note = {"iteration": 7}
        claim.beat()
        owner = holder(tmp_path / "run")
        assert (owner.pid, owner.note, owner.released) == (os.getpid(), {"iteration": 7}, False)
    assert holder(tmp_path / "run") is None


def test_many_threads_never_work_at_once(tmp_path):
    """Each adds to a number in two steps, which would lose additions if two were inside."""
    counter, inside = [0], []

    def add():
        for _ in range(3):
            with claimed(tmp_path / "run", every=0.01, patience=30):
                inside.append(1)
                assert len(inside) == 1
                before = counter[0]
                time.sleep(0.002)
                counter[0] = before + 1
                inside.pop()

    threads = [threading.Thread(target=add) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == [15]
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_the_claim_of_a_process_that_was_killed_is_taken_over_at_once(tmp_path):
    code = (
        "import sys, time, pathlib; from fheat.system.claims import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mine\n"
        assert holder(tmp_path / "run").pid == process.pid
        process.kill()
    with claimed(tmp_path / "run", patience=3600.0):  # which would be waited for
        assert holder(tmp_path / "run").pid == os.getpid()


def test_a_number_of_a_process_that_is_used_again_does_not_make_a_claim_alive(tmp_path):
    machine = claims._this_machine()
    write_claim(tmp_path / "run", pid=os.getpid(), process=f"{machine} 1")  # started when the machine was
    assert holder(tmp_path / "run") is None
    with claimed(tmp_path / "run"):
        pass


def test_a_silent_owner_elsewhere_is_waited_for_and_then_replaced(tmp_path):
    write_claim(tmp_path / "run")
    heard = []
    began = time.monotonic()
    with claimed(tmp_path / "run", waiting=heard.append, **QUICK):
        assert time.monotonic() - began >= QUICK["patience"]
    assert {owner.host for owner in heard} == {"elsewhere"}


def test_an_owner_elsewhere_that_beats_is_not_replaced(tmp_path):
    folder = tmp_path / "run"
    write_claim(folder)
    beats = []

    def waiting(owner):
        beats.append(owner.beat)
        write_claim(folder, beat=owner.beat + 1, released=len(beats) == 100)

    began = time.monotonic()
    with claimed(folder, waiting=waiting, **QUICK):
        assert len(beats) == 100
        assert time.monotonic() - began > QUICK["patience"]


def test_a_claim_that_was_cut_off_while_it_was_written_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "4").write_bytes(b'{"token": "ab')
    with claimed(tmp_path / "run", **QUICK):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["5"]


def test_a_process_that_is_killed_while_it_creates_its_claim_blocks_nobody(tmp_path, monkeypatch):
    """The claim gets its name when it is complete; what was written before has another name and is removed."""

    def killed(*names):
        raise SystemExit("killed here")

    monkeypatch.setattr("fheat.system.claims.os.link", killed)
    monkeypatch.setattr("fheat.system.claims.Path.unlink", lambda *anything, **options: None)
    with pytest.raises(SystemExit), claimed(tmp_path / "run"):
        raise AssertionError
    monkeypatch.undo()
    (left,) = (tmp_path / "run").iterdir()
    assert not left.name.isdecimal()
    with claimed(tmp_path / "run", patience=3600):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["0"]


def test_without_second_names_for_files_a_claim_is_created_all_the_same(tmp_path, monkeypatch):
    def refuse(*names):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("fheat.system.claims.os.link", refuse)
    with claimed(tmp_path / "run"):
        assert holder(tmp_path / "run").pid == os.getpid()
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["0"]


def test_a_claim_with_a_changed_byte_says_nothing(tmp_path):
    """Above all not that its owner is gone: whoever waits takes it for alive until it was silent for long enough."""
    with claimed(tmp_path / "run", every=3600):
        path = tmp_path / "run" / "0"
        whole = path.read_bytes()
        assert claims._read(path)[1].pid == os.getpid()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert claims._read(path)[1] is None


def test_an_owner_that_was_suspended_learns_that_it_was_replaced(tmp_path, monkeypatch):
    with claimed(tmp_path / "run", every=3600, patience=60) as claim:
        claim.check()
        write_claim(tmp_path / "run", number=1)
        claim.check()  # it has beaten a moment ago: nobody can have replaced it
        later = time.monotonic() + 31
        monkeypatch.setattr("fheat.system.claims.time.monotonic", lambda: later)
        with pytest.raises(Displaced, match="another process"):
            claim.check()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["1"]
    assert holder(tmp_path / "run").host == "elsewhere"


def test_whoever_waits_may_give_up(tmp_path):
    write_claim(tmp_path / "run")

    def give_up(owner):
        raise TimeoutError

    with pytest.raises(TimeoutError), claimed(tmp_path / "run", waiting=give_up):
        raise AssertionError
    assert holder(tmp_path / "run").token == "other"


def test_the_work_is_given_back_when_the_body_fails(tmp_path):
    with pytest.raises(RuntimeError), claimed(tmp_path / "run"):
        raise RuntimeError
    assert holder(tmp_path / "run") is None
