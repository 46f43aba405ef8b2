"""The simulation of Fig. 3: the fast path against real gates, what it must show, and its controls."""

import json

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from fheat.ops import FractionalHeat, dct, idct
from fheat.ops.heat import frequency_radius
from fheat.studies.simulation.chains import Chains, even_share, penalties, side_by_side, train
from fheat.studies.simulation.experiments import (
    SITES,
    SimulationPlan,
    differentiated,
    interchangeable,
    kept_iterations,
    simulate,
)


@pytest.fixture(scope="module")
def full():
    """Both experiments at the paper's settings: 5 seeds, 8 planted sites, 6,000 iterations."""
    return simulate(SimulationPlan(), controls=False)


@pytest.fixture(scope="module")
def controls():
    return simulate(SimulationPlan(seeds=2, iterations=800))["controls"]


def slow_strengths(chains, iterations, rate, decay, strength):
    """Train real gates, one module each, on signals in space, with nothing done side by side."""
    signals, targets = idct(chains.spectrum, dims=1), idct(chains.target, dims=1)
    final = torch.empty_like(chains.start)
    for chain, (signal, target, alpha) in enumerate(zip(signals, targets, chains.alpha.tolist(), strict=True)):
        members = (chains.chain == chain).nonzero()[:, 0]
        gates = nn.Sequential(*(FractionalHeat(dims=1, alpha=alpha, strength=strength).double() for _ in members))
        for gate, member in zip(gates, members, strict=True):
            start = torch.tensor(gate._strength.inverse(chains.start[member].item()), dtype=torch.float64)
            gate.delta.data = start  # set_strength would do, but a number passes through float32 on its way
        optimiser = torch.optim.AdamW(gates.parameters(), lr=rate, weight_decay=decay)
        for _ in range(iterations):
            optimiser.zero_grad()
            (0.5 * (gates(signal[None]) - target).square().sum()).backward()
            optimiser.step()
        final[members] = torch.stack([gate.strength.detach() for gate in gates])
    return final


def few(chains, count):
    kept = chains.chain < count
    return Chains(
        chains.spectrum[:count], chains.target[:count], chains.alpha[:count], chains.start[kept], chains.chain[kept]
    )


@pytest.mark.parametrize(
    ("strength", "alpha", "decay"), [("relu", 0.75, 1e-3), ("relu", 1.5, 0.0), ("softplus", 0.5, 1e-3), ("exp", 0.9, 0)]
)
def test_agrees_with_real_gates(strength, alpha, decay):
    settings = SimulationPlan(seeds=1, alpha=alpha)
    chains = side_by_side([few(interchangeable(settings).chains, 1), few(differentiated(settings).chains, 3)])
    options = {"iterations": 80, "rate": 0.02, "decay": decay, "strength": strength}
    fast = train(chains, keep=[80], **options)[0]
    slow = slow_strengths(chains, **options)
    assert len(fast) == SITES + 3
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)
    assert torch.equal(fast == 0, slow == 0)
    assert (fast == 0).any() == (strength == "relu")  # some have closed within these iterations


def test_side_by_side_changes_nothing():
    settings = SimulationPlan(seeds=2, iterations=50)
    parts = [interchangeable(settings).chains, differentiated(settings, every_site=False).chains]
    options = {"iterations": 50, "rate": 0.03, "decay": 1e-3, "keep": [0, 7, 50]}
    together = train(side_by_side(parts), **options)
    alone = torch.cat([train(part, **options) for part in parts], dim=1)
    assert torch.equal(together, alone)
    torch.testing.assert_close(together[0], torch.cat([part.start for part in parts]), rtol=0, atol=0)


def test_gradient_and_pairing_are_what_autograd_finds():
    chains = few(differentiated(SimulationPlan(seeds=1)).chains, 8)
    power = torch.from_numpy(frequency_radius(256)) ** 0.75
    signal, target = idct(chains.spectrum, dims=1), idct(chains.target, dims=1)
    for value in (0.0, 0.3, 2.0):
        tau = torch.full((8,), value, dtype=torch.float64, requires_grad=True)
        output = idct(torch.exp(-tau[:, None] * power) * dct(signal, dims=1), dims=1)
        (found,) = torch.autograd.grad(0.5 * (output - target).square().sum(), tau)
        torch.testing.assert_close(chains.gradient(tau.detach()), found, rtol=1e-10, atol=1e-10)
    half = power.sqrt()  # eq. (16), both halves of the fractional Laplacian, in space
    gradient = signal - target
    left, right = (idct(half * dct(x, dims=1), dims=1) for x in (signal, gradient))
    torch.testing.assert_close(chains.pairing(), (left * right).sum(1), rtol=1e-10, atol=1e-10)


def test_best_strength_is_the_minimum():
    chains = few(differentiated(SimulationPlan(seeds=1)).chains, 2)
    radius = torch.from_numpy(frequency_radius(256))

    def loss(strength):
        multiplier = torch.exp(-((strength * radius) ** 0.75))
        return (multiplier * chains.spectrum[0] - chains.target[0]).square().sum().item()

    best = minimize_scalar(loss, bounds=(1e-3, 20), method="bounded", options={"xatol": 1e-10}).x
    found = chains.best_strength().tolist()
    assert found[0] == pytest.approx(best, abs=1e-6)
    assert found[1] == 0.0


