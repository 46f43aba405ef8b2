"""Threads of a run on a CPU: its iterations and its windows choose them, each for themselves."""

import torch

from fheat.system import pace
from fheat.training import trainer
from tests.training.helpers import Run


class Paces:
    """Stands in the place of the class and remembers what each of its instances was asked to run, and beside whom."""

    def __init__(self, taken):
        self.taken, self.made, self.threads = taken, [], []

    def __call__(self):
        made = pace.Pace(self)
        units = []
        self.made.append(units)
        run = made.unit

        def unit(amount=1.0):
            units.append(amount)
            self.threads.append(made.threads)
            return run(amount)

        made.unit = unit
        return made

    def busy(self):
        return self.taken


def trained(config, folder, monkeypatch, taken, **settings):
    """Return the paces of a finished run beside so many busy programs, and the bytes of its network."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    paces = Paces(taken)
    monkeypatch.setattr(trainer, "Pace", paces)
    monkeypatch.setattr(pace, "processors", lambda: 2)
    try:
        final = Run(config(iterations=4, **settings), folder).train()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    return paces, (final / "model.safetensors").read_bytes()


def test_iterations_and_windows_have_a_pace_of_their_own(config, tmp_path, monkeypatch):
    alone, network = trained(config, tmp_path / "alone", monkeypatch, 0.0)
    assert sorted(map(len, alone.made))[-1] >= 4
    assert [1.0] * 4 in alone.made
    assert len(alone.made) == 2
    assert set(alone.threads) == {2}
    busy, _ = trained(config, tmp_path / "busy", monkeypatch, 1.0)
    assert set(busy.threads) == {1}
    assert busy.made == alone.made
    again, same = trained(config, tmp_path / "again", monkeypatch, 0.0)
    assert again.made == alone.made
    assert same == network


def test_a_run_that_repeats_bit_by_bit_keeps_its_threads(config, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda wanted: None)  # which other tests would meet
    paces, _ = trained(config, tmp_path / "run", monkeypatch, 1.0, **{"optimiser.deterministic": True})
    assert paces.made == []
