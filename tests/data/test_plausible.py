"""Scans that no scanner gives: refused by arithmetic, unless allowed; what is odd is noted."""

import numpy as np
import pytest
from torch import nn

from fheat import BadInput, Card, Predictor
from fheat.data.appearance import Appearance, Looks, unusual_text
from fheat.data.plausible import check_plausible, oddities
from fheat.data.preprocessing import Preprocessing
from fheat.inference.predictor import UnusualScan
from fheat.inference.windows import Windows
from fheat.io import Volume
from tests.refusals import refused

GRID = Preprocessing(orientation="RAS", spacing=(0.625, 0.625, 0.625), intensity={"kind": "zscore"})


def volume(spacing, shape=(32, 32, 32), value=None):
    data = np.broadcast_to(np.int16(0 if value is None else value), shape)
    if value is None:
        data = np.random.default_rng(0).integers(0, 99, shape, dtype=np.int16)
    return Volume(data, np.diag([*np.broadcast_to(spacing, 3), 1.0]))


def refusal(scan, known=None):
    return str(refused(check_plausible, "a.nii.gz", GRID.scan(scan), known))


@pytest.mark.parametrize(
    ("scan", "says"),
    [
        (volume(900), "spacing x is 900 mm, outside 0.0001 to 50 mm"),
        (volume((0.6, 0.6, 51)), "spacing z is 51 mm"),
        (volume(0.00009), "spacing x is 9e-05 mm"),
        (volume(40, (101, 1, 1)), "extent x is 4,040 mm, over 4,000 mm"),
        (volume(40), "becomes 2048 x 2048 x 2048 voxels on the network's grid, 32 GiB, over 16 GiB"),
    ],
)
def test_what_no_scanner_gives_is_refused_with_field_value_bound_and_remedy(scan, says):
    message = refusal(scan)
    assert message.startswith("a.nii.gz: ")
    assert says in message
    assert message.endswith("; correct its header, or give --allow implausible-spacing if it is true")


@pytest.mark.parametrize("spacing", [0.0005, 0.005, 0.1, 0.625, 5, (0.5, 0.5, 40)])
def test_what_scanners_give_passes(spacing):
    check_plausible("a.nii.gz", GRID.scan(volume(spacing)))


def test_any_header_is_judged_at_once():
    """The stored size does not matter, nor how large the scan would become: 2^45 voxels are not looked at."""
    vast = Volume(np.broadcast_to(np.uint8(0), (2**15,) * 3), np.diag([1000.0, 1000.0, 1000.0, 1.0]))
    assert "spacing x is 1000 mm" in str(refused(check_plausible, "a", Preprocessing(spacing=(1e-300,) * 3).scan(vast)))


def test_a_scan_in_the_wrong_unit_is_refused_where_the_training_scans_are_known():
    known = Appearance.of([Looks.of(GRID.scan(volume(0.5, (60, 50, 40))))])
    check_plausible("a", GRID.scan(volume(5, (12, 10, 8))), known)
    check_plausible("a", GRID.scan(volume(0.5, (300, 20, 20))), known)
    wrong = volume(5, (60, 50, 40))
    check_plausible("a", GRID.scan(wrong))
    assert (
        "spacing 5 mm and extent 300 mm are more than 8 times those of the training scans, 0.5 mm and 30 mm"
        in refusal(wrong, known)
    )


def test_oddities_are_named():
    assert oddities(GRID.scan(volume(0.625))) == []
    tiny = oddities(GRID.scan(volume(0.001)))
    assert [str(one) for one in tiny] == [f"spacing {axis} (mm) is 0.001" for axis in "xyz"]
    constant = oddities(GRID.scan(volume(1, value=7)))
    assert unusual_text("a", constant) == (
        "a does not look like a usual scan, so its mask may be wrong: intensity of every voxel is 7"
    )
    data = np.stack([np.full((9, 9, 9), 3), np.arange(729).reshape(9, 9, 9)], axis=-1).astype(np.int16)
    assert [one.quantity for one in oddities(GRID.scan(Volume(data, np.eye(4))))] == [
        "intensity of every voxel of channel 0"
    ]
    nearly = np.zeros((30, 30, 30), np.uint8)
    nearly[1, 1, 1] = 1
    assert oddities(GRID.scan(Volume(nearly, np.eye(4)))) == []


def test_a_predictor_refuses_warns_and_can_be_told_to_go_on():
    coarse = GRID.model_copy(update={"spacing": (10.0, 10.0, 10.0)})
    card, windows = Card(preprocessing=coarse), Windows((16, 16, 16), (16, 16, 16))
    predictor = Predictor(nn.Conv3d(1, 2, 1), card=card, windows=windows)
    with pytest.raises(BadInput, match="the scan: spacing x is 60 mm"):
        predictor.segment(volume(60, (1, 1, 1)))
    with pytest.warns(UnusualScan, match=r"spacing x \(mm\) is 0\.001"):
        predictor.segment(volume(0.001))
    with pytest.warns(UnusualScan, match="intensity of every voxel is 7"):
        predictor.segment(volume(0.625, value=7))
    allowed = Predictor(nn.Conv3d(1, 2, 1), card=card, windows=windows, allow=["implausible-spacing"])
    assert allowed.segment(volume(60, (2, 1, 1))).data.shape == (2, 1, 1)
    assert allowed.memory(volume(900)).total > 2**31
