"""The peers' blocks against a slow transcription of their description."""

import pytest
import torch

from fheat.networks.large_u import ConvBlock, ConvDown, ConvUp
from fheat.nn.light_attention import GatedMixer, LightAttention, LightAttentionStage
from fheat.ops import kernels


@pytest.mark.parametrize(("stride", "heads"), [(1, 1), (2, 2), (2, 4)])
def test_attention_equals_a_loop_over_tokens(stride, heads):
    module = LightAttention(24, stride, heads).eval()
    x = torch.randn(1, 24, 4, 4, 2)
    out, attention = module(x)
    sampled = x[0, :, ::stride, ::stride, ::stride]
    grid = sampled.shape[1:]
    tokens = (module.qkv.weight.flatten(1) @ sampled[:8].flatten(1)).reshape(heads, 24 // heads, -1)
    width = 8 // heads
    mixed, received = [], torch.zeros(grid.numel())
    for head in range(heads):
        q, k, v = tokens[head, :width], tokens[head, width : 2 * width], tokens[head, 2 * width :]
        result = torch.zeros_like(v)
        for query in range(grid.numel()):
            weight = torch.stack([q[:, query] @ k[:, key] for key in range(grid.numel())]).softmax(0)
            result[:, query] = (v * weight).sum(1)
            received += weight / (heads * grid.numel())
        mixed.append(result)
    attended = torch.cat(mixed).reshape(1, 8, *grid)
    parts = [attended, module.fine(sampled[None, 8:16]), module.coarse(sampled[None, 16:])]
    assert torch.allclose(out, module.recover(torch.cat(parts, dim=1)), atol=1e-5)
    assert torch.allclose(attention.flatten(), received, atol=1e-6)
    assert attention.sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("grid", [(5, 6, 7), (9, 4, 4)])
def test_grids_the_stride_does_not_divide(grid):
    stage = LightAttentionStage(24, 1, 4, 1).eval()
    features, attention = stage.attend(torch.randn(1, 24, *grid))
    assert features.shape == (1, 24, *grid)
    assert attention.shape == (1, 1, *[-(-n // 4) for n in grid])


def test_a_stage_by_kernels_equals_the_plain_one_with_all_gradients():
    stage, exact = (LightAttentionStage(12, 1, 2, 1) for _ in range(2))
    exact = exact.double()
    exact.load_state_dict(stage.state_dict())
    x, weights = torch.randn(2, 2, 12, 5, 4, 3)
    inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
    with kernels.use("always"):
        found = stage.attend(inputs[0])
    expected = exact.attend(inputs[1])
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5
    (found[0] * weights).sum().backward()
    (expected[0] * weights).sum().backward()
    assert distance(inputs[0].grad, inputs[1].grad) < 1e-4
    for (name, one), other in zip(stage.named_parameters(), exact.parameters(), strict=True):
        assert distance(one.grad, other.grad) < 1e-3, name


def distance(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def test_attention_refuses_widths_it_cannot_split():
    with pytest.raises(ValueError, match="channels=20"):
        LightAttention(20, 2, 1)


def test_gated_mixer():
    module = GatedMixer(6)
    x = torch.randn(1, 6, 2, 2, 2)
    value, gating, recover = (m.weight.flatten(1) for m in (module.value, module.gating, module.recover))
    flat = x[0].flatten(1)
    expected = recover @ ((value @ flat) * torch.sigmoid(gating @ flat))
    assert torch.allclose(module(x)[0].flatten(1), expected, atol=1e-6)


def test_hooks_on_the_layers_of_a_mixer_are_called():
    module, called = GatedMixer(6), []
    for name, layer in module.named_children():
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
    for mode in ("never", "always"):
        with kernels.use(mode):
            module(torch.randn(1, 6, 2, 2, 2))
    assert called == 2 * ["value", "gating", "recover"]


def test_conv_blocks_halve_double_and_keep():
    x = torch.randn(1, 8, 6, 4, 8)
    assert ConvBlock(8)(x).shape == x.shape
    small = ConvDown(8, 12)(x)
    assert small.shape == (1, 12, 3, 2, 4)
    up = ConvUp(12, 8)(small)
    assert up.shape == x.shape
    assert (up[:, :, 0] == 0).all()  # the plane both paths are padded with
    assert (up[:, :, 1:, 1:, 1:].flatten(2).abs().sum(2) > 0).all()


def test_the_sum_of_blocks_and_the_attention_keep_float32_under_autocast():
    """Activations of some thousands, as training makes them: bfloat16 would round the products of the attention."""
    torch.manual_seed(0)
    stage = LightAttentionStage(24, 2, 2, 1)
    x = 300 * torch.randn(1, 24, 8, 8, 8)
    seen = []
    for block in stage.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output[0].dtype))
    exact, attention = stage.attend(x)
    with torch.autocast("cpu", torch.bfloat16):
        half, rounded = stage.attend(x)
        conv = stage.blocks[0].mixers[0](x)
    assert conv.dtype == torch.bfloat16
    assert seen == [torch.float32] * 4
    assert half.dtype == rounded.dtype == torch.float32
    assert (half - exact).norm() < 0.02 * exact.norm()
    assert torch.equal(attention.argmax(), rounded.argmax())
