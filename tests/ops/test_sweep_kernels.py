"""Depthwise convolutions in Triton's interpreter, by sweeps, tiles and runs, outputs poisoned: against float64."""

import pytest
import torch
import torch.nn.functional as F

from fheat.nn.convolutions import DepthwiseConv3d
from fheat.ops import kernels
from fheat.ops.kernels import launch
from tests.ops.compare import error

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

CASES = [(1, 3, (1, 1, 1)), (2, 35, (3, 3, 9)), (1, 9, (18, 1, 2)), (1, 3, (2, 6, 10))]
IN_RUNS = [(1, 4, (1, 1, 1)), (2, 12, (3, 2, 7)), (1, 60, (2, 3, 6)), (2, 24, (3, 4, 10)), (1, 8, (18, 1, 4))]
BY_THREAD = [(1, 34, (5, 9, 8)), (2, 6, (7, 3, 16)), (1, 2, (9, 1, 15)), (1, 64, (1, 8, 5)), (1, 34, (4, 3, 14))]


pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(
    params=[(1, 0), (1, 2**22), (64, 2**22)],
    ids=["sweep", "long runs", "short runs"],
)
def _programs(request, monkeypatch):
    """Where few programs suffice every grid that does not fit the cache is swept; what cannot be has tiles."""
    programs, cache = request.param
    monkeypatch.setattr(launch, "PROGRAMS", programs)
    monkeypatch.setattr(launch, "_MOST_IN_RUNS", cache)


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize(("samples", "channels", "grid"), CASES + IN_RUNS + BY_THREAD)
def test_the_depthwise_convolution_and_its_gradients(samples, channels, grid):
    convolution = DepthwiseConv3d(channels)
    x = torch.randn(samples, channels, *grid, requires_grad=True)
    inputs = [x, convolution.weight, convolution.bias]
    exact = [value.detach().double().requires_grad_() for value in inputs]
    expected = F.conv3d(*exact, padding=1, groups=channels)
    slope = torch.randn(expected.shape)
    with kernels.use("always"):
        found = convolution(x)
    assert error(found, expected) < 1e-6
    slopes = torch.autograd.grad((found * slope).sum(), inputs)
    for one, other in zip(slopes, torch.autograd.grad((expected * slope).sum(), exact), strict=True):
        assert error(one, other) < 1e-5


@pytest.mark.usefixtures("_programs")
def test_the_convolution_with_a_residual():
    from fheat.ops.kernels.depthwise import residual_depthwise, weight_tables

    x, weight = torch.randn(2, 2, 5, 3, 7, requires_grad=True), torch.randn(7, 1, 3, 3, 3, requires_grad=True)
    exact = [value.detach().double().requires_grad_() for value in (x, weight)]
    last = exact[0].movedim(-1, 1)
    expected = (last + F.conv3d(last, exact[1], padding=1, groups=7)).movedim(1, -1)
    found = residual_depthwise(x, weight, weight_tables([weight])[0])
    slopes = torch.autograd.grad(found.square().sum(), [x, weight])
    assert error(found, expected) < 1e-6
    for one, other in zip(slopes, torch.autograd.grad(expected.square().sum(), exact), strict=True):
        assert error(one, other) < 1e-5


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("samples", [2, 6])
@pytest.mark.parametrize(
    ("channels", "sizes"),
    [
        (32, (112, 112, 80)),
        (60, (56, 56, 40)),
        (96, (28, 28, 20)),
        (150, (14, 14, 10)),
        (24, (33, 27, 18)),
        (96, (28, 28, 22)),
        (32, (98, 98, 98)),
    ],
)
def test_programs_cover_the_grid(channels, sizes, samples, sums):
    plan = launch.sweep_in_runs(samples, sizes, channels, sums=sums)
    if (channels, samples) == (150, 2):
        assert plan is None
        return
    across = -(-sizes[1] // plan.shape["HIGH"]) * (sizes[2] // plan.shape["RUN"])
    assert sizes[2] % plan.shape["RUN"] == 0
    assert plan.grid[0] == across * -(-channels // plan.shape["BLOCK"])
    assert (plan.grid[1] - 1) * plan.run < sizes[0] <= plan.grid[1] * plan.run
    assert plan.grid[2] == samples
    assert plan.rows(channels) == across * plan.grid[1] * samples


def test_odd_channels_and_lines_without_runs_are_not_swept():
    assert launch.sweep_in_runs(6, (112, 112, 80), 33, sums=False) is None
    assert launch.sweep_in_runs(6, (111, 111, 79), 32, sums=False) is None


@pytest.mark.parametrize(
    ("samples", "sizes", "channels", "run", "block"),
    [
        (6, (28, 28, 20), 24, 5, 128),
        (6, (14, 14, 10), 48, 2, 128),
        (6, (8, 8, 6), 60, 1, 64),
        (2, (4, 4, 3), 96, 1, 32),
    ],
)
def test_runs_are_long_where_there_are_programs_enough(samples, sizes, channels, run, block):
    plan = launch.runs(samples, sizes, channels)
    assert (plan.shape["RUN"], plan.shape["BLOCK"]) == (run, block)
    assert plan.items == samples * sizes[0] * sizes[1] * (sizes[2] // run) * channels // 4
    assert plan.items <= plan.grid[0] * block < plan.items + block


def test_what_is_not_in_fours_or_large_has_no_runs():
    assert launch.runs(6, (8, 8, 6), 30) is None
    assert launch.runs(6, (56, 56, 40), 24) is None


def test_small_grids_are_not_swept():
    assert launch.sweep_in_runs(6, (8, 8, 6), 60, sums=False) is None
    assert launch.sweep_in_runs(2, (4, 4, 3), 96, sums=True) is None
