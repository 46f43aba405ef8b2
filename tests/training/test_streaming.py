"""A run whose scans stay in host memory is the run whose scans lie on the device, bit by bit; and who decides which."""

import numpy as np
import pytest
import torch

from fheat.data import stream as placement
from fheat.data.store import VolumeStore, bytes_together, pack_all
from fheat.data.stream import HostStore, place
from fheat.methods.registry import list_methods
from fheat.training.batches import draw_places
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, changed
from tests.training.test_methods_and_regions import REMEMBERED


def same(one, other):
    states = one.step.state(), other.step.state()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", list_methods())
def test_streamed_equals_resident_and_stops_at_any_iteration(config, tmp_path, method):
    _, options = REMEMBERED.get(method, ([], {}))
    settings = config(method=method, iterations=5, checkpoint_every=100, **options)
    resident = Run(settings, tmp_path / "resident", device="cpu")
    assert isinstance(resident.step.batches.store, VolumeStore)
    resident.train()
    assert torch.isfinite(resident.step.history).all()
    streamed = changed(settings, **{"resident": "no"})
    whole = Run(streamed, tmp_path / "whole", device="cpu")
    assert isinstance(whole.step.batches.store, HostStore)
    whole.train()
    assert torch.equal(whole.step.history, resident.step.history)
    assert same(whole, resident)
    job = Run(streamed, tmp_path / "parts", device="cpu")
    for done in range(1, 5):  # stop after every single iteration, the next crops being on their way
        job.stop()
        with pytest.raises(Stopped):
            job.train()
        assert job.done == done
        torch.manual_seed(99)
        job = Run(streamed, tmp_path / "parts", resume=True, device="cpu")
    job.train()
    assert torch.equal(job.step.history, resident.step.history)
    assert same(job, resident)


def test_a_resident_run_may_go_on_streamed(config, tmp_path):
    settings = config(method="supervised", iterations=4, checkpoint_every=100)
    Run(settings, tmp_path / "whole", device="cpu").train()
    first = Run(settings, tmp_path / "parts", device="cpu")
    first.stop()
    with pytest.raises(Stopped):
        first.train()
    again = Run(changed(settings, **{"resident": "no"}), tmp_path / "parts", resume=True, device="cpu")
    again.train()
    whole = Run(settings, tmp_path / "whole", resume=True, device="cpu")
    assert torch.equal(again.step.history, whole.step.history)


def packed(count=3):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 9, (12, 12, 12)).astype(np.float32) for _ in range(count)]
    return pack_all(images, [None] * count, (8, 8, 8))


def test_where_volumes_live(monkeypatch):
    cpu = torch.device("cpu")
    assert isinstance(place(packed(), cpu, "auto"), VolumeStore)
    assert isinstance(place(packed(), cpu, "no"), HostStore)
    need = bytes_together(packed())
    assert need == 3 * 2 * 12**3  # codes and labels
    for room, kind in ((need, VolumeStore), (need - 1, HostStore)):
        monkeypatch.setattr(placement, "room", lambda device, room=room: room)
        assert isinstance(place(packed(), cpu, "auto"), kind)
        assert isinstance(place(packed(), cpu, "yes"), VolumeStore)
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert placement.room(torch.device("cuda")) == 500


def test_places_are_uniform_and_belong_to_the_seed():
    places = draw_places(2, 4000, torch.Generator().manual_seed(3))
    assert places.shape == (4000, 2, 3)
    assert places.min() >= 0
    assert places.max() < 1
    assert places.mean().item() == pytest.approx(0.5, abs=0.01)
    assert torch.equal(places, draw_places(2, 4000, torch.Generator().manual_seed(3)))


def test_scans_are_let_go_once_they_are_stored(config, tmp_path):
    run = Run(config(iterations=1), tmp_path / "run", device="cpu")
    assert run.scans.volumes == []
    assert len(run.scans.names) == len(run.step.batches.store) == 9
