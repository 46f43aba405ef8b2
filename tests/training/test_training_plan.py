"""The plan of a run: what it says is what the run does, and looking at it changes nothing."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from fheat.cli.main import main
from fheat.data.orientation import reorient
from fheat.data.read import read_image
from fheat.io import Volume, write_nifti
from fheat.networks.registry import create_model
from fheat.training.estimate import activation_bytes, step_bytes, stored_speed
from fheat.training.plan import plan_run
from fheat.training.prepare import prepare
from fheat.training.runs import read_history
from tests.training.helpers import SMALL_WORDS, Run, content_of


def test_a_plan_says_what_the_run_does(config):
    settings = config(stride=(8, 8, 4))
    run = prepare(settings, device="cpu")
    plan = plan_run(run)
    facts = json.loads(json.dumps(plan.to_json()))
    scans = run.scans
    assert facts["scans"] == {
        "labelled": scans.labelled,
        "unlabelled": scans.unlabelled,
        "validation": len(scans.validation),
    }
    assert facts["spacing"] == list(scans.preprocessing.spacing)
    assert facts["orientation"] == scans.preprocessing.orientation
    trained = [read_image(case) for case in run.dataset.split("train")]
    sizes = [scans.preprocessing.image(image).shape for image in trained]
    median = [round(length) for length in np.median(sizes, axis=0)]
    assert facts["median_image_size_in_voxels"] == median
    assert facts["resampled"] == sum(
        reorient(image, facts["orientation"]).data.shape != size for image, size in zip(trained, sizes, strict=True)
    )
    assert (facts["patch_size"], facts["batch_size"], facts["crops"]) == (
        [16, 16, 16],
        2,
        {"labelled": 2, "unlabelled": 2},
    )
    assert facts["validation"] == {"every": 4, "stride": [8, 8, 4]}
    assert facts["parameters"] == sum(one.numel() for one in run.step.model.parameters())
    assert (facts["normalization"], facts["window"]) == ("zscore", None)
    assert facts["iterations"] == 6
    assert facts["minutes"] is None  # nobody has timed the network of the tests
    assert len(facts["fingerprint"]["spacings"]) == scans.labelled + scans.unlabelled
    store = run.step.batches.store
    assert facts["memory_bytes"]["scans"] == store.voxels.nbytes + store.labels.nbytes
    assert facts["memory_bytes"]["iteration"] > 0
    text = plan.text()
    assert [line.split()[0] for line in text.splitlines()[1:]] == [
        "scans", "spacing", "size", "intensities", "network", "batch", "length", "validation", "memory", "time",
    ]  # fmt: skip
    assert f"{'x'.join(map(str, median))} in the median, patch 16x16x16" in text
    assert "2 labelled and 2 unlabelled crops" in text


def test_looking_at_the_plan_changes_no_run(config, tmp_path):
    """Weights, random numbers and so every loss are those of a run without a plan."""
    settings = config(iterations=4)
    plain, looked = Run(settings, tmp_path / "plain"), Run(settings, tmp_path / "looked")
    state = torch.get_rng_state()
    plan_run(looked.trainer.prepared)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    plain.train()
    torch.manual_seed(5)
    plan_run(looked.trainer.prepared)
    looked.train()
    histories = [read_history(tmp_path / name) for name in ("plain", "looked")]
    assert len(histories[0].steps) == 4
    assert histories[0].steps == histories[1].steps


def test_plan_only_writes_nothing(scans, tmp_path, capsys):
    words = ["train", str(scans), *SMALL_WORDS, "--plan-only", "--out", str(tmp_path / "run")]
    before = content_of(scans)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("plan for ")
    assert not (tmp_path / "run").exists()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == "miniature"
    assert content_of(scans) == before


def test_training_prints_the_plan_first_and_json_holds_it(scans, tmp_path, capsys):
    words = ["train", str(scans), *SMALL_WORDS, "--iterations", "2", "--warm-up", "1"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("plan for ")
    assert lines[-3].startswith("2 iterations")
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["plan"]["iterations"] == outcome["iterations"] == 2


@pytest.fixture
def ct(tmp_path):
    """Four scans with the intensities of CT: air around a body whose organ has 20 to 60."""
    rng = np.random.default_rng(0)
    for index in range(4):
        voxels = np.full((22, 20, 20), -1000, np.int16)
        voxels[3:19, 3:17, 3:17] = rng.integers(-100, 0, (16, 14, 14))
        label = np.zeros(voxels.shape, np.uint8)
        label[6:14, 6:14, 6:14] = 1
        voxels[label > 0] = rng.integers(20, 61, 512)
        write_nifti(Volume(voxels, np.eye(4)), tmp_path / "images" / f"{index}.nii.gz")
        write_nifti(Volume(label, np.eye(4)), tmp_path / "labels" / f"{index}.nii.gz")
    return tmp_path


def test_a_window_is_suggested_for_ct_and_then_used(ct, capsys):
    words = ["train", str(ct), *SMALL_WORDS, "--plan-only"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "note: the scans look like CT, and zscore is chosen: --intensity window --window 20 60 would take" in out
    assert main([*words, "--intensity", "window", "--window", "20", "60"]) == 0
    out = capsys.readouterr().out
    assert "note:" not in out
    assert "window 20 to 60; inside the labels mean " in out


def test_activations_are_those_of_a_plain_count():
    """One convolution keeps its input, one activation keeps its own input: counted by hand."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(1, 4, 1)

        def forward(self, x):
            return torch.tanh(self.conv(x))

    voxels = 64 * 48 * 32
    assert activation_bytes(Two(), 1, (64, 48, 32)) == 4 * voxels * (1 + 4)
    assert activation_bytes(Two(), 2, (64, 48, 32)) is None  # it takes one channel: not known

    class Stub:
        class needs:  # noqa: N801
            teacher, second_network = True, False

        passes = (3, 1)

    weights = sum(one.nbytes for one in Two().parameters())
    assert step_bytes(Two(), Stub, 1000, 2, half=False) == 5 * weights + 9000
    assert step_bytes(Two(), Stub, 1000, 2, half=True) == 5 * weights + 4500


@pytest.mark.slow
def test_activations_grow_with_the_crop():
    model = create_model("fheat_seg", patch_size=(64, 64, 64))
    small, large = (activation_bytes(model, 1, (side,) * 3) for side in (32, 64))
    assert large == 8 * small


def test_a_speed_is_per_crop_and_pass():
    patch = (112, 112, 80)
    one = stored_speed("fheat_seg", "supervised", patch, 1, "cuda")
    assert stored_speed("fheat_seg", "supervised", patch, 4, "cuda") == pytest.approx(one / 4)
    assert stored_speed("fheat_seg", "cse", patch, 1, "cuda") == pytest.approx(one * 3 / 10)
    assert stored_speed("fheat_seg", "supervised", (56, 112, 80), 1, "cuda") == pytest.approx(one * 2)
    assert stored_speed("none", "cse", patch, 1, "cuda") is None
