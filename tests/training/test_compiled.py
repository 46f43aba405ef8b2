"""`optimiser.compile`: the bodies of networks run through `torch.compile`, and training goes on as without."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from fheat import load
from fheat.bench.plan import build
from fheat.bench.step import build_step
from fheat.bench.timing import Timer
from fheat.networks.padded import PaddedNetwork, compile_bodies, is_compiled
from fheat.system.errors import BadInput
from tests.training.helpers import Run

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch.compile looks at it, and hides the warning
PATCH = (32, 32, 32)
CHANNELS = (4, 4, 8, 8, 8)


@pytest.fixture
def settings(config, larger_scans):
    """Settings of a narrow network, compiled or not."""

    def make(compiled, **others):
        network = {"network": "unet", "network.channels": CHANNELS, "network.units": 1, "patch_size": PATCH}
        return config(data=str(larger_scans), iterations=3, **network, **{"optimiser.compile": compiled}, **others)

    return make


@pytest.fixture
def traced_only(monkeypatch):
    """`torch.compile` traces and runs what it traced, without a compiler; this is the list of what it was given."""
    given = []
    compiled = nn.Module.compile

    def trace(module, **options):
        given.append((module, options))
        compiled(module, backend="eager", **options)

    monkeypatch.setattr(nn.Module, "compile", trace)
    yield given
    torch._dynamo.reset()


def test_all_networks_of_a_method_are_compiled_and_nothing_that_is_saved(settings, tmp_path, traced_only):
    run = Run(settings(True, method="cps"), tmp_path / "run")
    model, second = run.step.model, run.step.method.second
    assert {module for module, _ in traced_only} == {model.body, second.body}
    assert all(options == {"dynamic": False} for _, options in traced_only)
    assert is_compiled(model)
    assert is_compiled(second)
    assert not is_compiled(deepcopy(second))
    assert not is_compiled(load(run.train()))


def test_the_run_is_the_same(settings, tmp_path, traced_only):
    """What was traced are the operations of the network: all losses and weights are the same bits."""
    histories, weights = [], []
    for wanted in (False, True):
        run = Run(settings(wanted), tmp_path / str(wanted))
        weights.append(load(run.train()).state_dict())
        histories.append(run.step.history)
    assert torch.equal(*histories)
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


class Narrow(PaddedNetwork):
    """A network so small that a compiler takes seconds."""

    multiple = 4

    def __init__(self):
        body = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.GELU())
        super().__init__(1, 2, PATCH, body, nn.Conv3d(4, 2, 1))


@pytest.mark.slow
def test_compiled_gradients_are_those_of_the_network():
    torch.manual_seed(0)
    plain, x = Narrow().train(), torch.randn(2, 1, 33, 34, 35)
    compiled, gradients = deepcopy(plain), []
    assert compile_bodies(compiled) == 1
    for network in (plain, compiled):
        logits, attention, features = network.forward_features(x)
        (logits.square().mean() + features.sin().mean()).backward()
        gradients.append([logits, attention, *(parameter.grad for parameter in network.parameters())])
    for expected, found in zip(*gradients, strict=True):
        assert (expected - found).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1e-2)


def test_benchmarks_compile_by_name(traced_only):
    networks = build(["unet", "unet/compiled"], PATCH, "cpu").built
    assert [is_compiled(network) for network in networks.values()] == [False, True]
    step = build_step(Timer("cpu", 1), networks["unet/compiled"], "mean_teacher", PATCH, 1, 4)
    teacher = step.method.teacher.network
    assert is_compiled(teacher)
    with pytest.raises(ValueError, match=r"only networks of a body and a head, as segresnet, have /compiled"):
        build(["fheat_seg/compiled"], PATCH, "cpu")


def test_a_network_with_kernels_of_its_own_is_refused(config, larger_scans, tmp_path):
    wanted = config(data=str(larger_scans), network="fheat_seg", patch_size=PATCH, **{"optimiser.compile": True})
    with pytest.raises(BadInput, match=r"optimiser\.compile: fheat_seg is not made of a body and a head.*segresnet"):
        Run(wanted, tmp_path / "run")
