"""Training on a GPU by every method: a captured iteration does what a plain one does, and goes on from a checkpoint."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fheat import create_model, instrument
from fheat.data.store import VolumeStore, pack_all
from fheat.data.stream import HostStore
from fheat.methods.base import Task
from fheat.methods.registry import method_class
from fheat.training import step as training_step
from fheat.training.batches import Batches, draw
from fheat.training.optimiser import AdamW, Schedule
from fheat.training.probing import measure_pairings
from fheat.training.settings import OptimiserSettings
from fheat.training.step import Step
from tests.training.helpers import settings_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATCH = (48, 48, 32)


METHODS = ("cse", "supervised", "mean_teacher", "ua_mt", "bcp", "cps", "fixmatch", "caml", "mlrp", "sassnet", "ss_net")


def build(
    iterations,
    precision=torch.float32,
    kind=VolumeStore,
    levels=None,
    method="cse",
    average=None,
    name="fheat_seg",
    sites=(),
    **options,
):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(60, 56, 40)).astype(np.float32) for _ in range(6)]
    if levels is not None:
        images = [np.round(image * levels) / levels for image in images]
    labels = [(image > 0.5).astype(np.uint8) for image in images]
    store = kind(pack_all(images, labels, PATCH), "cuda")

    def network():
        built = create_model(name, patch_size=PATCH, **options)
        return (instrument(built, sites, initial_strength=0.03) if sites else built).cuda().train()

    model = network()
    rule = method_class(method)
    rule = rule(rule.Settings(name=method), Task(PATCH, 2, iterations=iterations)).cuda()
    rule.prepare(model, network)
    batches = Batches(store, draw((2, 4), (rule.labelled, rule.unlabelled), iterations, 0), PATCH)
    optimiser = AdamW(model, OptimiserSettings(), rule.trained(), rule)
    return Step(model, rule, batches, optimiser, Schedule(iterations, 5), precision=precision, average=average)


def losses(step, count):
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return step.history[: int(step.iteration)].cpu()


@pytest.mark.parametrize("method", METHODS)
def test_the_captured_iteration_is_the_plain_one(monkeypatch, method):
    captured = losses(build(12, method=method), 12)
    monkeypatch.setattr(training_step, "EAGER_ITERATIONS", 99)
    plain = losses(build(12, method=method), 12)
    assert torch.isfinite(captured).all()
    assert torch.allclose(captured[:6], plain[:6], rtol=2e-2, atol=2e-3)
    assert torch.allclose(captured[:1], plain[:1], rtol=1e-4, atol=1e-5)


INSTRUMENTED = {
    "segresnet": (("body.down_layers.*", "body.up_layers.*"), {"init_filters": 8}),
    "unet": (("body.0", "body.**.submodule.0", "body.**.submodule.2"), {"channels": (8, 8, 16, 16, 16)}),
    "swin_unetr": (("body.swinViT.layers*.0", "body.decoder*"), {"feature_size": 12}),
    "segformer3d": (("enc?", "dec?"), {}),
}
"""Sites of gates in networks that have none of their own, and options that make these small."""


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", INSTRUMENTED)
def test_gates_that_were_put_in_close_and_leave_the_captured_iteration(monkeypatch, name, precision):
    sites, options = INSTRUMENTED[name]

    def trained(eager, look):
        monkeypatch.setattr(training_step, "EAGER_ITERATIONS", eager)
        monkeypatch.setattr(training_step, "ITERATIONS_BETWEEN_GATE_CHECKS", look)
        step = build(16, precision, name=name, sites=sites, **options)
        for site in list(step.gates)[:3]:
            step.gates[site].set_strength(0.0)
        return step, losses(step, 16)

    left, captured = trained(3, 4)
    assert all(gate.asleep for gate in list(left.gates.values())[:3])
    assert left._graph is not None
    assert torch.isfinite(captured).all()
    kept, plain = trained(99, 1000)
    assert not any(gate.asleep for gate in kept.gates.values())
    assert torch.allclose(captured[:1], plain[:1], rtol=1e-2, atol=1e-3)
    if precision == torch.float32:
        assert torch.allclose(captured[:4], plain[:4], rtol=2e-2, atol=2e-3)
    closed = [left.columns.index(f"D.{site}") for site in list(left.gates)[:3]]
    assert (captured[:, closed] == 0).all()


@pytest.mark.parametrize("options", [{"gates": "final_only"}, {"gates": "closed"}, {"alpha": 0.6}])
def test_constants_of_gates_are_logged_from_a_captured_iteration(options):
    step = build(8, **options)
    logged = losses(step, 8)
    for site, gate in step.gates.items():
        for name, parameter, value in (("D", gate.delta, gate.strength), ("alpha", gate.theta, gate.alpha)):
            if parameter is None:
                assert (logged[:, step.columns.index(f"{name}.{site}")] == value.float()).all()


def test_the_average_of_a_captured_iteration_is_the_plain_one(monkeypatch):
    captured = build(8, average=0.9)
    losses(captured, 8)
    monkeypatch.setattr(training_step, "EAGER_ITERATIONS", 99)
    plain = build(8, average=0.9)
    losses(plain, 8)
    for own, other in zip(captured.result.parameters(), plain.result.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=5e-2, atol=5e-3)
    assert captured.result is not captured.model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_it_goes_on_from_a_checkpoint_bit_by_bit(precision, method, monkeypatch):
    """Three iterations after the checkpoint run as they are, where the whole run replays its graph."""
    if method == "sassnet":  # cuDNN's gradients of the discriminator's strided convolutions add in any order
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    whole = losses(build(14, precision, method=method), 14)
    first = build(14, precision, method=method)
    losses(first, 7)
    state = first.state()
    again = build(14, precision, method=method)
    torch.cuda.manual_seed(5)
    again.restore(state)
    assert torch.equal(losses(again, 7), whole)


def test_bf16_trains_without_skipping():
    step = build(40, torch.bfloat16)
    found = losses(step, 40)
    assert step.optimiser.skipped == 0
    assert found[-8:, 0].mean() < found[:8, 0].mean()


@pytest.mark.parametrize("levels", [None, 16])
def test_streamed_crops_are_the_resident_ones(levels):
    """As many iterations as make every slot come again, in plain and in captured iterations, the host far ahead."""
    seen = {}
    for kind in (VolumeStore, HostStore):
        step = build(40, kind=kind, levels=levels)
        sums = torch.zeros(40, 4, device="cuda", dtype=torch.float64)
        whole = step.batches

        def watched(iteration, whole=whole, sums=sums):
            batch = whole(iteration)
            place = torch.arange(batch.images[0].numel(), device="cuda", dtype=torch.float64)
            row = [(part.double().flatten(1) * place).sum() for part in (batch.images, batch.labels, batch.unlabelled)]
            sums.index_copy_(0, iteration[None], torch.stack([*row, batch.images.double().sum()])[None])
            return batch

        watched.load = whole.load
        step.batches = watched
        losses(step, 40)
        seen[kind] = sums.cpu()
    assert torch.equal(seen[VolumeStore], seen[HostStore])
    assert len(seen[VolumeStore][:, 0].unique()) == 40


def test_a_look_at_the_gates_between_captured_iterations_changes_nothing():
    plain = losses(build(12, torch.bfloat16), 12)
    step = build(12, torch.bfloat16)

    def other_batches(count, seed):
        return Batches(step.batches.store, draw((2, 4), (2, 2), 2, 1), PATCH)

    prepared = SimpleNamespace(other_batches=other_batches)
    trainer = SimpleNamespace(step=step, settings=settings_of(data="x"), prepared=prepared)
    losses(step, 7)  # captured by then
    first = measure_pairings(trainer)
    assert measure_pairings(trainer) == first
    assert torch.equal(losses(step, 5), plain)


def test_gates_opened_between_captured_iterations_act_and_learn():
    step = build(12, torch.bfloat16)
    for gate in step.gates.values():
        gate.set_strength(0.0)
    losses(step, 7)
    strengths = [step.columns.index(f"D.{site}") for site in step.gates]
    assert (step.history[6, strengths] == 0).all()
    opened = step.reopen_gates(0.3, seed=0)
    assert set(opened) == set(step.gates)
    found = losses(step, 5)[7:, strengths]
    assert torch.allclose(found[0], torch.tensor(list(opened.values())), atol=0.02)
    assert (found[-1] != found[0]).any()
