"""Segmenting on a GPU: the same mask as on the CPU."""

import numpy as np
import pytest
import torch

pytest.importorskip("nibabel")
from fheat import Card, Predictor, create_model
from fheat.data.preprocessing import Preprocessing
from fheat.inference import replay as module
from fheat.inference.replay import VOXELS_WORTH_KERNELS, Replay
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io import Volume, write_nifti

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_mask_is_that_of_the_cpu():
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(48, 48, 48)).eval()
    card = Card(preprocessing={"orientation": "RAS", "spacing": (1.0, 1.2, 0.9), "intensity": {"kind": "zscore"}})
    data = np.random.default_rng(0).normal(100, 20, (70, 60, 50)).astype(np.float32)
    scan = Volume(data, np.diag([-0.8, 1.0, 1.5, 1.0]))
    here, there = (
        Predictor(model, card=card, device=device, precision="float32").segment(scan).data for device in ("cpu", "cuda")
    )
    assert 0 < here.sum() < here.size
    assert (here != there).mean() < 1e-4


def test_windows_average_alike_on_both():
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).eval()
    image = torch.randn(1, 50, 40, 45)
    windows = Windows((32, 32, 32), (16, 16, 16))
    here = SlidingWindow(model, windows, weights="gaussian")(image)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        there = SlidingWindow(model.cuda(), windows, weights="gaussian", batch=7)(image.cuda())
    assert (here - there.cpu()).abs().max() < 1e-4


def test_scans_overlap_by_default_and_have_the_masks_of_scans_in_turn(tmp_path):
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(48, 48, 48)).eval()
    for number in range(4):
        data = np.random.default_rng(number).normal(100, 20, (70, 60, 50)).astype(np.float32)
        write_nifti(Volume(data, np.eye(4)), tmp_path / "scans" / f"case{number}.nii.gz")
    predictor = Predictor(model, device="cuda", precision="float32")
    records = [
        predictor.segment_folder(tmp_path / "scans", tmp_path / str(overlap), overlap=overlap)
        for overlap in (None, False)
    ]
    overlapping, in_turn = ([scan.mask_sha256 for scan in record.cases] for record in records)
    assert len(set(overlapping)) == 4
    assert overlapping == in_turn
    others = [scan.memory_parts_bytes["others"] > 0 for record in records for scan in record.cases]
    assert others == 4 * [True] + 4 * [False]


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize(
    "intensity", [{"kind": "none"}, {"kind": "zscore"}, {"kind": "window", "low": -3.0, "high": 117.0}]
)
def test_intensities_are_mapped_as_on_the_cpu_bit_for_bit(kind, intensity):
    data = np.asfortranarray(np.random.default_rng(0).normal(100, 20, (70, 60, 50)).astype(kind))
    scan = Preprocessing(orientation="LAS", intensity=intensity).scan(Volume(data, np.eye(4)))
    there = scan.planes(1, 3, 40, torch.device("cuda"))
    assert there.is_cuda
    assert torch.equal(there.cpu(), scan.planes(1, 3, 40))


def test_half_precision_names_the_same_voxels():
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(48, 48, 48)).eval()
    data = np.random.default_rng(0).normal(size=(70, 60, 50)).astype(np.float32)
    masks = {name: Predictor(model, device="cuda", precision=name) for name in ("float32", "bfloat16")}
    whole, half = (one.segment(data) for one in masks.values())
    assert 0 < whole.sum() < whole.size
    assert (whole != half).mean() < 0.02  # random weights: most voxels lie near the border of two classes
    assert masks["bfloat16"].precision == "bfloat16"


def test_replayed_windows_are_those_of_the_network(monkeypatch):
    """What is left of a scan fills up the graph that is there, until that was done for long enough."""
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).cuda().eval()
    replay = Replay(model, "float32", batch=4)
    replay.expect(2 * VOXELS_WORTH_KERNELS, (1, 32, 32, 32))
    for batches, graphs in (((4, 1, 3, 2, 4), [4]), ((1, 4), [4, 1])):
        for batch in batches:
            x = torch.randn(batch, 1, 32, 32, 32, device="cuda")
            with torch.no_grad():
                found = replay(x)
                assert found.shape[0] == batch
                assert torch.allclose(found, model(x), rtol=1e-4, atol=1e-4)
        assert [size[0] for size in replay._graphs] == graphs
        monkeypatch.setattr(module, "VOXELS_WORTH_A_GRAPH", 32**3)
    with torch.inference_mode():
        replay(torch.randn(8, 1, 32, 32, 32, device="cuda"))
    replay(torch.randn(8, 1, 32, 32, 32, device="cuda"))


def test_memory_that_runs_out_leaves_a_quarter_of_the_windows_and_the_same_output():
    """The share that torch may take is cut to what four windows need, which the bound on free memory does not know."""
    model = create_model("fheat_seg_l", patch_size=(64, 64, 64)).cuda().eval()
    x = torch.randn(16, 1, 64, 64, 64, device="cuda")
    with torch.no_grad():
        expected = torch.cat([model(part) for part in x.split(2)])
        torch.cuda.reset_peak_memory_stats()
        model(x[:4])
        four = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction(2 * four / torch.cuda.get_device_properties(0).total_memory)
        replay = Replay(model, "float32", batch=16)
        with pytest.warns(UserWarning, match="no memory for 16 windows at a time"):
            assert torch.allclose(replay(x), expected, rtol=1e-3, atol=1e-3)
        assert torch.allclose(replay(x), expected, rtol=1e-3, atol=1e-3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


class AsksTheHost(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x * float(x.mean())], dim=1)


def test_a_network_that_cannot_be_captured_runs_as_it_is():
    replay, x = Replay(AsksTheHost(), "float32"), torch.randn(1, 1, 8, 8, 8, device="cuda")
    replay.expect(2 * VOXELS_WORTH_KERNELS, (1, 8, 8, 8))
    with pytest.warns(UserWarning, match="cannot be captured"):
        found = replay(x)
    assert torch.equal(found, AsksTheHost()(x))
    assert torch.equal(replay(2 * x), AsksTheHost()(2 * x))
    assert torch.isfinite(torch.randn(9, device="cuda")).all()  # a failed capture leaves the generator usable
