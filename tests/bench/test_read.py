"""Reading: every way gives the voxels of the others, the store is that of one reader, and ratios are ratios."""

import dataclasses

import nibabel
import numpy as np
import pytest
import torch

from fheat.bench.read import _ways, read_times, start_seconds, store_of
from fheat.bench.timing import Timer
from fheat.data.layouts import open_dataset
from fheat.data.phantom import write_phantoms
from fheat.data.read import read_image
from fheat.io import trusting
from fheat.system.trust import is_trusting

SHAPE = (40, 36, 34)  # larger than the smallest patch, up to which scans are padded


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("read") / "scans"
    write_phantoms(folder, 3, shape=SHAPE, test=0, geometry="canonical")
    return open_dataset(folder)


def test_every_way_reads_the_same_voxels(dataset):
    seen, trusted = {}, {}

    def read_all(read):
        trusted[len(seen)] = is_trusting()
        seen[len(seen)] = [np.squeeze(getattr(one, "data", one)) for one in map(read, dataset.cases)]

    ways = _ways(dataset.cases, read_all)
    assert list(ways) == ["nibabel", "trusted", "confined"]
    for way in ways.values():
        way()
    assert trusted == {0: False, 1: True, 2: False}
    for case, *found in zip(dataset.cases, *seen.values(), strict=True):
        voxels = nibabel.load(case.images[0]).get_fdata()
        assert all(np.array_equal(one, voxels) for one in found)


def test_files_of_other_formats_are_not_given_to_nibabel(dataset, tmp_path):
    case = dataclasses.replace(dataset.cases[0], images=(tmp_path / "scan.nrrd",))
    assert list(_ways([case], list)) == ["trusted", "confined"]


def test_the_store_is_that_of_a_plain_loop(dataset):
    one, several = (store_of(dataset, dataset.cases, readers) for readers in (1, 3))
    assert torch.equal(one.voxels, several.voxels)
    assert torch.equal(one.labels, several.labels)
    assert len(one) == 3
    size = int(np.prod(SHAPE))
    for number, case in enumerate(dataset.cases):
        image = nibabel.load(case.images[0]).get_fdata()
        label = nibabel.load(case.label).get_fdata()
        part = slice(number * size, (number + 1) * size)
        voxels = one.decoded(torch.tensor([number]), one.voxels[:, part].reshape(1, 1, -1, 1, 1)).numpy()
        assert voxels.reshape(SHAPE) == pytest.approx((image - image.mean()) / image.std(), abs=1e-4)
        assert np.array_equal(one.labels[part].numpy().reshape(SHAPE), label)


def test_times(dataset):
    timer = Timer(rounds=1)
    found = read_times(timer, dataset, 2, 2)
    assert found["scans"] == found["store_scans"] == 2
    assert found["shape"] == "40x36x34"
    assert found["first_scan_bytes"] == read_image(dataset.cases[0]).data.nbytes
    for name in ("", "threads_"):
        seconds = found[f"{name}seconds"]
        assert found[f"{name}ratio"] == {way: value / seconds["nibabel"] for way, value in seconds.items()}
        assert 0 < min(seconds.values()) < 10  # seconds, not milliseconds
    assert list(found["store_seconds"]) == ["1 at a time", "2 at a time"]
    assert found["store_ratio"]["1 at a time"] == 1
    assert timer.notes == []


def test_scans_without_labels_are_read_and_a_note_says_what_was_left_out(dataset):
    bare = dataclasses.replace(
        dataset, cases=tuple(dataclasses.replace(case, label=None, unlabelled=True) for case in dataset.cases)
    )
    timer = Timer(rounds=1)
    found = read_times(timer, bare, 2, 2)
    assert "store_seconds" not in found
    assert "no labels" in timer.notes[0]


def test_a_confined_process_takes_time_to_start_also_where_files_are_trusted(dataset):
    with trusting():
        assert start_seconds(dataset.cases[0]) > 0.05
