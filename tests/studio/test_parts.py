"""The parts of the service by themselves: its folder, its events, the processes of its tasks, the names of labels."""

import asyncio
import os
import subprocess
import sys

import pytest

from fheat.studio.answers import Refused
from fheat.studio.events import KEPT, MOST_STREAMS, WAITING, Events
from fheat.studio.launcher import LOST, Launcher
from fheat.studio.service import new_label
from fheat.studio.worker import FORKS
from fheat.studio.workplace import workplace
from tests.studio.conftest import until


def test_the_folder_is_private_and_goes_with_the_service(tmp_path):
    with workplace(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        with workplace(tmp_path) as other:  # a second service leaves the first one alone
            assert folder.exists()
            assert other != folder
        assert not other.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="folders are locked on POSIX systems")
def test_the_folder_of_a_killed_service_is_removed_by_the_next(tmp_path):
    code = f"import os; from fheat.studio.workplace import workplace\nwith workplace({str(tmp_path)!r}): os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    (stale,) = tmp_path.iterdir()
    (tmp_path / "fheat-studio-being-made").mkdir()
    (tmp_path / "fheat-studio-link").symlink_to(tmp_path)
    with workplace(tmp_path):
        assert not stale.exists()
        assert (tmp_path / "fheat-studio-being-made").exists()
        assert (tmp_path / "fheat-studio-link").is_symlink()


def taken(events, count, after=None, state=()):
    """Return the first events of a new stream."""

    async def take():
        found = []
        async for event in events.stream(after, lambda: list(state)):
            found.append(event)
            if len(found) == count:
                break
        return found

    return take()


def test_events_are_numbered_and_late_comers_get_what_they_missed():
    async def story():
        events = Events()
        for number in range(5):
            events.publish({"n": number})
        assert await taken(events, 3, after=2) == [(3, {"n": 2}), (4, {"n": 3}), (5, {"n": 4})]
        assert await taken(events, 1, state=[{"now": 1}]) == [(5, {"now": 1})]
        assert await taken(events, 1, after=99, state=[{"now": 1}]) == [(5, {"now": 1})]
        for number in range(KEPT):
            events.publish({"n": number})
        assert await taken(events, 1, after=2, state=[{"now": 2}]) == [(KEPT + 5, {"now": 2})]
        assert (await taken(events, 1, after=5))[0][0] == 6

    asyncio.run(story())


def test_a_slow_reader_ends_and_the_others_go_on():
    async def story():
        events = Events()
        slow, quick = events.stream(0, list), events.stream(0, list)
        events.publish({"n": 1})
        assert (await anext(slow))[0] == (await anext(quick))[0] == 1
        for number in range(WAITING):
            events.publish({"n": number})
            await anext(quick)
        events.publish({"n": -1})
        assert (await anext(quick))[1] == {"n": -1}
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        events.close()
        with pytest.raises(StopAsyncIteration):
            await anext(quick)

    asyncio.run(story())


def test_there_is_an_end_to_streams():
    async def story():
        events = Events()
        events.publish({})
        streams = [events.stream(0, list) for _ in range(MOST_STREAMS)]
        for stream in streams:
            events.check_room()
            await anext(stream)
        with pytest.raises(Refused):
            events.check_room()
        await streams[0].aclose()
        events.check_room()

    asyncio.run(story())


def test_tasks_answer_and_unknown_ones_are_refused(launcher, model, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    good = launcher.begin("allocation", {"model": str(model)}, tmp_path / "a")
    bad = launcher.begin("allocation", {"model": str(tmp_path / "none")}, tmp_path / "b")
    unknown = launcher.begin("unknown", {}, tmp_path / "c")
    assert [task.future.result(60) for task in (good, bad, unknown)] == [0, 0, 0]
    assert len(good.answer()["result"]["gates"]) == 3
    assert bad.answer()["refused"][0] == "no such model folder"
    assert unknown.answer()["refused"][0] == "an internal error happened (KeyError)"


@pytest.mark.skipif(not FORKS, reason="tasks have processes of their own everywhere else")
@pytest.mark.slow
def test_tasks_of_a_killed_starter_are_lost_and_the_next_one_is_not(model, tmp_path):
    launcher = Launcher()
    launcher.warm_up()
    task = launcher.begin("allocation", {"model": str(model)}, tmp_path)
    launcher._hosts[0]._process.kill()
    assert task.future.result(60) == LOST
    assert task.answer() is None
    again = launcher.begin("runs", {"runs": str(tmp_path)}, tmp_path)
    assert again.future.result(120) == 0
    assert again.answer() == {"result": []}
    starter = launcher._hosts[0]._process
    launcher.close()
    assert starter.poll() is not None


@pytest.mark.slow
def test_without_forks_each_task_has_a_process_that_can_be_killed(tmp_path):
    launcher = Launcher(forks=False)
    task = launcher.begin("runs", {"runs": str(tmp_path)}, tmp_path)
    assert task.future.result(120) == 0
    assert task.answer() == {"result": []}
    doomed = launcher.begin("runs", {"runs": str(tmp_path)}, tmp_path)
    doomed.kill()
    assert doomed.future.result(60) == LOST
    until(lambda: not any(host.alive for host in launcher._hosts))
    launcher.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scan.nii.gz", "scan.nii.gz"),
        ("Scan 1.NII", "Scan_1.nii.gz"),
        ("a.b.nrrd", "a.b.nii.gz"),
        ("...zip", "scan.nii.gz"),
        ("\u00e4\u00f6.nii", "scan.nii.gz"),
        ("x" * 190 + ".nii", "x" * 100 + ".nii.gz"),
        ("~$a;b|c`d.nii", "a_b_c_d.nii.gz"),
    ],
)
def test_labels_have_plain_names_and_replace_nothing(tmp_path, name, expected):
    assert new_label(tmp_path, name).name == expected
    assert new_label(tmp_path, name).name == expected.replace(".nii.gz", "-2.nii.gz")
    assert len(list(tmp_path.iterdir())) == 2
