"""Layers that change the grid by fused kernels, in Triton's interpreter: stem, halving, doubling, head.

Outputs are poisoned; results are compared with float64 and with the plain twins.
"""

import copy

import pytest
import torch
from torch import nn

from fheat.nn.convolutions import PatchTransposed3d
from fheat.nn.layers import Down, Stem, Up
from fheat.ops import kernels
from fheat.ops.kernels import launch
from tests.ops.compare import error, shaken

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

CASES = [
    (lambda: Down(5, 24), 1, 5, (6, 4, 2)),
    (lambda: Down(24, 48), 2, 24, (6, 10, 4)),
    (lambda: Down(7, 60), 3, 7, (2, 6, 10)),
    (lambda: Down(60, 96), 2, 60, (4, 2, 6)),
    (lambda: Up(48, 24), 2, 48, (3, 1, 5)),
    (lambda: Up(9, 48), 1, 9, (3, 2, 3)),
    (lambda: Up(7, 60), 3, 7, (1, 3, 2)),
    (lambda: Up(5, 96), 2, 5, (2, 1, 3)),
]
IDS = [f"{way} {channels}" for way in ("down", "up") for channels in (24, 48, 60, 96)]


@pytest.fixture(autouse=True)
def _few_programs(poisoned, monkeypatch):
    """Few programs, so that some walk several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 8)


def open_units(module):
    """Make the hidden units of squeeze-excitation positive, so that all of its weights have gradients."""
    with torch.no_grad():
        module[1].bias.copy_(module[2].squeeze.weight.sum(dim=0))
    return module


def results(module, mode, *inputs):
    """Return the output and the gradients of inputs, which are x and perhaps a skip, and of parameters."""
    inputs = [value.clone().requires_grad_() for value in inputs]
    with kernels.use(mode):
        out = module(inputs[0]) if len(inputs) == 1 else module.added_to(*reversed(inputs))
    slope = torch.linspace(-1, 40, out.numel(), dtype=torch.float64).view_as(out).cos()
    return out, *torch.autograd.grad((out * slope).sum(), [*inputs, *module.parameters()])


def inputs_of(build, samples, channels, grid, *, skip):
    torch.manual_seed(0)
    module, x = open_units(shaken(build())), torch.randn(samples, channels, *grid)
    return module, (x, torch.randn_like(module(x))) if skip else (x,)


@pytest.fixture
def calls(monkeypatch):
    """Count of the layers that ran by kernels."""
    from fheat.nn import layers

    found = []
    weights = layers._patch_weights
    monkeypatch.setattr(layers, "_patch_weights", lambda parts: found.append(1) or weights(parts))
    return found


@pytest.fixture
def spreads(monkeypatch):
    """Count of the heads that ran by kernels."""
    from fheat.ops.kernels import spread as module

    found = []
    spread = module.spread
    monkeypatch.setattr(module, "spread", lambda *inputs: found.append(1) or spread(*inputs))
    return found


def assert_close(module, found, expected, most, *, inputs):
    names = ["out", "x", "skip"][: 1 + inputs] + [name for name, _ in module.named_parameters()]
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.shape == other.shape
        assert other.abs().max() > 0, name
        assert error(one, other) < most, name


@pytest.mark.parametrize(("build", "samples", "channels", "grid"), CASES, ids=IDS)
def test_a_layer_and_all_its_gradients(build, samples, channels, grid, calls):
    module, inputs = inputs_of(build, samples, channels, grid, skip=False)
    expected = results(copy.deepcopy(module).double(), "never", *(value.double() for value in inputs))
    found = results(module, "always", *inputs)
    assert calls == [1]
    assert all(value.dtype == torch.float32 for value in found)
    assert_close(module, found, expected, 2e-5, inputs=1)


@pytest.mark.parametrize(("build", "samples", "channels", "grid"), CASES[4:], ids=IDS[4:])
def test_a_skip_that_is_added(build, samples, channels, grid, calls):
    module, inputs = inputs_of(build, samples, channels, grid, skip=True)
    expected = results(copy.deepcopy(module).double(), "never", *(value.double() for value in inputs))
    found = results(module, "always", *inputs)
    assert calls == [1]
    assert_close(module, found, expected, 2e-5, inputs=2)


@pytest.mark.parametrize("case", [1, 4], ids=["down", "up"])
def test_many_programs_share_a_sample(case, monkeypatch):
    monkeypatch.setattr(launch, "PROGRAMS", 512)
    build, samples, channels, _ = CASES[case]
    grid = (16, 16, 20) if case == 1 else (7, 8, 10)
    module, inputs = inputs_of(build, samples, channels, grid, skip=False)
    expected = results(copy.deepcopy(module).double(), "never", *(value.double() for value in inputs))
    assert_close(module, results(module, "always", *inputs), expected, 2e-5, inputs=1)


@pytest.mark.parametrize("case", [1, 4], ids=["down", "up"])
def test_under_autocast_the_product_is_rounded_and_sums_are_not(case):
    """In fp16, as the other kernels are tested."""
    module, inputs = inputs_of(*CASES[case], skip=False)
    exact = results(module, "never", *inputs)
    with torch.autocast("cpu", torch.float16):
        found = results(module, "always", *inputs)
    assert all(one.dtype == torch.float32 for one in found)
    assert error(found[0], exact[0]) > 1e-6
    assert_close(module, found, exact, 5e-3, inputs=1)


def test_closed_units_pass_no_gradient_on():
    module, x = shaken(Down(6, 24)), torch.randn(2, 6, 4, 6, 4)
    with torch.no_grad():
        module[1].bias.copy_(-20 * module[2].squeeze.weight[0])
    found = results(module, "always", x)
    expected = results(copy.deepcopy(module).double(), "never", x.double())
    assert not found[-1].any()
    assert not found[-2].any()
    assert error(found[1], expected[1]) < 2e-5


def test_moments_survive_a_mean_far_from_zero():
    module, x = Down(6, 24), torch.randn(2, 6, 6, 4, 4)
    with torch.no_grad():
        module[0].bias.fill_(1000)
    with kernels.use("always"):
        found = module(x)
    assert error(found, copy.deepcopy(module).double()(x.double())) < 1e-3


@pytest.mark.parametrize("case", [1, 4], ids=["down", "up"])
def test_results_repeat_bit_by_bit(case):
    module, inputs = inputs_of(*CASES[case], skip=False)
    first, again = (results(module, "always", *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def hook(module):
    module[1].register_forward_hook(lambda *_: None)


def hook_linear(module):
    module[2].squeeze.register_forward_hook(lambda *_: None)


def replace(module):
    module[2] = nn.Identity()


def parametrise(module):
    nn.utils.parametrizations.weight_norm(module[0])


def lengthen(module):
    module.append(nn.Tanh())


def drop_bias(module):
    module[0].bias = None


@pytest.mark.parametrize("change", [hook, hook_linear, replace, parametrise, lengthen, drop_bias])
def test_a_layer_that_was_changed_inside_is_not_fused(change, calls):
    module, x = Up(6, 16), torch.randn(2, 6, 2, 3, 2)
    change(module)
    found, expected = results(module, "always", x)[0], results(module, "never", x)[0]
    assert not calls
    assert error(found, expected) < 1e-5


def test_a_hook_on_the_layer_sees_what_it_returns_without_the_skip(calls):
    module, x, skip = Up(6, 16), torch.randn(2, 6, 2, 3, 2), torch.randn(2, 16, 4, 6, 4)
    seen = []
    module.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    with kernels.use("always"):
        out = module.added_to(skip, x)
    assert calls == [1]
    assert torch.equal(seen[0] + skip, out)


def test_odd_grids_run_plain(calls):
    module = Down(6, 16)
    with kernels.use("always"):
        assert module(torch.randn(1, 6, 5, 4, 3)).shape == (1, 16, 2, 2, 1)
    assert not calls


@pytest.mark.parametrize(
    ("samples", "channels", "classes", "side", "grid"),
    [(2, 24, 2, 4, (3, 5, 7)), (1, 5, 3, 4, (6, 4, 5)), (3, 7, 1, 2, (9, 8, 7)), (2, 5, 5, 8, (2, 1, 3))],
)
def test_a_head_and_all_its_gradients(samples, channels, classes, side, grid, spreads):
    torch.manual_seed(0)
    head, x = PatchTransposed3d(channels, classes, side), torch.randn(samples, channels, *grid)
    expected = results(copy.deepcopy(head).double(), "never", x.double())
    found = results(head, "always", x)
    assert spreads == [1]
    assert found[0].is_contiguous()
    assert_close(head, found, expected, 2e-6, inputs=1)


def test_a_head_under_autocast_returns_what_was_rounded():
    head, x = PatchTransposed3d(6, 2, 4), torch.randn(2, 6, 3, 4, 5)
    exact = results(head, "never", x)
    with torch.autocast("cpu", torch.float16):
        found = results(head, "always", x)
    assert found[0].dtype == torch.float16
    assert all(one.dtype == torch.float32 for one in found[1:])
    assert_close(head, found, exact, 3e-3, inputs=1)


@pytest.mark.parametrize("head", [PatchTransposed3d(4, 2, 3), PatchTransposed3d(4, 2, 4, channels_last=True)])
def test_other_sides_and_channels_last_need_no_kernel(head, spreads):
    x = torch.randn(1, 4, 2, 3, 2)
    found, expected = results(head, "always", x), results(head, "never", x)
    assert not spreads
    assert_close(head, found, expected, 1e-5, inputs=1)


@pytest.fixture
def activated(monkeypatch):
    """Count of the norms that ran together with the GELU behind them."""
    from fheat.nn import layers

    found = []
    activate = layers._activated
    monkeypatch.setattr(layers, "_activated", lambda norm, x: found.append(1) or activate(norm, x))
    return found


@pytest.mark.parametrize(("samples", "grid"), [(1, (9, 7, 6)), (3, (5, 8, 12))])
def test_a_stem_and_all_its_gradients(samples, grid, activated):
    torch.manual_seed(0)
    stem, x = shaken(Stem(2, 24)), torch.randn(samples, 2, *grid)
    expected = results(copy.deepcopy(stem).double(), "never", x.double())
    found = results(stem, "always", x)
    assert len(activated) == 2
    assert_close(stem, found, expected, 2e-5, inputs=1)


def test_a_stem_whose_gelu_was_changed_calls_it(activated):
    stem, x = Stem(1, 16), torch.randn(1, 1, 9, 7, 6)
    stem[2] = nn.GELU("tanh")
    stem[5].register_forward_hook(lambda *_: None)
    found, expected = results(stem, "always", x), results(stem, "never", x)
    assert not activated
    assert_close(stem, found, expected, 1e-4, inputs=1)