def test_interchangeable_gates_share_evenly(full):
    found = full["interchangeable"]
    assert found["exact"] == pytest.approx(0.25, abs=1e-12)
    assert len(found["runs"]) == 5
    for run in found["runs"]:
        assert 0.245 < run["mean"] < 0.252
        assert run["sd"] < 0.02
        assert len(run["D"]) == SITES
        assert sum(strength**0.75 for strength in run["D"]) == pytest.approx(4**0.75, rel=1e-3)
        assert run["start_sd"] > 0.003  # what is even at the end was not made so by an even start
    assert found["closed"] == 0


def test_the_sign_of_the_pairing_predicts_survival_everywhere(full):
    found = full["differentiated"]
    runs = found["runs"]
    assert {(run["seed"], run["planted"]) for run in runs} == {
        (seed, site + 1) for seed in range(5) for site in range(8)
    }
    for run in runs:
        for site, (pairing, strength) in enumerate(zip(run["pairing"], run["D"], strict=True), start=1):
            if site == run["planted"]:
                assert pairing > 100
                assert strength == pytest.approx(run["best"], abs=1e-3)
                assert 0.5 < strength < 1.0
            else:
                assert pairing == 0.0
                assert strength == 0.0
    assert found["predicted"] == found["sites"] == 320
    assert found["idle_closed"] == found["idle"] == 280
    draws = {tuple(run["pairing"]) for run in runs}
    assert len(draws) == 40  # no run is another one again


def test_closed_stays_closed(full):
    shown = full["trajectories"]
    assert shown["iterations"][0] == 0
    assert shown["iterations"][-1] == 6000
    for site, strengths in enumerate(zip(*shown["differentiated"], strict=True), start=1):
        if site != shown["planted"]:
            first = strengths.index(0.0)
            assert first > 0
            assert not any(strengths[first:])


def test_remark_3():
    assert penalties(2.0, 8, 0.75) == pytest.approx({"even": 0.198425, "concentrated": 6.349604}, rel=1e-5)
    assert even_share(4**0.75, 8, 0.75) == pytest.approx(0.25)
    for alpha in (0.3, 0.75, 1.0, 1.5, 1.99):
        cost = penalties(2.0, 8, alpha)
        assert cost["even"] / cost["concentrated"] == pytest.approx(8 ** (1 - 2 / alpha))
        assert cost["even"] < cost["concentrated"]
    at_two = penalties(2.0, 8, 2.0)
    assert at_two["even"] == pytest.approx(at_two["concentrated"])


def test_controls(controls):
    planted = {name: found["differentiated"] for name, found in controls.items() if "differentiated" in found}
    for name in ("softplus", "exp"):
        assert planted[name]["idle_closed"] == 0
        assert 0 < planted[name]["smallest_idle"] <= planted[name]["largest_idle"] < 0.02
    for name in ("no weight decay", "rate 0.03", "alpha 0.3", "alpha 0.5", "alpha 0.9", "alpha 1.5"):
        assert planted[name]["idle_closed"] == planted[name]["idle"] == 14
        assert planted[name]["predicted"] == planted[name]["sites"] == 16
    assert set(controls) - set(planted) == {"uneven start", "uneven start, no weight decay"}
    for name in ("no weight decay", "rate 0.03", "alpha 0.9"):
        found = controls[name]["interchangeable"]
        for run in found["runs"]:
            assert run["mean"] == pytest.approx(found["exact"], rel=0.01)
            assert run["sd"] < 0.02
    assert min(run["sd"] for run in controls["uneven start"]["interchangeable"]["runs"]) > 0.05


def test_only_an_order_below_one_closes_in_small_steps():
    """With target = signal the loss goes like D^(2 alpha): its slope brings D to zero in finite time for alpha < 1."""
    for alpha, closed in ((0.75, 7), (1.5, 0)):
        experiment = differentiated(SimulationPlan(seeds=1, alpha=alpha), every_site=False)
        strengths = train(experiment.chains, iterations=2000, rate=1e-4, decay=1e-3, keep=[2000])[0]
        assert int((strengths == 0).sum()) == closed
        idle = torch.arange(SITES) != experiment.planted[0] - 1
        assert strengths[idle].max() < 0.01
        assert strengths[~idle].item() > 0.1


def test_a_share_smaller_than_a_step_closes_gates_that_are_needed(controls):
    found = controls["alpha 0.3"]["interchangeable"]
    assert found["exact"] == pytest.approx(4 * 8 ** (-1 / 0.3))
    assert found["exact"] < SimulationPlan.rate
    assert all(run["pairing"] > 0 for run in found["runs"])
    assert found["closed"] >= found["gates"] / 2


def test_a_seed_is_the_same_whatever_the_number_of_seeds():
    one, two = (simulate(SimulationPlan(seeds=seeds, iterations=20), controls=False) for seeds in (1, 2))
    assert one["interchangeable"]["runs"][0] == two["interchangeable"]["runs"][0]
    assert one["differentiated"]["runs"] == two["differentiated"]["runs"][:8]


def test_record_is_plain_and_progress_is_complete():
    seen = []
    record = simulate(SimulationPlan(seeds=1, iterations=150), progress=lambda done, total: seen.append((done, total)))
    assert json.loads(json.dumps(record, allow_nan=False)).keys() == record.keys()
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {6 * 150}


@pytest.mark.parametrize("iterations", [1, 2, 37, 6000])
def test_kept_iterations(iterations):
    kept = kept_iterations(iterations)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, iterations)
    assert len(kept) <= 101


@pytest.mark.parametrize(
    "wrong",
    [{"seeds": 0}, {"iterations": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"decay": -0.1}, {"alpha": 2.1}],
    ids=str,
)
def test_refuses_settings(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* is not usable"):
        SimulationPlan(**wrong)
