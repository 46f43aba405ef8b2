"""Kernels of Light-UNETR's tokens in Triton's interpreter, outputs poisoned: attention, norm with GELU, the module."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat.nn.light_attention import GatedMixer, LightAttention, LightAttentionStage
from fheat.ops import kernels
from tests.ops.compare import error

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)


@pytest.fixture(autouse=True)
def _prepared(poisoned):
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("samples", "tokens", "heads", "size"), [(2, 7, 1, 8), (1, 16, 2, 5), (2, 33, 3, 8), (1, 1, 2, 4), (1, 40, 1, 20)]
)
def test_attention_and_its_gradient(samples, tokens, heads, size):
    from fheat.ops.kernels.attention import short_attention

    qkv = torch.randn(samples, tokens, heads, 3 * size, requires_grad=True)
    exact = qkv.detach().double().requires_grad_()
    query, key, value = exact.transpose(1, 2).chunk(3, dim=-1)
    expected = ((query @ key.transpose(-2, -1)).softmax(dim=-1) @ value).transpose(1, 2)
    weights = torch.randn(expected.shape)
    found = short_attention(qkv)
    gradients = [torch.autograd.grad((out * weights).sum(), x)[0] for out, x in ((found, qkv), (expected, exact))]
    assert error(found, expected) < 1e-6
    assert error(*gradients) < 1e-5


def test_attention_survives_scores_of_some_thousands():
    from fheat.ops.kernels.attention import short_attention

    qkv = 100 * torch.randn(1, 20, 1, 24)
    query, key, value = qkv.double().chunk(3, dim=-1)
    expected = (query[:, :, 0] @ key[:, :, 0].transpose(-2, -1)).softmax(dim=-1) @ value[:, :, 0]
    assert error(short_attention(qkv)[:, :, 0], expected) < 1e-4


@pytest.mark.parametrize(("rows", "third"), [(1, 2), (33, 8), (70, 20)])
def test_products_of_the_thirds_and_their_gradients(rows, third):
    from fheat.ops.kernels.tokens import token_products

    x = torch.randn(rows, 3 * third)
    weights = [torch.randn(size, third) for size in (3 * third, third // 2, third // 2)]
    slopes, found = [torch.randn(rows, len(weight)) for weight in weights], []
    for values, kind in ((x, torch.float32), (x.double(), torch.float64)):
        at = [value.detach().to(kind).requires_grad_() for value in (values, *weights)]
        if kind == torch.float32:
            out = token_products(*at)
        else:
            out = [part @ weight.t() for part, weight in zip(at[0].chunk(3, dim=1), at[1:], strict=True)]
        total = sum((one * slope).sum() for one, slope in zip(out, slopes, strict=True))
        found.append([*out, *torch.autograd.grad(total, at)])
    assert all(error(one, other) < 1e-5 for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("rows", "channels"), [(2, 1), (17, 4), (40, 6), (1500, 5)])
def test_norm_with_gelu_its_gradients_and_running_moments(rows, channels):
    from fheat.ops.kernels.batch_norm import norm_gelu

    norm = nn.BatchNorm3d(channels)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    exact = copy.deepcopy(norm).double()
    x = (3 + torch.randn(rows, channels)).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    weights = torch.randn(rows, channels)
    found = norm_gelu(x, norm)
    expected = F.gelu(exact(exact_x[:, :, None, None, None]))[:, :, 0, 0, 0]
    outs = ((found, x, norm), (expected, exact_x, exact))
    found_gradients, expected_gradients = (
        torch.autograd.grad((out * weights).sum(), [at, *layer.parameters()]) for out, at, layer in outs
    )
    assert error(found, expected) < 1e-5
    assert all((one - other).abs().max() < 1e-4 for one, other in zip(found_gradients, expected_gradients, strict=True))
    assert norm.num_batches_tracked == exact.num_batches_tracked == 1
    assert all(error(one, other) < 1e-5 for one, other in zip(norm.buffers(), exact.buffers(), strict=True))


@pytest.mark.parametrize(
    ("channels", "stride", "heads", "grid", "samples"),
    [(24, 2, 1, (4, 3, 5), 2), (60, 2, 4, (4, 4, 3), 1), (12, 1, 2, (3, 2, 5), 1)],
)
def test_the_module_and_all_its_gradients(channels, stride, heads, grid, samples):
    module = LightAttention(channels, stride, heads)
    exact, x = copy.deepcopy(module).double(), torch.randn(samples, channels, *grid)
    weights, found = torch.randn(x.shape), []
    for one, mode, values in ((module, "always", x), (exact, "never", x.double())):
        values = values.requires_grad_()
        with kernels.use(mode):
            out, attention = one(values)
        (out * weights).sum().backward()
        found.append([out, attention, values.grad, *(p.grad for p in one.parameters()), *one.buffers()])
    assert all(one.shape == other.shape and error(one, other) < 1e-5 for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("channels", "grid"), [(24, (6, 5, 7)), (60, (4, 4, 3)), (6, (1, 2, 1))])
def test_the_gated_mixer_with_its_residual(channels, grid):
    module, x = GatedMixer(channels), torch.randn(2, channels, *grid)
    exact, weights, found = copy.deepcopy(module).double(), torch.randn(x.shape), []
    for one, mode, values in ((module, "always", x), (exact, "never", x.double())):
        values = values.requires_grad_()
        with kernels.use(mode):
            out = one.added_to(values)
        (out * weights).sum().backward()
        found.append([out, values.grad, *(p.grad for p in one.parameters())])
    assert all(one.shape == other.shape and error(one, other) < 1e-6 for one, other in zip(*found, strict=True))


def test_the_gated_mixer_rounds_operands_under_autocast_only():
    """In fp16: the interpreter multiplies the bit patterns of bf16."""
    module, x = GatedMixer(12), torch.randn(1, 12, 3, 3, 3)
    expected = x + module(x)
    with kernels.use("always"), torch.autocast("cpu", torch.float16):
        found = module.added_to(x)
    assert found.dtype == torch.float32
    assert 1e-6 < error(found, expected) < 1e-3


@pytest.mark.parametrize(
    ("channels", "dtype", "fused"), [(64, None, True), (66, None, False), (66, torch.float16, True)]
)
def test_a_wide_mixer_is_left_to_the_library_in_float32(channels, dtype, fused, monkeypatch):
    called = []
    monkeypatch.setattr("fheat.ops.kernels.gated.gated_mix", lambda x, *weights: called.append(x.shape) or x)
    module = GatedMixer(channels)
    with kernels.use("always"), torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        module.added_to(torch.randn(1, channels, 2, 2, 2))
    assert called == ([(8, channels)] if fused else [])


def test_a_hook_on_a_mixer_is_called():
    stage, called = LightAttentionStage(12, 1, 1, 1), []
    stage.blocks[0].mixers[0].register_forward_hook(lambda *_: called.append("mixer"))
    stage.blocks[0].mixers[1].gating.register_forward_hook(lambda *_: called.append("gating"))
    with kernels.use("always"):
        stage(torch.randn(1, 12, 2, 2, 2))
    assert called == ["mixer", "gating"]


def test_attention_maps_are_made_where_they_are_wanted():
    stage, x = LightAttentionStage(12, 2, 2, 1), torch.randn(1, 12, 4, 4, 4)
    for mode in ("never", "always"):
        made = []
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, out, made=made: made.append(out[1] is not None))
            for block in stage.blocks
            for module in block.attentions
        ]
        with kernels.use(mode):
            stage(x)
            assert made == [False] * 4
            stage.attend(x)
            assert made[4:] == [False, False, False, True]
        for hook in hooks:
            hook.remove()


def test_the_attention_map_is_not_rounded_under_autocast():
    """Activations of some hundreds, as training makes them: the products of rounded ones would choose other tokens."""
    module, x = LightAttention(24, 2, 2), 300 * torch.randn(1, 24, 6, 6, 6)
    with kernels.use("never"):
        _, expected = copy.deepcopy(module)(x)
    with kernels.use("always"), torch.autocast("cpu", torch.bfloat16):
        _, found = module(x)
    assert found.dtype == torch.float32
    assert error(found, expected) < 1e-4


@pytest.mark.parametrize(
    ("place", "put"),
    [
        (("fine", 1), nn.SyncBatchNorm(4)),
        (("coarse", 1), nn.BatchNorm3d(4, affine=False)),
        (("fine", 2), nn.GELU(approximate="tanh")),
    ],
    ids=["synchronised norm", "norm without parameters", "approximate GELU"],
)
def test_layers_that_kernels_do_not_compute_are_called(place, put):
    module, called = LightAttention(24, 2, 1), []
    branch, number = place
    module.get_submodule(branch)[number] = put
    assert not module.get_submodule(branch).fusable()
    if not isinstance(put, nn.SyncBatchNorm):  # which refuses a CPU
        plain, x = copy.deepcopy(module), torch.randn(1, 24, 4, 4, 4)
        put.register_forward_hook(lambda *_: called.append(1))
        with kernels.use("always"):
            assert error(module(x)[0], plain(x)[0]) < 1e-5
        assert called == [1]


def test_wide_networks_and_many_tokens_run_plain():
    for module, grid in ((LightAttention(150, 2, 5), (4, 4, 4)), (LightAttention(12, 1, 1), (7, 7, 6))):
        x = torch.randn(1, module.recover[0].in_channels, *grid)
        with kernels.use("always"):
            assert not module._fusable(x)
            assert module._fusable(x[:, :, :2, :2, :2]) == (x.shape[1] <= 96)


def test_any_module_can_stand_in_the_place_of_a_mixer():
    stage, x = LightAttentionStage(12, 1, 1, 1), torch.randn(1, 12, 2, 2, 2)
    stage.blocks[0].mixers[0] = nn.Identity()
    with kernels.use("never"):
        assert stage(x).shape == x.shape


@pytest.mark.parametrize("change", ["hook", "evaluation", "frozen statistics", "replaced"])
def test_a_module_that_was_changed_inside_is_not_fused(change):
    module, x, called = LightAttention(12, 1, 1), torch.randn(1, 12, 3, 3, 3), []
    if change == "hook":
        module.fine[2].register_forward_hook(lambda *_: called.append("GELU"))
    if change == "evaluation":
        module.eval()
    if change == "frozen statistics":
        module.fine[1].track_running_stats = False
    if change == "replaced":
        module.coarse[4] = nn.ReLU()
    with kernels.use("never"):
        expected, _ = copy.deepcopy(module)(x)
    with kernels.use("always"):
        found, _ = module(x)
    assert error(found, expected) < 1e-5
    assert called == (["GELU"] * 2 if change == "hook" else [])
    assert module.fine[1].num_batches_tracked == (0 if change in ("evaluation", "frozen statistics") else 1)
