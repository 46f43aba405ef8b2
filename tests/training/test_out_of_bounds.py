"""Numbers that no machine can serve, brackets without end, an early Ctrl-C, a source tree: one line each."""

import importlib.metadata
import os
import signal
import sys

import pytest
import torch

from fheat.cli.main import main
from fheat.report.write import write_report
from fheat.training.batches import draw_order
from tests.forks import Fork
from tests.training.helpers import SMALL_WORDS, Run
from tests.training.programs import train


def refused(capsys, words, *says):
    assert main(["train", *map(str, words)]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    for part in says:
        assert part in error


@pytest.mark.parametrize(
    ("word", "number", "field"),
    [
        ("--iterations", 10**12, "schedule.iterations: 1,000,000,000,000 iterations with batch 2 take at least"),
        ("--iterations", 10**30, "schedule.iterations: "),
        (
            "--batch",
            10**9,
            "data.batch: 1,000,000,000 crops of (16, 16, 16) take at least 15,258.8 GiB, and this machine",
        ),
        ("--batch", 10**30, "data.batch: "),
        ("--research.probe-batches", 10**12, "research.probe_batches: "),
    ],
)
def test_numbers_beyond_all_memory_are_refused_by_arithmetic(scans, tmp_path, capsys, word, number, field):
    words = [scans, *SMALL_WORDS, "--method", "supervised", word, number, "--out", tmp_path / "run"]
    refused(capsys, words, f"fheat: {field}", "; use at most ")
    assert not (tmp_path / "run").exists()


def test_brackets_without_end_are_refused(tmp_path, capsys):
    (tmp_path / "deep.toml").write_text("data = " + "[" * 20_000)
    refused(capsys, ["--config", tmp_path / "deep.toml", "--out", tmp_path / "run"], "deep.toml: is nested too deeply;")
    assert not (tmp_path / "run").exists()


def test_the_order_of_scans_is_the_one_that_was_always_drawn():
    drawn = draw_order(5, 3, 9, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    whole = torch.cat([torch.randperm(5, generator=generator) for _ in range(6)])
    assert torch.equal(drawn, whole[:27].view(9, 3))


def interrupted_while_reading(number, *words):
    """Train, and get a signal as soon as the first scan was read."""
    import fheat.training.scans as scans

    read, sent = scans.read_image, []

    def read_and_signal(*arguments, **options):
        image = read(*arguments, **options)
        if not sent:  # once: scans are read by several threads
            sent.append(number)
            os.kill(os.getpid(), number)
        return image

    scans.read_image = read_and_signal
    return train(*words)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_signal_leaves_nothing_behind(scans, tmp_path, number, code):
    words = ["train", str(scans), *SMALL_WORDS, "--method", "supervised", "--out", str(tmp_path / "run")]
    end, printed, error = Fork(interrupted_while_reading, number, *words).outcome(60)
    assert (end, printed, error) == (code, "", "fheat: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_run_without_package_metadata_keeps_its_report(config, tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    Run(config(method="supervised", iterations=2), tmp_path / "run").train()
    for place in ("importlib.metadata.version", "fheat.system.machine.version"):
        monkeypatch.setattr(place, missing)
    from fheat import __version__

    assert f"<td>{__version__}</td>" in write_report(tmp_path / "run", scans=0).read_text()
