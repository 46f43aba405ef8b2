"""The pairing of Proposition 1 against autograd through a gate written anew, and against differences of the loss."""

import copy
import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import FractionalHeat, create_model, probe, retire
from fheat.methods.base import Task
from fheat.methods.supervised import Supervised, SupervisedSettings
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from tests.methods.predictions import batch_of

GRIDS = {1: (17,), 2: (9, 6), 3: (5, 6, 4)}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Several(nn.Module):
    """Every way a gate can sit in a network: before an in-place layer, called twice, beside its own input, unused."""

    def __init__(self, dims, *, noisy=False):
        super().__init__()
        self.inlet = CONV[dims](2, 6, 3, padding=1)
        self.plain = FractionalHeat(dims=dims, initial_strength=0.4)
        self.act = nn.SiLU(inplace=True)
        self.norm = BATCH_NORM[dims](6) if noisy else nn.GroupNorm(2, 6)
        self.dropout = nn.Dropout(0.4 if noisy else 0.0)
        self.shared = FractionalHeat(dims=dims, alpha="softplus", initial_strength=0.2)
        self.middle = CONV[dims](6, 6, 3, padding=1)
        self.beside = FractionalHeat(dims=dims)
        self.frozen = FractionalHeat(dims=dims, alpha=0.8, strength=0.7)
        self.never_zero = FractionalHeat(dims=dims, strength="softplus", initial_strength=0.1)
        self.unused = FractionalHeat(dims=dims)
        self.outlet = CONV[dims](6, 1, 1)
        self.beside.set_strength(0.0)

    def forward(self, x):
        x = self.act(self.plain(self.inlet(x)))
        x = self.dropout(self.norm(self.shared(x)))
        x = self.shared(F.gelu(self.middle(x)))
        x = x + x * self.beside(x)
        return self.outlet(self.never_zero(self.frozen(x).tanh()) + x)


class Tau(nn.Module):
    """exp(-tau r^alpha) by explicit cosine matrices, with tau to differentiate by."""

    def __init__(self, grid, alpha, tau):
        super().__init__()
        self.tau = torch.tensor(tau, dtype=torch.float64, requires_grad=True)
        self.cosines, squares = [], torch.zeros(grid, dtype=torch.float64)
        for axis, n in enumerate(grid):
            rows = [
                [math.sqrt((1 if k == 0 else 2) / n) * math.cos(math.pi * k * (2 * x + 1) / (2 * n)) for x in range(n)]
                for k in range(n)
            ]
            self.cosines.append(torch.tensor(rows, dtype=torch.float64))
            shape = [1] * len(grid)
            shape[axis] = n
            squares = squares + (math.pi * torch.arange(n, dtype=torch.float64) / n).square().view(shape)
        self.rate = squares.sqrt() ** alpha

    def forward(self, x):
        for axis, c in enumerate(self.cosines, start=-len(self.cosines)):
            x = torch.tensordot(x, c, dims=([axis], [1])).movedim(-1, axis)
        x = torch.exp(-self.tau * self.rate) * x
        for axis, c in enumerate(self.cosines, start=-len(self.cosines)):
            x = torch.tensordot(x, c, dims=([axis], [0])).movedim(-1, axis)
        return x


def loss_fn(network, batch):
    x, target = batch
    return (network(x) - target).square().mean() + 0.1 * network(x.flip(-1)).abs().mean()


def several(dims, seed, **options):
    torch.manual_seed(seed)
    model = Several(dims, **options).double()
    x = torch.randn(2, 2, *GRIDS[dims], dtype=torch.float64)
    return model, (x, torch.randn(2, 1, *GRIDS[dims], dtype=torch.float64))


def with_taus(model, grid, closed):
    """Return the network with the gate written anew at every site, at tau = 0 where it is closed."""
    other = copy.deepcopy(model)
    for site, gate in gates_of(model).items():
        tau = 0.0 if site in closed else gate.tau.item()
        setattr(other, site, Tau(grid, gate.alpha.item(), tau))
    return other


