"""Compiled networks are kept for the next process: same output, no compiling, and never one that does not belong."""

import copy
import random
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import create_model
from fheat.inference import compilers
from fheat.inference.compilers import COMPILERS, Compiler, _kind, compiled_before, compiled_network
from fheat.inference.memory import activation_bytes
from fheat.inference.runtimes import VOXELS_WORTH_COMPILING, CompiledRuntime, TorchRuntime
from fheat.models.ensemble import Ensemble
from fheat.system.cache import cached
from tests.inference.test_runtimes import network

pytest.importorskip("openvino")
SHAPE = (1, 32, 32, 32)


@pytest.fixture(autouse=True)
def _kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path))


@pytest.fixture
def without_compiler(monkeypatch):
    """A compiler that opens what is kept and cannot build."""

    def build(*given):
        raise AssertionError("it was compiled")

    monkeypatch.setitem(COMPILERS, "openvino", Compiler(build, COMPILERS["openvino"].open))


@torch.no_grad()
def test_networks_that_differ_in_an_option_alone_are_not_taken_for_each_other():
    """What an ensemble returns, and how Light-UNETR orders its tokens, is neither printed by torch nor a weight."""
    members = [nn.Conv3d(1, 2, 3, padding=1) for _ in range(2)]
    ensembles = {options: Ensemble(members, regions=options[0]) for options in product((False, True), repeat=2)}
    for (_, every), ensemble in ensembles.items():
        ensemble.every = every
    plain, scrambled = (create_model("light_unetr", patch_size=SHAPE[1:], scramble=way) for way in (False, True))
    scrambled.load_state_dict(plain.state_dict())
    networks = [*ensembles.values(), plain, scrambled]
    assert len({_kind("openvino", one) for one in networks}) == len(networks)
    assert [_kind("openvino", copy.deepcopy(one)) for one in networks] == [_kind("openvino", one) for one in networks]
    assert _kind("openvino", nn.Sequential(nn.GELU())) != _kind("openvino", nn.Sequential(nn.GELU("tanh")))
    compiled_network("openvino", ensembles[False, False], SHAPE, "float32", 1)
    x = torch.randn(1, *SHAPE)
    for ensemble in list(ensembles.values())[1:]:
        found, expected = compiled_network("openvino", ensemble, SHAPE, "float32", 1)(x), ensemble(x)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 1e-4


@pytest.mark.slow
@torch.no_grad()
def test_the_second_time_nothing_is_compiled(monkeypatch, request):
    model, x = network(), torch.randn(3, *SHAPE)
    plan = SHAPE, "float32", 2
    assert not compiled_before("openvino", model, *plan)
    first = compiled_network("openvino", model, SHAPE, "float32", 2)(x).clone()
    assert compiled_before("openvino", model, *plan)
    (entry,) = cached()
    request.getfixturevalue("without_compiler")
    second = compiled_network("openvino", model, SHAPE, "float32", 2)(x)
    assert torch.equal(first, second)
    assert (second - model(x)).abs().max() < 1e-4 * second.abs().max()
    for other, plan in [
        (model, ((1, 32, 32, 64), "float32", 2)),
        (model, (SHAPE, "bfloat16", 2)),
        (model, (SHAPE, "float32", 1)),
        (network(seed=1), (SHAPE, "float32", 2)),
        (network(open_gates=()), (SHAPE, "float32", 2)),
    ]:
        assert not compiled_before("openvino", other, *plan)
        with pytest.raises(AssertionError, match="it was compiled"):
            compiled_network("openvino", other, *plan)
    with monkeypatch.context() as patch:
        patch.setattr("fheat.inference.compilers._source_sha256", lambda: "of another version")
        with pytest.raises(AssertionError, match="it was compiled"):
            compiled_network("openvino", model, SHAPE, "float32", 2)
    whole, chance = entry.file.read_bytes(), random.Random(0)
    for _ in range(40):  # OpenVINO itself opens most of these without a word
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        entry.file.write_bytes(damaged)
        with pytest.raises(AssertionError, match="it was compiled"):
            compiled_network("openvino", model, SHAPE, "float32", 2)


def test_code_that_is_not_known_is_not_kept(monkeypatch):
    """The class of a user may compute something else tomorrow; so may a hook, or a `forward` of one module."""

    class Own(nn.Module):
        def forward(self, x):
            return 2 * x

    hooked = nn.Conv3d(1, 1, 1)
    hooked.register_forward_hook(lambda module, given, output: 3 * output)
    changed = nn.Conv3d(1, 1, 1)
    changed.forward = lambda x: 3 * x
    for model in (Own(), nn.Sequential(nn.Conv3d(1, 1, 1), Own()), hooked, changed):
        run = Compiler(lambda *given: b"kept", lambda content, plan, model=model: model)
        monkeypatch.setitem(COMPILERS, "openvino", run)
        compiled_network("openvino", model, SHAPE, "float32", 1)
    assert cached() == []


def test_a_network_on_disk_is_opened_for_a_single_window(monkeypatch):
    """Compiling has to pay, opening always does; what is on disk for windows of another shape does not count."""
    model, few, larger = nn.Conv3d(1, 2, 1), 32**3, (1, 64, 64, 64)
    monkeypatch.setitem(COMPILERS, "openvino", Compiler(lambda *given: b"kept", lambda content, plan: model))
    before = CompiledRuntime(model, "openvino", automatic=True)
    before.expect(10_000_000, SHAPE)
    assert before.name == "torch"
    before.expect(VOXELS_WORTH_COMPILING, SHAPE)
    before.prepare(SHAPE)
    before.expect(few, SHAPE)
    assert before.name == "openvino"
    after = CompiledRuntime(model, "openvino", automatic=True)
    after.expect(few, SHAPE)
    assert after.name == "openvino"
    after.expect(few, larger)
    assert after.name == "torch"
    assert torch.equal(after(torch.zeros(1, *larger)), model(torch.zeros(1, *larger)))
    assert not after._compiled


