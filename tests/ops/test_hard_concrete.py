"""Hard-concrete switches: their distribution, the exact zero at evaluation, the penalty, and what cannot lock."""

import math

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, allocation, load, retire, save
from fheat.networks.registry import create_model
from fheat.ops.gates import gates_of
from fheat.ops.hard_concrete import CLOSED_BELOW, HardConcreteHeat, penalty_of


def gate_at(logit, **options):
    return HardConcreteHeat(initial_logit=logit, initial_strength=0.7, **options).eval()


def heat_like(gate):
    return FractionalHeat(strength=gate.delta.exp().log1p().item())


@pytest.mark.parametrize("logit", [-2.0, 0.0, 1.3, 9.0])
def test_evaluation_mixes_input_and_heat(logit):
    gate, x = gate_at(logit), torch.randn(2, 3, 6, 5, 4)
    z = min(max(1.2 / (1 + math.exp(-logit)) - 0.1, 0), 1)
    assert torch.allclose(gate(x), x + z * (heat_like(gate)(x) - x), atol=1e-6)


def test_the_switch_is_exactly_off_below_a_logit():
    x = torch.randn(2, 3, 6, 5, 4)
    assert pytest.approx(math.log(1 / 11)) == CLOSED_BELOW
    off, on = gate_at(CLOSED_BELOW - 1e-3), gate_at(CLOSED_BELOW + 1e-3)
    assert (off.closed, on.closed) == (True, False)
    assert torch.equal(off(x), x)
    assert not torch.equal(on(x), x)
    assert (off.strength.item(), round(on.strength.item(), 6)) == (0.0, 0.7)


def test_draws_have_the_published_distribution():
    """P(z = 0) = sigmoid(beta log(-LOW / HIGH) - a) and the mean of z, from a slow sample by the formula in float64."""
    torch.manual_seed(0)
    gate = HardConcreteHeat()
    z = gate._switch(torch.full((200_000,), 0.5))
    u = torch.linspace(5e-6, 1 - 5e-6, 100_000, dtype=torch.float64)
    s = 1 / (1 + torch.exp(-(torch.log(u / (1 - u)) + 0.5) / (2 / 3)))
    expected = (1.2 * s - 0.1).clip(0, 1)
    assert float((z == 0).float().mean()) == pytest.approx(float((expected == 0).double().mean()), abs=3e-3)
    assert float((z == 1).float().mean()) == pytest.approx(float((expected == 1).double().mean()), abs=3e-3)
    assert float(z.mean()) == pytest.approx(float(expected.mean()), abs=3e-3)
    assert float((expected > 0).double().mean()) == pytest.approx(gate_at(0.5, weight=1.0).penalty().item(), abs=1e-4)


def test_training_draws_anew_in_every_call_and_can_open_an_off_switch():
    torch.manual_seed(0)
    gate, x = gate_at(CLOSED_BELOW - 0.1).train(), torch.randn(1, 2, 6, 5, 4)
    changed = [not torch.equal(gate(x), x) for _ in range(40)]
    assert any(changed)
    assert not all(changed)
    assert not gate.one_response
    gate.logit.grad = None
    for _ in range(40):
        gate(x).square().sum().backward()
    assert gate.logit.grad != 0
    assert gate.closed


def test_the_penalty_pushes_logits_down():
    gates = nn.ModuleList([gate_at(0.0, weight=0.5), gate_at(1.0, weight=0.5), FractionalHeat()])
    penalty = penalty_of(gates, gates[:1])
    assert penalty.item() == pytest.approx(
        sum(0.5 / (1 + math.exp(-(a - 2 / 3 * math.log(1 / 11)))) for a in (0.0, 1.0))
    )
    penalty.backward()
    assert all(gate.logit.grad > 0 for gate in gates[:2])
    assert penalty_of(nn.Linear(1, 1)) is None


def test_set_strength_turns_the_switch():
    gate = gate_at(0.0)
    gate.set_strength(0.0)
    assert gate.closed
    gate.set_strength(0.25)
    assert not gate.closed
    assert gate.strength.item() == pytest.approx(0.25)
    with pytest.raises(ValueError, match="out of range"):
        gate.set_strength(-1.0)


def test_nan_is_refused():
    broken = gate_at(0.0)
    broken.logit.data.fill_(math.nan)
    with pytest.raises(ValueError, match="logit of this HardConcreteHeat"):
        _ = broken.closed


@pytest.mark.slow
def test_switched_off_sites_retire_exactly_and_survive_saving(tmp_path):
    model = create_model("fheat_seg", patch_size=(32, 32, 32), operator="l0").eval()
    for site in ("enc1", "dec1"):
        gates_of(model)[site].logit.data.fill_(-5.0)
    x = torch.randn(1, 1, 32, 32, 32)
    small = retire(model)
    assert [row.state for row in allocation(small)] == ["retired", *["open"] * 6, "retired"]
    restored = load(save(small, tmp_path / "model"))
    with torch.no_grad():
        assert torch.equal(small(x), model(x))
        assert torch.equal(restored(x), model(x))
    assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in restored.parameters()) == 6
