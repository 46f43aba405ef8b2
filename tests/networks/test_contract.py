"""What every registered network promises: one class of tests, run over all of them."""

import copy
from contextlib import contextmanager
from importlib import import_module

import pytest
import torch
from torch import nn

from fheat import allocation, cost, create_model, instrument, list_models, load, retire, save
from fheat.inference.compilers import onnx_model
from fheat.networks.base import Features
from fheat.networks.monai_peers import monai_network
from fheat.networks.segformer import SegFormer
from fheat.ops.gates import gates_of

PATCH = (48, 32, 32)
NARROW = {
    "segresnet": {"init_filters": 8},
    "unet": {"channels": (4, 8, 16, 16, 16)},
    "dynunet": {"filters": (4, 8, 16, 16, 16)},
    "swin_unetr": {"feature_size": 12},
}
"""Options that make a large network quick to test; with these the logits are stored."""
NARROWER = NARROW | {"mednext": {"init_filters": 4}}
"""Options for all other tests."""
NARROW_CONSTANTS = {
    "transbts.TOKEN_WIDTH": 64,
    "transbts.HIDDEN": 128,
    "transbts.LAYERS": 2,
    "unetr_pp.DEPTH": 1,
}
"""Constants of the files of large networks that have no such options, and values with which the logits are stored."""
NARROWER_CONSTANTS = NARROW_CONSTANTS | {
    "large_u.WIDTHS": (8, 12, 24, 36, 48),
    "large_u.DEPTH": 1,
    "fheat_seg_l.DEPTH": 1,
    "light_unetr_l.DEPTH": 1,
    "transbts.DEPTHS": (1, 1, 1, 1),
    "segformer3d.DEPTH": 1,
    "fheat_segformer3d.DEPTH": 1,
    "amber_afno.DEPTH": 1,
}
"""Values for all other tests."""
SWIN = {"window_size": 3, "depths": (2, 1, 1, 1)}
"""Swin UNETR in all other tests: windows of 3 voxels along a side, where it has 7 and attention takes the 6th power;
one block on each level but the first, where one with shifted windows follows."""
TRACED_WHOLE = ("fheat_seg", "light_unetr")
"""The networks, one of each family, whose gradients are compiled too, which takes long."""
DROPS_OUT = ("fheat_seg", "light_unetr", "slim_unetr", "unetr_pp", "transbts")
"""The networks with dropout in training."""


@contextmanager
def narrowed():
    """Let large networks be built narrow."""

    def build_of_monai(name, **options):
        return monai_network(name, **options, **(SWIN if name == "SwinUNETR" else {}))

    with with_constants(NARROWER_CONSTANTS) as patch:
        patch.setattr("fheat.networks.monai_peers.monai_network", build_of_monai)
        yield


