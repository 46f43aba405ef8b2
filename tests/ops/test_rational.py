"""The rational activation against numpy, its fits against the functions they stand for."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fheat.ops import Rational, rational_function
from fheat.ops.rational import INITIAL

ROOT = Path(__file__).parents[2]


def by_definition(x, a, b):
    above = sum(coefficient * x**power for power, coefficient in enumerate(a))
    below = sum(coefficient * x ** (power + 1) for power, coefficient in enumerate(b))
    return above / (1 + np.abs(below))


@given(st.lists(st.floats(-2, 2), min_size=10, max_size=10), st.floats(-4, 4))
def test_equals_the_definition(coefficients, x):
    a, b = coefficients[:6], coefficients[6:]
    found = rational_function(*(torch.tensor(v, dtype=torch.float64) for v in (x, a, b)))
    assert found.item() == pytest.approx(by_definition(x, a, b), abs=1e-9, rel=1e-9)


@pytest.mark.parametrize(
    ("initial", "target", "bound"),
    [
        ("gelu", lambda x: torch.nn.functional.gelu(x), 4.0e-3),
        ("silu", lambda x: torch.nn.functional.silu(x), 5.8e-4),
        ("identity", lambda x: x, 1e-300),
    ],
)
def test_initial_error(initial, target, bound):
    x = torch.linspace(-8, 8, 20001, dtype=torch.float64).reshape(1, 1, -1).expand(1, 8, -1)
    error = (Rational(8, initial=initial).double()(x) - target(x)).abs().max().item()
    coefficients = [torch.tensor(v, dtype=torch.float64) for v in INITIAL[initial]]
    exact = (rational_function(x, *coefficients) - target(x)).abs().max().item()
    assert exact < bound
    assert error < bound + 1e-5  # the parameters are float32


def test_constants_are_what_the_script_fits(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fit_rational

    stored = json.loads((ROOT / "benchmarks" / "results" / "rational-fit.json").read_text())["results"]["fits"]
    for name in ("gelu", "silu"):
        fitted = fit_rational.fit(name)
        assert fitted["max_error"] == pytest.approx(stored[name]["max_error"], rel=1e-3)
        assert INITIAL[name][0] == pytest.approx(stored[name]["numerator"])
        assert INITIAL[name][1] == pytest.approx(stored[name]["denominator"])
        assert INITIAL[name][0] == pytest.approx(fitted["numerator"], rel=1e-4, abs=1e-9)
    sys.modules.pop("fit_rational")


def test_size_and_groups():
    module = Rational(60)
    assert sum(p.numel() for p in module.parameters()) == 38
    assert module.state_dict().keys() == {"numerator", "denominator"}
    counts = torch.bincount(module.group)
    assert counts.sum() == 60
    assert set(counts.tolist()) == {7, 8}
    assert (module.group.diff() >= 0).all()


def test_each_group_uses_its_own_denominator():
    module = Rational(16, groups=4).double()
    module.denominator.data = torch.randn(4, 4, dtype=torch.float64)
    x = torch.randn(2, 16, 5, dtype=torch.float64)
    found = module(x).detach().numpy()
    for channel in range(16):
        a, b = module.numerator.detach().numpy(), module.denominator[channel // 4].detach().numpy()
        assert np.abs(found[:, channel] - by_definition(x[:, channel].numpy(), a, b)).max() < 1e-12


def test_gradcheck():
    module = Rational(8, groups=2).double()
    module.denominator.data += 0.3 * torch.randn(2, 4, dtype=torch.float64)
    x = torch.randn(1, 8, 3, dtype=torch.float64, requires_grad=True)

    def function(x, numerator, denominator):
        return torch.func.functional_call(module, {"numerator": numerator, "denominator": denominator}, (x,))

    assert torch.autograd.gradcheck(function, (x, module.numerator, module.denominator))
    assert torch.autograd.gradgradcheck(function, (x, module.numerator, module.denominator))


def test_coefficients_that_start_at_zero_can_move():
    module = Rational(8, initial="identity")
    x = torch.rand(2, 8, 5) + 0.5
    module(x).sum().backward()
    assert (module.denominator.grad != 0).all()


def test_denominator_has_no_poles():
    module = Rational(8)
    module.denominator.data = 10 * torch.randn(8, 4)
    x = torch.linspace(-50, 50, 4001).reshape(1, 1, -1).expand(1, 8, -1)
    assert torch.isfinite(module(x)).all()


def test_half_precision_is_computed_in_float32():
    module = Rational(8)
    x = 30 * torch.randn(2, 8, 50)
    for half in (torch.float16, torch.bfloat16):
        assert torch.equal(module(x.to(half)), module(x.to(half).float()).to(half))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module(x)
    assert torch.equal(inside, module(x))


def test_refuses_whole_numbers():
    with pytest.raises(TypeError, match=r"x.float\(\)"):
        Rational(8)(torch.ones(1, 8, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Rational(4), "channels=4"),
        (lambda: Rational(8, groups=0), "groups=0"),
        (lambda: Rational(8, initial="relu"), "initial='relu'"),
        (lambda: Rational(8)(torch.randn(1, 9, 3)), "(1, 9, 3)"),
    ],
)
def test_refuses(build, says):
    with pytest.raises(ValueError) as caught:
        build()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gain_is_close_to_gelu():
    """Second moment under a standard normal, the quantity that sets the scale of the next layer."""
    x, weight = np.polynomial.hermite_e.hermegauss(80)
    value = by_definition(x, *INITIAL["gelu"])
    moment = float((weight * value**2).sum() / math.sqrt(2 * math.pi))
    assert 1 / moment == pytest.approx(2.351716, rel=0.02)
