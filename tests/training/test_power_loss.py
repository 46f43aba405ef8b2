"""After a loss of power at any moment a run goes on from what it had promised, or says that nothing was saved."""

import shutil
import sys

import numpy as np
import pytest

from fheat import Predictor, load
from fheat.io import read_nifti
from fheat.system.errors import BadInput
from fheat.training import observers
from fheat.training.checkpoints import newest_checkpoint, save_checkpoint
from fheat.training.run_folder import RunFolder
from tests.system.power import recorded
from tests.training.helpers import Run

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]


@pytest.fixture
def recording(config, tmp_path, monkeypatch):
    """A recorded run, its settings, and how often it saved."""
    settings = config(method="supervised", iterations=6, validate_every=3, checkpoint_every=2)
    (tmp_path / "disk").mkdir()
    with recorded(tmp_path / "disk", monkeypatch) as recorder:

        def save(folder, checkpoint):
            target = save_checkpoint(folder, checkpoint)
            recorder.mark(checkpoint.iteration)
            return target

        monkeypatch.setattr(observers, "save_checkpoint", save)
        Run(settings, tmp_path / "disk" / "run").train()
        recorder.mark("end")
    return recorder, settings


def looked_at(folder, promised):
    """Return the iteration that a run goes on from, after reading all that is there; None where no run is."""
    run = RunFolder(folder)
    if not (folder / "config.toml").exists():
        with pytest.raises(BadInput, match=r"is not a run folder: it has no config\.toml"):
            run.settings()
        assert not promised
        run.check_free()  # so that a run can begin here again
        return None
    run.settings()
    found = newest_checkpoint(run.checkpoints)
    iteration = 0 if found is None else found.iteration
    assert iteration >= max((mark for mark in promised if mark != "end"), default=0)
    kept = run.rewind_log(iteration)
    assert [line["iteration"] for line in kept if "total" in line] == list(range(1, iteration + 1))
    for part in ("best", "final"):
        if (folder / part).exists():
            load(folder / part)
    assert "end" not in promised or (folder / "final").exists()
    return iteration


def test_no_state_of_a_run_folder_is_unreadable_and_all_that_was_promised_is_there(recording, tmp_path):
    recorder, settings = recording
    (tmp_path / "found").mkdir()
    whole, resumed, count = load(tmp_path / "disk" / "run" / "final").state_dict(), set(), 0
    for place, promised in recorder.states(tmp_path / "found"):
        count += 1
        kind = looked_at(place / "run", promised), place.name.split("-")[1]
        if kind[0] is not None and kind not in resumed:  # one of each is really gone on with
            resumed.add(kind)
            again = load(Run(settings, place / "run", resume=True).train()).state_dict()
            assert all((again[name] == whole[name]).all() for name in whole)
        shutil.rmtree(place)
    assert count > 100
    assert {kind[0] for kind in resumed} == {0, 2, 4, 6}


def test_no_mask_is_there_in_part(config, tmp_path, monkeypatch, scans):
    settings = config(method="supervised", iterations=2)
    model = Run(settings, tmp_path / "run").train()
    images = sorted((scans / "imagesTr").iterdir())[:2]
    (tmp_path / "images").mkdir()
    for image in images:
        shutil.copy(image, tmp_path / "images")
    (tmp_path / "disk").mkdir()
    with recorded(tmp_path / "disk", monkeypatch) as recorder:
        Predictor(model, device="cpu", runtime="torch").segment_folder(tmp_path / "images", tmp_path / "disk" / "out")
        recorder.mark("end")
    whole = {path.name: read_nifti(path).data for path in (tmp_path / "disk" / "out").glob("*.nii.gz")}
    assert len(whole) == 2
    (tmp_path / "found").mkdir()
    for place, promised in recorder.states(tmp_path / "found"):
        masks = {path.name: read_nifti(path).data for path in place.glob("out/[!.]*.nii.gz")}
        assert all(np.array_equal(mask, whole[name]) for name, mask in masks.items())
        assert not promised or "certain" in place.name or masks.keys() == whole.keys()
        shutil.rmtree(place)
