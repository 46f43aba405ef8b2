"""The cosine transform against scipy, and its three algorithms against each other."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st

from fheat.ops import dct, idct
from fheat.ops.dct import _BUILT, CROSSOVERS, axis_macs, cosine_matrix, dct_matrix, transform_for
from fheat.testing import assert_orthonormal

ALGORITHMS = ("product", "split", "fft")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
grids = st.lists(st.integers(1, 17), min_size=1, max_size=3)


@given(grids, st.sampled_from((*ALGORITHMS, "auto")), st.integers(0, 2**31))
def test_equals_scipy_in_float64(grid, transform, seed):
    x = np.random.default_rng(seed).standard_normal((2, *grid))
    dims = len(grid)
    expected = scipy.fft.dctn(x, type=2, norm="ortho", axes=range(1, 1 + dims))
    found = dct(torch.from_numpy(x), dims=dims, transform=transform)
    assert np.abs(found.numpy() - expected).max() < 1e-12
    assert np.abs(idct(found, dims=dims, transform=transform).numpy() - x).max() < 1e-12


@pytest.mark.parametrize("length", [63, 64, 100, 127, 512, 513, 1000])
@pytest.mark.parametrize("transform", [*ALGORITHMS, "auto"])
def test_equals_scipy_on_long_axes(length, transform):
    x = torch.randn(3, length, dtype=torch.float64)
    expected = scipy.fft.dct(x.numpy(), type=2, norm="ortho")
    assert np.abs(dct(x, dims=1, transform=transform).numpy() - expected).max() < 1e-12


@given(grids, st.sampled_from(("split", "fft")), st.integers(0, 2**31))
def test_cheaper_algorithms_equal_the_plain_one_in_float32(grid, transform, seed):
    x = torch.randn(2, *grid, generator=torch.Generator().manual_seed(seed))
    dims = len(grid)
    plain = dct(x, dims=dims, transform="product")
    assert (dct(x, dims=dims, transform=transform) - plain).abs().max() < 1e-5
    back = idct(x, dims=dims, transform="product")
    assert (idct(x, dims=dims, transform=transform) - back).abs().max() < 1e-5


@pytest.mark.parametrize("length", [128, 129, 767, 768, 2048])
@pytest.mark.parametrize("transform", ["split", "fft", "auto"])
def test_cheaper_algorithms_on_long_axes_in_float32(length, transform):
    x = torch.randn(4, length)
    assert (dct(x, dims=1, transform=transform) - dct(x, dims=1, transform="product")).abs().max() < 1e-5
    assert (idct(x, dims=1, transform=transform) - idct(x, dims=1, transform="product")).abs().max() < 1e-5


@pytest.mark.parametrize("transform", [*ALGORITHMS, "auto"])
def test_empty_batch(transform):
    assert dct(torch.empty(0, 3, 8, 800), dims=2, transform=transform).shape == (0, 3, 8, 800)


@pytest.mark.parametrize("grid", [(28, 28, 20), (14, 14, 10), (8, 8, 6), (4, 4, 3), (7, 7, 5)])
@pytest.mark.parametrize("transform", ["split", "fft"])
def test_cheaper_algorithms_on_the_networks_grids(grid, transform):
    x = torch.randn(2, 3, *grid)
    assert (dct(x, transform=transform) - dct(x, transform="product")).abs().max() < 1e-5


@pytest.mark.parametrize("transform", ALGORITHMS)
@pytest.mark.parametrize("size", [(1,), (5,), (4, 3), (2, 3, 4), (3, 1, 5)])
def test_orthonormal(transform, size):
    assert_orthonormal(lambda x: dct(x, dims=len(size), transform=transform), size)
    assert_orthonormal(lambda x: idct(x, dims=len(size), transform=transform), size)


@pytest.mark.parametrize("transform", ALGORITHMS)
@pytest.mark.parametrize("grid", [(6,), (5, 4), (2, 3, 5)])
def test_gradcheck(transform, grid):
    x = torch.randn(2, *grid, dtype=torch.float64, requires_grad=True)
    for function in (dct, idct):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, dims=len(grid), transform=transform), x)


def test_backward_is_the_inverse():
    x = torch.randn(1, 2, 5, 6, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(dct(x), x, weight)
    assert (gradient - idct(weight)).abs().max() < 1e-12


def test_matrix_is_exact_to_float32_rounding():
    found = dct(torch.eye(28), dims=1, transform="product").t().double().numpy()
    assert np.abs(found - dct_matrix(28)).max() < 2**-25


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(half):
    x = torch.randn(2, 8, 8, 8).to(half)
    y = dct(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, dct(x.float()))


def test_autocast_does_not_reach_the_products():
    x = torch.randn(2, 3, 12, 8, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.mT).dtype == torch.bfloat16  # autocast is on
        inside = dct(x)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, dct(x))


def test_tables_are_built_once_per_size_device_and_dtype():
    x = torch.randn(2, 211, 197)  # lengths no other test uses
    dct(x, dims=2, transform="product")
    before = dict(_BUILT)
    dct(x, dims=2, transform="product")
    idct(x, dims=2, transform="product")
    assert before == _BUILT
    dct(x.double(), dims=2, transform="product")
    assert len(_BUILT) == len(before) + 2


@pytest.mark.parametrize("lengths", [(5,), (3, 4), (2, 3, 5)])
def test_one_matrix_transforms_several_axes(lengths):
    x = torch.randn(2, *lengths, dtype=torch.float64)
    expected = dct(x, dims=len(lengths)).flatten(1)
    matrix = cosine_matrix(x, *lengths)
    assert (x.flatten(1) @ matrix.t() - expected).abs().max() < 1e-12
    assert torch.equal(cosine_matrix(x, *lengths, transposed=True), matrix.t())


def test_tables_born_in_inference_mode_serve_training():
    with torch.inference_mode():
        dct(torch.randn(1, 1, 23, 1, 1))
    x = torch.randn(1, 1, 23, 1, 1, requires_grad=True)
    dct(x).square().sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach(), atol=1e-5)


def test_products_are_halved_by_the_split():
    assert [axis_macs(n, "product") for n in (28, 20)] == [28, 20]
    assert [axis_macs(n, "split") for n in (28, 20)] == [14, 10]
    assert axis_macs(7, "split") == pytest.approx((16 + 9) / 7)
    assert axis_macs(1024, "fft") == (25 + 4) / 2
    assert axis_macs(1, "fft") == 0


@pytest.mark.parametrize("device", sorted(CROSSOVERS))
def test_crossovers_are_the_measured_ones(device):
    stored = json.loads((RESULTS / f"transforms-{device}.json").read_text())["results"]["crossovers"]
    assert CROSSOVERS[device] == (stored["split_from"], stored["fft_from"])


def test_auto_follows_the_crossovers():
    split_from, fft_from = CROSSOVERS["cpu"]
    assert transform_for(split_from - 1, "cpu") == "product"
    assert transform_for(fft_from, "cpu") == "fft"
    assert transform_for(5000, "cpu", "product") == "product"
    assert transform_for(28, "a device nobody measured") == transform_for(28, "cpu")


@pytest.mark.parametrize(
    ("x", "arguments", "error", "says"),
    [
        (torch.ones(3, 4, dtype=torch.int64), {"dims": 1}, TypeError, "x.float()"),
        (torch.ones(3, 4), {"dims": 3}, ValueError, "dims=3"),
        (torch.ones(3, 4), {"dims": 0}, ValueError, "dims=0"),
        (torch.ones(3, 0), {"dims": 1}, ValueError, "empty axis"),
        (torch.ones(3, 4), {"dims": 1, "transform": "dft"}, ValueError, "transform='dft'"),
    ],
)
def test_refuses(x, arguments, error, says):
    with pytest.raises(error) as caught:
        dct(x, **arguments)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