def slopes(model, batch, closed, loss=loss_fn):
    """Return -dL/dtau of every site by autograd; 0 where the loss does not depend on it."""
    other = with_taus(model, batch[0].shape[2:], closed)
    taus = {site: getattr(other, site).tau for site in gates_of(model)}
    found = torch.autograd.grad(loss(other, batch), list(taus.values()), allow_unused=True)
    return {site: 0.0 if g is None else -g.item() for site, g in zip(taus, found, strict=True)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("others", ["closed", "trained"])
def test_pairing_and_slope_are_the_derivatives(dims, seed, others):
    model, batch = several(dims, seed)
    found = probe(model, loss_fn, batch, others=others)
    assert [row.site for row in found] == ["plain", "shared", "beside", "frozen", "never_zero", "unused"]
    now = slopes(model, batch, {"beside"})
    for row in found:
        at_zero = slopes(model, batch, set(gates_of(model)) if others == "closed" else {"beside", row.site})[row.site]
        assert row.pairing == pytest.approx(at_zero, rel=1e-9, abs=1e-14)
        assert row.slope == pytest.approx(now[row.site], rel=1e-9, abs=1e-14)
        assert row.predicted == ("open" if at_zero > 0 else "closed")
        as_predicted = row.predicted == ("closed" if row.site == "beside" else "open")
        assert row.agrees == (None if row.site == "unused" else as_predicted)
        assert row.error is None
        assert row.slope_error is None
        assert row.alpha == gates_of(model)[row.site].alpha.item()
    assert found["unused"].pairing == found["unused"].slope == 0.0
    assert found["unused"].attenuation is None
    assert found.agreement == sum(row.agrees is True for row in found) / 5


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pairing_is_how_the_loss_falls_when_a_gate_opens_a_little(dims):
    model, batch = several(dims, 7)
    found, step = probe(model, loss_fn, batch), 1e-6
    for site in ("plain", "shared", "beside", "frozen", "never_zero"):
        other = with_taus(model, GRIDS[dims], gates_of(model))
        with torch.no_grad():
            before = loss_fn(other, batch)
            getattr(other, site).tau += step
            fall = (before - loss_fn(other, batch)) / step
        assert found[site].pairing == pytest.approx(fall.item(), rel=1e-4)


def test_retired_gates_are_probed_with_the_order_they_had():
    model, batch = several(2, 1)
    whole, small = probe(model, loss_fn, batch), probe(retire(model), loss_fn, batch)
    assert (whole["beside"].state, small["beside"].state) == ("closed", "retired")
    for before, after in zip(whole, small, strict=True):
        assert (before.pairing, before.slope, before.alpha) == (after.pairing, after.slope, after.alpha)


def test_attenuation_is_the_ratio_of_the_gradients_on_either_side():
    model, batch = several(3, 2)
    found = probe(model, loss_fn, batch)
    assert found["beside"].attenuation == 1.0
    for site in ("plain", "frozen", "never_zero"):
        gradients = []
        gate = gates_of(model)[site]

        def keep(module, grad_input, grad_output, into=gradients):
            into.append([g - g.mean(dim=(2, 3, 4), keepdim=True) for g in (grad_input[0], grad_output[0])])

        other = copy.deepcopy(model)
        other.act.inplace = False  # hooks that see both sides do not bear it
        gates_of(other)[site].register_full_backward_hook(keep)
        loss_fn(other, batch).backward()
        assert len(gradients) == 2
        before, after = (torch.stack(side).norm() for side in zip(*gradients, strict=True))
        assert found[site].attenuation == pytest.approx((before / after).item(), rel=1e-12)
        assert 0 < found[site].attenuation < 1
        assert gate.delta is None or gate.delta.grad is None


def test_closed_gates_let_the_whole_gradient_through_and_need_one_pass():
    model, batch = several(2, 3)
    model.never_zero = FractionalHeat(dims=2).double()
    for gate in gates_of(model).values():
        gate.set_strength(0.0)
    passes = []
    found = probe(model, loss_fn, batch, batch, progress=lambda *done: passes.append(done))
    assert passes == [(1, 2), (2, 2)]
    for row in found:
        assert row.attenuation == 1.0
        assert (row.pairing, row.error) == (row.slope, row.slope_error)
    model.plain.set_strength(0.3)
    for others in ("closed", "trained"):
        passes.clear()
        probe(model, loss_fn, batch, others=others, progress=lambda *done: passes.append(done))
        assert passes == [(1, 2), (2, 2)]
    model.shared.set_strength(0.3)
    passes.clear()
    probe(model, loss_fn, batch, others="trained", progress=lambda *done: passes.append(done))
    assert passes == [(1, 3), (2, 3), (3, 3)]


def state(model):
    return [tensor.clone() for tensor in model.state_dict().values()]


@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_the_caller_changes(training):
    model, batch = several(2, 4, noisy=True)
    model.train(training)
    model.middle.eval().requires_grad_(False)
    loss_fn(model, batch).backward()
    batch[0].requires_grad_()
    before, grads = state(model), [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags, generator = [module.training for module in model.modules()], torch.get_rng_state()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    with torch.no_grad():
        probe(model, loss_fn, batch, batch, others="trained")
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(map(torch.equal, state(model), before))
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is None if grad is None else torch.equal(parameter.grad, grad)
    assert [module.training for module in model.modules()] == flags
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert batch[0].grad is None
    assert not model.plain.retired
    assert kernels._mode.get() == "auto"


def test_passes_over_a_batch_draw_the_same_numbers_and_batches_their_own():
    model, batch = several(2, 5, noisy=True)
    for gate in gates_of(model).values():
        gate.set_strength(1e-30)  # open, and yet the identity but for 1e-9
    one, same = (probe(model, loss_fn, batch) for _ in range(2))
    assert [row.pairing for row in one] == [row.pairing for row in same]
    for row in one:
        assert row.state == "open"
        assert row.pairing == pytest.approx(row.slope, rel=1e-6, abs=1e-12)
    two = probe(model, loss_fn, batch, batch)
    assert two["plain"].error > 0.01 * abs(two["plain"].pairing)
    still = probe(model.eval(), loss_fn, batch, batch)
    assert still["plain"].error == 0.0


def test_means_and_standard_errors_over_batches():
    model, _ = several(1, 6)
    batches = [several(1, seed)[1] for seed in (10, 11, 12)]
    each = [probe(model, loss_fn, batch) for batch in batches]
    single = torch.tensor([[one[site].pairing for one in each] for site in ("plain", "shared")], dtype=torch.float64)
    found = probe(model, loss_fn, *batches)
    for site, values in zip(("plain", "shared"), single, strict=True):
        assert found[site].pairing == pytest.approx(values.mean().item(), rel=1e-12)
        assert found[site].error == pytest.approx(values.std().item() / math.sqrt(3), rel=1e-12)


def test_calls_without_gradients_do_not_count():
    model, batch = several(2, 8)

    def looks_first(network, batch):
        with torch.no_grad():
            network(batch[0])
        return loss_fn(network, batch)

    assert probe(model, looks_first, batch).to_json() == probe(model, loss_fn, batch).to_json()


def test_a_network_without_anything_to_learn():
    gate = FractionalHeat(dims=1, alpha=0.5, strength=0.0)
    x = torch.randn(3, 8, dtype=torch.float64)
    row = probe(gate, lambda network, x: network(x=x).square().sum(), x)["gate"]
    spectrum = slopes(nn.ModuleDict({"gate": gate}), (x[None],), {"gate"}, lambda m, b: m.gate(b[0]).square().sum())
    assert row.pairing == pytest.approx(spectrum["gate"], rel=1e-12)
    assert row.pairing > 0  # to shrink lowers the sum of squares
    assert not row.agrees


def test_under_autocast():
    model, batch = several(2, 9)
    model, batch = model.float(), tuple(value.float() for value in batch)
    exact = probe(model, loss_fn, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = probe(model, loss_fn, batch)
    assert exact.to_json() != rough.to_json()
    for site in ("plain", "shared", "frozen"):
        assert rough[site].pairing == pytest.approx(exact[site].pairing, rel=0.1, abs=2e-3)
        assert rough[site].attenuation == pytest.approx(exact[site].attenuation, rel=0.05)


def test_the_small_network_against_the_gradient_of_its_own_gates():
    """dL/d(delta) = dL/d(tau) alpha D^(alpha - 1) where a gate is open."""
    model = create_model("fheat_seg", patch_size=(64, 64, 64)).double()
    gates = gates_of(model)
    for site in ("enc2", "dec3"):
        gates[site].delta.data.fill_(-0.1)
    images, labels = torch.randn(1, 1, 64, 64, 64, dtype=torch.float64), torch.randint(2, (1, 64, 64, 64))
    batch = batch_of(images, labels, images[:0])
    method = Supervised(SupervisedSettings(), Task(images.shape[2:], 1))

    def loss(network, batch):
        assert network.forward_features(batch.images).attention.shape == (1, 1, 16, 16, 16)
        return method.losses(network, batch)["total"]

    torch.manual_seed(3)
    found = probe(model, loss, batch)
    assert [row.site for row in found] == list(gates)
    loss(model, batch).backward()
    for site, gate in gates.items():
        row = found[site]
        if row.state == "closed":
            assert row.attenuation == 1.0
            continue
        expected = -row.slope * row.alpha * row.D ** (row.alpha - 1)
        assert gate.delta.grad.item() == pytest.approx(expected, rel=1e-6)
        assert row.attenuation < 1
        assert row.pairing != 0.0


def test_table_and_plain_data():
    model, batch = several(1, 0)
    found = probe(model, loss_fn, batch)
    lines = str(found).split("\n")
    assert lines[0].split()[:6] == ["site", "alpha", "D", "state", "pairing", "error"]
    assert len(lines) == len(found) + 1 == 7
    assert lines[1].split()[0] == "plain"
    assert lines[3].split()[8] == "1.0000"
    assert found[2] is found["beside"]
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data[2]["attenuation"] == 1.0
    assert data[5] | {"alpha": 0, "D": 0} == {
        "site": "unused", "alpha": 0, "D": 0, "state": "open", "pairing": 0.0, "error": None, "slope": 0.0,
        "slope_error": None, "attenuation": None, "predicted": "closed", "agrees": None,
    }  # fmt: skip
    with pytest.raises(KeyError, match="no gate at 'else'"):
        found["else"]


def infinite_gradient(network, batch):
    return network(batch[0]).square().sum().mul(0.0).sqrt()


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda network, batch: network(batch[0]), r"the loss has shape \(2, 1, 17\): loss_fn must return one number"),
        (lambda network, batch: 3.0, "the loss is a float: loss_fn must return one number"),
        (lambda network, batch: network(batch[0]).sum() * math.nan, "the loss is nan: probe a network and a batch"),
        (lambda network, batch: several(1, 0)[0](batch[0]).sum(), "the loss reaches no gate: loss_fn must use the"),
        (lambda network, batch: torch.tensor(1.0), "the loss reaches no gate"),
        (infinite_gradient, "the gradient at plain is not finite: probe in float32"),
    ],
)
def test_losses_that_cannot_be_used(loss, says):
    model, batch = several(1, 0)
    with pytest.raises(ValueError, match=says) as caught:
        probe(model, loss, batch)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_probed():
    model, batch = several(1, 0)
    with pytest.raises(ValueError, match=r"Conv1d has no gates to probe: put fheat\.FractionalHeat into it"):
        probe(nn.Conv1d(2, 1, 1), loss_fn, batch)
    with pytest.raises(ValueError, match="there is no batch to probe with"):
        probe(model, loss_fn)
    with pytest.raises(ValueError, match="others='open' is unknown: use 'closed' or 'trained'"):
        probe(model, loss_fn, batch, others="open")
    model.plain.delta.data.fill_(math.nan)
    with pytest.raises(ValueError, match="delta of this FractionalHeat is NaN"):
        probe(model, loss_fn, batch)
