"""Compiled runs: what `torch.compile` built is compared with the network as written, and training goes on as without.

No test needs a C++ compiler, except one that is slow: torch.compile is given a backend that runs what it traced.
"""

import re
import time
from copy import deepcopy

import pytest
import torch
from torch import nn

from fheat import load, register_model
from fheat.bench.plan import Plan, build
from fheat.bench.run import run_plan
from fheat.bench.step import build_step
from fheat.bench.timing import Timer
from fheat.cli.main import main
from fheat.networks import registry
from fheat.networks.padded import PaddedNetwork, as_written, bodies_of, compile_bodies, is_compiled
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.training import compile_check, compiling
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.compile_check import compile_run
from fheat.training.compiling import Compiling
from fheat.training.estimate import Gain, Speed, speeds
from fheat.training.plan import plan_run
from fheat.training.prepare import prepare
from fheat.training.trainer import Stopped
from tests.bench.test_bench_run import quiet
from tests.training.helpers import Run, StopAfter

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch.compile looks at it, and hides the warning
PATCH = (32, 32, 32)


class Body(nn.Module):
    """A convolution, a batch norm, dropout and GELU: random numbers and buffers, as few as there can be."""

    def __init__(self, dropout):
        super().__init__()
        self.conv, self.norm, self.dropout = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Dropout3d(dropout)

    def forward(self, x):
        return nn.functional.gelu(self.dropout(self.norm(self.conv(x))))


class Narrow(PaddedNetwork):
    """A network so small that a compiler takes seconds."""

    multiple = 4

    def __init__(self, *, in_channels=1, out_channels=2, patch_size=PATCH, dropout=0.0):
        super().__init__(in_channels, out_channels, patch_size, Body(dropout), nn.Conv3d(4, out_channels, 1))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setattr(registry, "_NETWORKS", dict(registry._NETWORKS), raising=True)
    register_model("narrow", Narrow)


@pytest.fixture
def settings(config, larger_scans):
    """Settings of a narrow network, compiled or not."""

    def make(compiled, **others):
        fixed = {"data": str(larger_scans), "network": "narrow", "patch_size": PATCH, "iterations": 4}
        return config(**fixed, **{"optimiser.compile": compiled}, **others)

    return make


@pytest.fixture
def backend(monkeypatch):
    """Let `torch.compile` use a backend, by default one that runs what was traced; return the list of what it got."""
    given = []
    compiled = nn.Module.compile

    def use(run=lambda forward, inputs: forward(*inputs), delay=0.0):
        def built(graph, inputs):
            time.sleep(delay)
            given.append(inputs)
            return lambda *inputs: run(graph.forward, inputs)

        monkeypatch.setattr(nn.Module, "compile", lambda module, **how: compiled(module, backend=built, **how))
        return given

    torch._dynamo.reset()
    yield use
    torch._dynamo.reset()


@pytest.fixture
def measured(monkeypatch):
    """A table in which compiling the network of these tests pays; it says so, or does not say anything any more."""

    def measure(known=True):
        gain = {"narrow": Gain(eager=1e6, compiled=1.0, seconds=1e-6)} if known else {}
        tables = {device: Speed(**{**dict(one), "compiled": {"fp32": gain}}) for device, one in speeds().items()}
        monkeypatch.setattr(compiling, "speeds", lambda: tables)

    return measure


def outcome(run):
    """Return all losses of a run, and the weights and buffers that it saves."""
    weights = load(run.train()).state_dict()
    return {"history": run.step.history, **weights}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


