"""Windows that a kernel adds to the sums of a sliding window, against the plain sliding window."""

import pytest
import torch
from torch import nn

from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows, window_weights
from fheat.ops import kernels
from fheat.ops.kernels.windows import add_window
from tests.ops.compare import error

SIZE, VOLUME = (5, 7, 6), (9, 8, 11)
ACTIVATIONS = {"softmax": lambda y: y.softmax(0), "sigmoid": torch.sigmoid, "none": lambda y: y}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_definition(activation, channels, dtype):
    torch.manual_seed(0)
    logits = (5 * torch.randn(channels, *SIZE)).to(dtype)
    weight, factor = window_weights(SIZE, "gaussian"), 0.25
    sums, weights = torch.randn(channels, *VOLUME), torch.rand(1, *VOLUME)
    expected, expected_weights = sums.double(), weights.double()
    box = slice(None), slice(2, 7), slice(1, 8), slice(4, 10)
    expected[box] += factor * weight.double() * ACTIVATIONS[activation](logits.double())
    expected_weights[box] += factor * weight.double()
    add_window(logits, weight, factor, sums, weights, (2, 1, 4), activation)
    assert error(sums, expected) < 1e-6
    assert error(weights, expected_weights) < 1e-6


def test_channels_that_lie_elsewhere_in_memory():
    logits = torch.randn(1, 3, *SIZE).contiguous(memory_format=torch.channels_last_3d)[0]
    sums, weights = torch.zeros(3, *VOLUME), torch.zeros(1, *VOLUME)
    add_window(logits, torch.ones(SIZE), 1.0, sums, weights, (0, 0, 0), "none")
    assert torch.equal(sums[:, :5, :7, :6], logits)
    assert sums.count_nonzero() == logits.numel()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_not_hidden(bad):
    logits = torch.zeros(2, *SIZE)
    logits[1, 2, 3, 4] = bad
    sums, weights = torch.zeros(2, *VOLUME), torch.zeros(1, *VOLUME)
    add_window(logits, torch.ones(SIZE), 1.0, sums, weights, (0, 0, 0), "softmax")
    expected = logits.softmax(0)
    assert torch.equal(sums[:, :5, :7, :6].isnan(), expected.isnan())
    assert sums.isnan().sum() == 2


@pytest.fixture
def launches(monkeypatch):
    counted = []
    monkeypatch.setattr("fheat.ops.kernels.windows.add_window", lambda *rest: counted.append(1) or add_window(*rest))
    return counted


@pytest.mark.parametrize(
    ("options", "by_kernel"),
    [
        ({}, True),
        ({"weights": "gaussian", "batch": 3, "slab": 1}, True),
        ({"activation": "sigmoid"}, True),
        ({"activation": "none"}, True),
        ({"flips": True}, False),
        ({"groups": 2}, False),
        ({"fused": False}, False),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_volume_is_averaged_as_without_the_kernel(options, by_kernel, launches):
    torch.manual_seed(0)
    net, image, windows = nn.Conv3d(1, 4, 3, padding=1), torch.randn(1, 19, 12, 9), Windows((8, 6, 9), (5, 4, 5))
    expected = SlidingWindow(net, windows, **{**options, "fused": False})(image)
    assert not launches
    with kernels.use("always"):
        found = SlidingWindow(net, windows, **{"fused": True, **options})(image)
    assert error(found, expected) < 1e-6
    assert len(launches) == by_kernel * windows.count((19, 12, 9))


@torch.no_grad()
def test_windows_that_only_fill_gaps_have_their_small_weight(launches):
    net, image = nn.Conv3d(1, 2, 3, padding=1), torch.randn(1, 40, 33, 29)
    windows = Windows((16, 16, 16), (4, 4, 4)).fast()
    expected = SlidingWindow(net, windows, weights="gaussian")(image)
    with kernels.use("always"):
        assert error(SlidingWindow(net, windows, weights="gaussian", fused=True)(image), expected) < 1e-6
    assert launches


@torch.no_grad()
def test_many_channels_are_left_to_torch(launches):
    net, image, windows = nn.Conv3d(1, 17, 1), torch.randn(1, 8, 8, 8), Windows((8, 8, 8), (4, 4, 4))
    with kernels.use("always"):
        assert torch.equal(SlidingWindow(net, windows, fused=True)(image), SlidingWindow(net, windows)(image))
    assert not launches