@contextmanager
def with_constants(values):
    for name in values:  # before the first change, as one file takes constants over from another
        import_module(f"fheat.networks.{name.partition('.')[0]}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(f"fheat.networks.{name}", value)
        yield patch


@pytest.fixture(autouse=True)
def _narrowed():
    with narrowed():
        yield


def build(name, inputs=1, classes=2, patch=PATCH):
    return create_model(name, inputs, classes, patch, **NARROWER.get(name, {}))


def shorten(model):
    """Make tracing quick: of the stages, which are alike, keep one block of the first, and the last."""
    stages = {name: child for name, child in model.named_children() if hasattr(child, "blocks")}
    if isinstance(model, SegFormer):  # its stages have different widths
        for stage in stages.values():
            stage.blocks = stage.blocks[:1]
        return model
    for name in list(stages)[1:-1]:
        setattr(model, name, nn.Identity())
    for stage in list(stages.values())[:1]:
        stage.blocks = stage.blocks[:1]
    return model


NAMES = [one if one == "fheat_seg" else pytest.param(one, marks=pytest.mark.slow) for one in list_models()]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return build(name).eval()


@pytest.mark.parametrize(
    ("inputs", "classes", "grid"), [(1, 2, (32, 32, 32)), (4, 3, (33, 39, 35)), (1, 3, (36, 42, 32))]
)
def test_any_grid_channels_and_classes(name, grid, inputs, classes):
    model = build(name, inputs, classes).eval()
    with torch.no_grad():
        logits = model(torch.randn(1, inputs, *grid))
    assert logits.shape == (1, classes, *grid)
    assert torch.isfinite(logits).all()


def test_features(model):
    x = torch.randn(2, 1, *PATCH)
    features = model.forward_features(x)
    assert isinstance(features, Features)
    seen = []
    model.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        assert torch.equal(features.logits, model(x))
    assert torch.equal(seen[0], features.penultimate)
    assert features.attention.shape[:2] == (2, 1)
    assert features.attention.ndim == 5
    assert (features.attention >= 0).all()
    assert not features.attention.requires_grad


def test_every_parameter_learns(model):
    model.train()
    x = torch.randn(2, 1, *PATCH)
    model(x).square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    silent = [key for key, parameter in model.named_parameters() if not parameter.grad.any()]
    # A bias in front of a one-group norm of one voxel per group, and gates on a 1x1x1 bottom, have nothing to learn.
    assert all("gate" in key for key in silent), silent


def test_samples_do_not_see_each_other(model):
    x = torch.randn(2, 1, *PATCH)
    with torch.no_grad():
        together = model(x)
        assert together.shape == (2, 2, *PATCH)
        assert torch.allclose(together[1:], model(x[1:]), atol=1e-4)


def test_evaluation_is_deterministic_and_dropout_is_not(name):
    model = build(name)
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        model.eval()
        assert torch.equal(model(x), model(x))
        model.train()
        assert torch.equal(model(x), model(x)) != (name in DROPS_OUT)


def test_save_and_load(model, tmp_path):
    restored = load(save(model, tmp_path / "model"))
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))
    assert restored.spec == model.spec
    assert not restored.training


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:onnx.*")
def test_exports(name, model):
    """As a program of torch, and as an ONNX file that ONNX Runtime executes."""
    model = shorten(model)
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        expected = model(x)
        assert torch.allclose(program.module()(x), expected, atol=1e-5)
    if name == "fheat_seg":  # which has tests in tests/inference
        return
    onnxruntime = pytest.importorskip("onnxruntime")
    content = onnx_model(program, x).SerializeToString()  # a program as it is: tracing takes longer than the rest
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(logits), expected, atol=1e-4)


@pytest.mark.slow
def test_retires(model):
    """Closed gates, its own or those that were put into it, can be taken out without any change."""
    gated = copy.deepcopy(model) if gates_of(model) else instrument(model)
    for gate in gates_of(gated).values():
        gate.set_strength(0.0)
    smaller = retire(gated)
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(smaller(x), gated(x))
        if not gates_of(model):
            assert torch.equal(smaller(x), model(x))
    assert all(row.retired for row in allocation(smaller))
    counted = cost(smaller)
    assert (counted.transform, counted.macs) == (0, cost(model).rest)
    assert counted.parameters == sum(p.numel() for p in model.parameters() if p.ndim)


@pytest.mark.slow
def test_compiles(name, model):
    """Whole, but for Swin UNETR, whose grid MONAI checks with numpy, which leaves the graph."""
    model = shorten(model)
    x = torch.randn(1, 1, *PATCH)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=name != "swin_unetr", backend="eager")
    with torch.no_grad():
        assert torch.allclose(compiled(x), model(x), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED_WHOLE)
def test_gradients_compile(name):
    model = shorten(build(name).eval())
    x = torch.randn(1, 1, *PATCH)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        run(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for expected, traced in zip(*gradients, strict=True):
        assert torch.allclose(traced, expected, atol=1e-4 * (1 + expected.abs().max()))
    assert any(gradient.any() for gradient in gradients[0])


def test_autocast(model):
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(x)
    assert torch.isfinite(half).all()
    assert (half.float() - full).norm() < 0.2 * full.norm()


BAD_INPUT = [
    (torch.randn(1, 1, 48, 40), ValueError, "(1, 1, 48, 40)"),
    (torch.randn(1, 2, 48, 40, 32), ValueError, "(N, 1, X, Y, Z)"),
    (torch.randn(1, 1, 48, 40, 31), ValueError, "pad it to (48, 40, 32)"),
    (torch.zeros(1, 1, 48, 40, 32, dtype=torch.uint8), TypeError, "x.float()"),
]


@pytest.mark.parametrize(("x", "error", "says"), BAD_INPUT)
def test_refuses(model, x, error, says):
    with pytest.raises(error) as caught:
        model(x)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