@pytest.mark.parametrize("method", ["supervised", "mean_teacher", "cps", "cse"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_run_is_the_same_bit_for_bit(settings, tmp_path, backend, method, dropout):
    """What was traced are the operations of the network, so the check has used up nothing and changed nothing.

    Nothing is compiled after the check either: its forms are those of the iterations, and validation has none.
    """
    options = {"method": method, "network.dropout": dropout}
    plain = outcome(Run(settings("no", **options), tmp_path / "plain"))
    given = backend()
    run = Run(settings("yes", **options), tmp_path / "run")
    forms = len(given)
    assert forms > 0
    assert is_compiled(run.step.model)
    assert_same(outcome(run), plain)
    assert len(given) == forms
    assert plain["body.norm.num_batches_tracked"] > 0


def test_the_check_leaves_every_state_as_it_was(settings, backend):
    given = backend()
    prepared = prepare(settings("yes", method="cse", **{"network.dropout": 0.5}), device="cpu")
    before, modes = prepared.step.state(), [module.training for module in prepared.step.model.modules()]
    after = compile_run(prepared).step
    assert given
    assert_same(after.state(), before)
    assert [module.training for module in after.model.modules()] == modes
    assert all(parameter.grad is None for parameter in after.model.parameters())


def test_all_networks_of_a_method_are_compiled_and_nothing_that_is_saved(settings, tmp_path, backend):
    backend()
    run = Run(settings("yes", method="cps", **{"optimiser.average": 0.9}), tmp_path / "run")
    model, second = run.step.model, run.step.method.second
    assert is_compiled(model)
    assert is_compiled(second)
    assert not is_compiled(run.step.result)
    assert not is_compiled(deepcopy(second))
    assert not is_compiled(load(run.train()))


def scaled(factor):
    return lambda forward, inputs: [y * factor for y in forward(*inputs)]


def wrong_gradient(forward, inputs):
    return [y + (y - y.detach()) for y in forward(*inputs)]


def wrong_without_gradients(forward, inputs):
    return [y if y.requires_grad else 1 - y for y in forward(*inputs)]


def broken(forward, inputs):
    raise OSError("no C++ compiler\nand many lines more")


def other_numbers(forward, inputs):
    torch.rand(3)
    return forward(*inputs)


WRONG = {
    "features": (scaled(1.005), "its features are off by 0.005 of the largest value"),
    "gradient": (wrong_gradient, "its gradient is off by 1 of its norm"),
    "teacher": (wrong_without_gradients, r"its features are off by \d+ of the largest value"),
    "nothing": (scaled(torch.nan), "its features are off by nan of the largest value"),
    "error": (broken, r"OSError: no C\+\+ compiler"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_not_used(settings, tmp_path, backend, measured, name):
    """auto goes on without it, bit for bit as if nobody had compiled; yes says in one line what to do."""
    run, reason = WRONG[name]
    plain = outcome(Run(settings("no", method="mean_teacher"), tmp_path / "plain"))
    measured()
    given = backend(run)
    auto = Run(settings("auto", method="mean_teacher"), tmp_path / "auto")
    assert given
    prepared = auto.trainer.prepared
    assert not prepared.compiling.compiled
    [remark] = prepared.notes(goes_on=True)
    assert "\n" not in remark
    assert re.fullmatch(f"narrow as compiled by torch.compile cannot be used: {reason}; it runs without", remark)
    assert not any(map(is_compiled, (auto.step.model, auto.step.method.teacher.network)))
    assert_same(outcome(auto), plain)
    torch._dynamo.reset()
    with pytest.raises(BadInput, match=rf"is yes, and narrow .* {reason}; set it to no, or leave it at auto") as error:
        Run(settings("yes", method="mean_teacher"), tmp_path / "yes")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "yes").exists()


def test_rounding_and_other_random_numbers_are_accepted(settings, backend, tmp_path):
    for index, run in enumerate((scaled(1.0005), other_numbers)):
        torch._dynamo.reset()
        backend(run)
        dropout = {"network.dropout": 0.5} if run is other_numbers else {}
        compiled = Run(settings("yes", **dropout), tmp_path / str(index))
        assert compiled.trainer.prepared.notes() == []


@pytest.mark.parametrize(
    ("found", "exact", "said"),
    [
        ((0.09, 0.29), (0.0, 0.0), None),  # less than the precision of the run explains
        ((0.0, 0.5), (0.0, 0.3), None),  # less than twice what rounding does to this body
        ((0.0, 0.5), (0.0, 0.2), "its gradient is off by 0.5 of its norm"),
        ((0.5, 0.0), (0.3, 0.0), None),
        ((0.5, 0.0), (0.2, 0.9), "its features are off by 0.5 of the largest value"),
        ((0.0, torch.nan), (0.0, 0.3), "its gradient is off by nan of its norm"),
    ],
)
def test_rounding_may_be_as_large_as_the_gradient(monkeypatch, found, exact, said):
    """Norms over a few voxels can leave no digit of a gradient certain. Passes are given by how far they are off."""
    told = iter([(0.0, 0.0), found, exact])

    def run(*_):
        features, gradient = next(told)
        return compile_check.Pass(torch.tensor([1.0, features]), torch.tensor([1.0, gradient]))

    monkeypatch.setattr(compile_check, "_run", run)
    comparison = object.__new__(compile_check.Comparison)
    comparison._most = 0.1
    assert comparison._difference(nn.Identity(), nn.Identity(), torch.zeros(1), moved=False) == said


def test_if_it_is_wrong_in_one_process_no_process_uses_it(settings, backend, measured):
    class Two(processes.Group):
        def tell(self, thing):
            return [thing, "OSError: no compiler there"]

    backend()
    measured()
    with processes.acting_as(Two()):
        prepared = compile_run(prepare(settings("auto"), device="cpu"))
    assert prepared.compiling == Compiling(False, "what was compiled cannot be used: OSError: no compiler there")
    assert not is_compiled(prepared.step.model)


def test_a_run_goes_on_as_it_was_begun(settings, tmp_path, backend, measured):
    """Whatever is measured by then, and with a longer run too."""
    backend()
    for begun in (True, False):
        measured(begun)
        folder = tmp_path / str(begun)
        with pytest.raises(Stopped):
            Run(settings("auto"), folder, observers=[StopAfter(2)]).train()
        fact = newest_checkpoint(folder / "checkpoints").facts["compiled"]
        assert fact["compiled"] == begun
        measured(not begun)
        again = Run(settings("auto"), folder, resume=True)
        assert again.done == 2
        assert is_compiled(again.step.model) == begun
        again.train()
        assert newest_checkpoint(folder / "checkpoints").facts["compiled"] == fact
        assert load(folder / "final").card.training.get("compiled") == (fact if begun else None)
        measured(begun)
        torch._dynamo.reset()
        whole = Run(settings("auto"), tmp_path / f"{begun}-whole")
        whole.train()
        assert_same(again.step.state(), whole.step.state())


def test_a_run_of_a_version_without_the_choice_goes_on(settings, tmp_path, backend, measured):
    """Its settings say false, and today's say auto where nobody says anything; to insist on it now is another run."""
    backend()
    measured()
    with pytest.raises(Stopped):
        Run(settings("no"), tmp_path / "run", observers=[StopAfter(2)]).train()
    config = tmp_path / "run" / "config.toml"
    *told, _sealed = config.read_text().replace('compile = "no"', "compile = false").splitlines()
    assert "compile = false" in told
    config.write_text("\n".join(told))
    again = Run(settings("auto"), tmp_path / "run", resume=True)
    assert again.done == 2
    assert not is_compiled(again.step.model)
    with pytest.raises(BadInput, match=r"was begun with another optimiser\.compile \(no, not yes\)"):
        Run(settings("yes"), tmp_path / "run", resume=True)


def test_another_run_is_refused_before_anything_is_compiled(settings, tmp_path, backend):
    """Compiling a real network takes a minute or more."""
    given = backend()
    with pytest.raises(Stopped):
        Run(settings("yes"), tmp_path / "run", observers=[StopAfter(2)]).train()
    assert given
    given.clear()
    torch._dynamo.reset()
    with pytest.raises(BadInput, match=r"was begun with another schedule\.seed"):
        Run(settings("yes", seed=5), tmp_path / "run", resume=True)
    assert not given


def test_the_plan_says_whether_and_why_and_compiles_nothing(settings, larger_scans, backend, measured, capsys):
    given = backend()
    measured()
    plan = plan_run(prepare(settings("auto"), device="cpu"))
    expected = {"compiled": True, "reason": "an iteration was measured to be 1000000.00 times as fast"}
    assert plan.to_json()["compiled"] == expected
    assert f"torch.compile  yes: {expected['reason']}" in plan.text()
    measured(False)
    words = ["train", str(larger_scans), "--network", "narrow", "--patch-size", "32", "32", "32", "--labelled", "2"]
    assert main([*words, "--device", "cpu", "--plan-only"]) == 0
    assert "torch.compile  no: nobody has measured what it gains in such a run" in capsys.readouterr().out
    assert given == []


def test_a_network_with_kernels_of_its_own_is_refused(config, larger_scans, tmp_path):
    wanted = config(data=str(larger_scans), network="fheat_seg", patch_size=PATCH, **{"optimiser.compile": "yes"})
    with pytest.raises(BadInput, match=r"optimiser\.compile: fheat_seg is not made of a body and a head.*segresnet"):
        Run(wanted, tmp_path / "run")


def test_bodies_run_as_written_for_a_while(backend):
    given = backend()
    network, x = Narrow(), torch.randn(2, 1, 32, 32, 32)
    assert compile_bodies(network, network) == 1
    with as_written(network):
        assert not is_compiled(network)
        network(x)
        assert given == []
    assert is_compiled(network)
    network(x)
    assert len(given) == 1
    assert bodies_of(network, nn.Sequential(network)) == [network.body]


@pytest.mark.slow
def test_compiled_gradients_are_those_of_the_network():
    torch.manual_seed(0)
    plain, x = Narrow().train(), torch.randn(2, 1, 33, 34, 35)
    compiled, gradients = deepcopy(plain), []
    assert compile_bodies(compiled) == 1
    torch._dynamo.utils.counters.clear()
    for network in (plain, compiled):
        logits, attention, features = network.forward_features(x)
        (logits.square().mean() + features.sin().mean()).backward()
        gradients.append([logits, attention, *(parameter.grad for parameter in network.parameters())])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for expected, found in zip(*gradients, strict=True):
        assert (expected - found).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1e-2)


def test_a_benchmark_records_how_long_compiling_took(backend, monkeypatch):
    """Every form takes 0.1 s here. What one method has compiled is compiled anew for the next."""
    given = backend(delay=0.1)
    names, forms = ("unet", "unet/compiled"), []
    monkeypatch.setattr(Timer, "times", lambda *_, **how: forms.append(len(given)) or dict.fromkeys(names, 1.0))
    plan = Plan(what="step", patch=PATCH, rounds=1, batch=1, models=names, methods=("supervised", "supervised"))
    record = run_plan(plan, "fheat bench", quiet)
    assert forms[0] > 0
    assert forms[1] == 2 * forms[0]
    for row in record["results"]["step"]:
        assert row["compile_seconds"].keys() == {"unet/compiled"}
        assert row["compile_seconds"]["unet/compiled"] >= 0.1 * forms[0]
    assert [note.split(" in ")[0] for note in record["notes"]] == 2 * ["unet/compiled: compiled"]


def test_benchmarks_compile_by_name(backend):
    backend()
    networks = build(["unet", "unet/compiled"], PATCH, "cpu").built
    assert [is_compiled(network) for network in networks.values()] == [False, True]
    step = build_step(Timer("cpu", 1), networks["unet/compiled"], "mean_teacher", PATCH, 1, 4)
    teacher = step.method.teacher.network
    assert is_compiled(teacher)
    with pytest.raises(ValueError, match=r"only networks of a body and a head, as segresnet, have /compiled"):
        build(["fheat_seg/compiled"], PATCH, "cpu")