def test_what_differs_from_the_network_is_not_kept(monkeypatch):
    model = nn.Conv3d(1, 2, 1)
    run = Compiler(lambda *given: b"kept", lambda content, plan: lambda x: model(x) + 1)
    monkeypatch.setitem(COMPILERS, "openvino", run)
    with pytest.raises(RuntimeError, match="off by"):
        compiled_network("openvino", model, SHAPE, "float32", 1)
    assert cached() == []


@torch.no_grad()
def test_forms_are_tried_until_one_computes_what_the_network_does(monkeypatch):
    model, built = nn.Conv3d(1, 2, 1), []

    def build(form, example, plan):
        built.append(form)
        return str(len(built) - 1).encode()

    def fails(network):
        raise KeyError("an option that is not known")

    def differs(network):
        return nn.Conv3d(1, 2, 1)

    def other(network):
        return copy.deepcopy(network)

    def unknown(network):
        return None

    forms = (unknown, fails, differs, other)
    for tried, reason in ((forms, None), (forms[:3], "off by"), (forms[:2], "not known"), (forms[:1], "no form")):
        compiler = Compiler(build, lambda content, plan: built[int(content)], tried)
        monkeypatch.setitem(COMPILERS, "openvino", compiler)
        if reason is None:
            assert compiled_network("openvino", model, SHAPE, "float32", 1) is built[-1]
            assert len(built) == 2
            assert len(cached()) == 1
            cached()[0].file.unlink()
        else:
            with pytest.raises((RuntimeError, KeyError), match=reason):
                compiled_network("openvino", model, SHAPE, "float32", 1)
            assert cached() == []


class WithMargin(nn.Module):
    """Two instance norms of sixteen channels, behind convolutions of a window with a margin of zeros."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv3d(1, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)
        self.norm, self.head = nn.InstanceNorm3d(16), nn.Conv3d(16, 2, 1)

    def forward(self, x):
        x = F.leaky_relu(self.norm(self.first(F.pad(x, [8] * 6))))
        return self.head(F.leaky_relu(self.norm(self.second(x))))[..., 8:-8, 8:-8, 8:-8]


@pytest.mark.slow
@torch.no_grad()
def test_instance_norms_of_a_million_voxels_are_written_anew(monkeypatch):
    torch.manual_seed(0)
    model, shape, tried = WithMargin(), (1, 112, 112, 80), []
    usual = COMPILERS["openvino"]
    forms = tuple(lambda network, form=form: tried.append(form.__name__) or form(network) for form in usual.forms)
    for form, named in zip(forms, usual.forms, strict=True):
        form.__name__ = named.__name__
    monkeypatch.setitem(COMPILERS, "openvino", Compiler(usual.build, usual.open, forms))
    monkeypatch.setitem(compilers.LARGEST_ERROR, "float32", 4e-4)  # of a deep network errors add up to more than 1e-3
    run, x = compiled_network("openvino", model, shape, "float32", 1), torch.randn(1, *shape)
    expected = model(x)
    assert tried == ["channels_last", "compilable", "with_precise_norms"]
    assert (run(x) - expected).abs().max() < 4e-4 * expected.abs().max()


class Asks(nn.Module):
    """Calls its network in another way than by its forward pass."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net.forward_features(x).logits


def without_bias():
    model = network()
    model.up1[0].bias = None
    return model


@pytest.mark.slow
@pytest.mark.parametrize("build", [Asks, without_bias])
@torch.no_grad()
def test_networks_that_are_no_fheat_seg_as_built_are_compiled(build):
    model, x = build().eval(), torch.randn(1, *SHAPE)
    found = compiled_network("openvino", model, SHAPE, "float32", 1)(x)
    assert (found - model(x)).abs().max() < 1e-4 * found.abs().max()


@pytest.mark.slow
@torch.no_grad()
def test_windows_one_by_one_come_in_order_and_a_round_may_be_left():
    model, x = network(), torch.randn(7, 1, *SHAPE)
    run = compiled_network("openvino", model, SHAPE, "float32", 2)
    every = run(x[:, 0])
    assert all(torch.equal(found, one[None]) for found, one in zip(run.each(x), every, strict=True))
    left = run.each(iter(x))
    assert torch.equal(next(left), every[:1])
    left.close()  # while others run
    assert torch.equal(run(x[3]), every[3:4])
    suspended = []
    for _ in range(10):  # as where the traceback of an exception keeps a round alive
        suspended.append(run.each(iter(x)))
        next(suspended[-1])
        assert all(torch.equal(found, one[None]) for found, one in zip(run.each(x), every, strict=True))
    assert list(run.each([])) == []


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 4])
def test_a_rehearsal_holds_what_a_call_holds(batch):
    """For OpenVINO it computes nothing but first windows; for torch it is a call."""
    model = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 2, 1)).eval()
    shape, device = (batch, 1, 16, 12, 8), torch.device("cpu")
    compiled = CompiledRuntime(model, "openvino", batch=batch)
    compiled(torch.zeros(shape))
    for runtime in (compiled, TorchRuntime(model)):
        rehearsed, called = (activation_bytes(way, shape, device) for way in (runtime.rehearse, runtime))
        assert rehearsed[0] == called[0]
        assert called[1] <= rehearsed[1] <= 1.5 * called[1]
    x = torch.randn(shape)
    assert torch.equal(TorchRuntime(model).rehearse(x), model(x))
    assert compiled.rehearse(x).shape == model(x).shape
