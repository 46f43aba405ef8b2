"""SegFormer3D, its port with gates and AMBER-AFNO: attention and AFNO against slow obvious ones, gates of the port."""

import pytest
import torch
from torch import nn

from fheat import allocation, cost, create_model, probe, retire
from fheat.gates.trace import trace
from fheat.networks.segformer import SITES
from fheat.nn.afno import AFNO
from fheat.nn.fheat import FHEAT
from fheat.nn.segformer import GatedProjection, ReducedAttention
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat

PATCH = (48, 32, 32)


@pytest.fixture
def port():
    return create_model("fheat_segformer3d", patch_size=PATCH).eval()


def test_attention_is_that_of_torch():
    """With r = 1, `nn.MultiheadAttention` with the same weights gives the same."""
    ours = ReducedAttention(64, heads=2, reduction=1).double()
    theirs = nn.MultiheadAttention(64, 2, batch_first=True).double()
    with torch.no_grad():
        for layer in (ours.query, ours.key_value, ours.out):
            layer.weight.normal_(std=0.2)
            layer.bias.normal_()
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]).flatten(1))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        theirs.out_proj.weight.copy_(ours.out.weight.flatten(1))
        theirs.out_proj.bias.copy_(ours.out.bias)
        x = torch.randn(2, 64, 4, 3, 5, dtype=torch.float64)
        tokens = x.flatten(2).transpose(1, 2)
        expected = theirs(tokens, tokens, tokens)[0].transpose(1, 2).reshape(x.shape)
        assert torch.allclose(ours(x), expected, atol=1e-12)


def test_keys_lie_on_the_coarser_grid():
    attention = ReducedAttention(32, heads=1, reduction=4)
    seen = []
    attention.key_value.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    assert attention(torch.randn(1, 32, 9, 8, 12)).shape == (1, 32, 9, 8, 12)
    assert seen == [(1, 64, 2, 2, 3)]


@pytest.mark.parametrize("grid", [(5, 4, 3), (4, 6, 8)])
def test_afno_is_a_complex_network_on_every_frequency(grid):
    """Frequency by frequency and block by block, with complex numbers."""
    torch.manual_seed(0)
    afno = AFNO(8, blocks=2, threshold=0.01).double()
    x = torch.randn(2, 8, *grid, dtype=torch.float64)
    spectrum = torch.fft.rfftn(x, dim=(2, 3, 4), norm="ortho")
    mixed = torch.zeros_like(spectrum)
    weights = [torch.complex(*getattr(afno, f"weight{layer}")) for layer in (1, 2)]
    biases = [torch.complex(*getattr(afno, f"bias{layer}")) for layer in (1, 2)]
    for block in range(2):
        part = slice(4 * block, 4 * block + 4)
        for place in torch.cartesian_prod(*map(torch.arange, spectrum.shape[2:])):
            at = (slice(None), part, *place)
            hidden = spectrum[at] @ weights[0][block].t() + biases[0][block]
            hidden = torch.complex(hidden.real.relu(), hidden.imag.relu())
            value = hidden @ weights[1][block].t() + biases[1][block]
            shrunk = [each.sign() * (each.abs() - 0.01).clamp(min=0) for each in (value.real, value.imag)]
            mixed[at] = torch.complex(*shrunk)
    expected = x + torch.fft.irfftn(mixed, s=grid, dim=(2, 3, 4), norm="ortho")
    assert torch.allclose(afno(x), expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"blocks=3 does not divide the 8 channels: give a divisor"):
        AFNO(8, blocks=3)


def test_afno_shrinks_to_its_inner_skip():
    afno, x = AFNO(8, blocks=2, threshold=1e6), torch.randn(1, 8, 4, 4, 4)
    assert torch.allclose(afno(x), x, atol=1e-6)


def test_an_additive_gate_adds():
    stage = GatedProjection(3, 8, FractionalHeat(initial_strength=0.5))
    x = torch.randn(1, 3, 4, 5, 6)
    z = stage.project(x)
    y = stage.fheat(z, stage.gate)
    features, attention = stage.attend(x)
    assert torch.equal(features, stage(x))
    assert torch.equal(features, z + y)
    assert torch.equal(attention, y.detach().abs().mean(dim=1, keepdim=True))
    assert not attention.requires_grad


@pytest.mark.slow
def test_the_port_has_eight_gates_in_the_order_data_flows(port):
    rows = list(allocation(port))
    assert [row.site for row in rows] == list(SITES)
    assert [row.channels for row in rows] == [32, 64, 160, 256, 256, 256, 256, 256]
    assert [row.grid for row in rows][:5] == [(12, 8, 8), (6, 4, 4), (3, 2, 2), (2, 1, 1), (2, 1, 1)]
    assert rows[-1].grid == (12, 8, 8)
    assert sum(isinstance(module, FHEAT) for module in port.modules()) == 12
    assert not any(isinstance(module, ReducedAttention) for module in port.modules())


def test_gates_of_the_port_may_be_chosen():
    def learned(**options):
        gates = gates_of(create_model("fheat_segformer3d", patch_size=PATCH, **options))
        return [site for site, gate in gates.items() if gate.delta is not None]

    assert learned(gates="closed") == []
    assert learned(gates="final_only") == ["dec1"]
    assert learned(gates="dec4, enc1") == ["enc1", "dec4"]


@pytest.mark.slow
def test_closed_gates_of_the_port_are_the_identity_and_retire(port):
    x = torch.randn(1, 1, *PATCH)
    for site, gate in gates_of(port).items():
        gate.set_strength(0.1 if site == "dec4" else 0.0)
    smaller = retire(port)
    with torch.no_grad():
        ours, theirs = port.forward_features(x), smaller.forward_features(x)
        assert all(map(torch.equal, ours, theirs))
        for gate in gates_of(port).values():
            gate.bypass(alpha=0.5)
        assert not torch.equal(port(x), ours.logits)  # dec4 mixed
    assert [row.site for row in allocation(smaller) if not row.retired] == ["dec4"]
    assert cost(smaller).transform == cost(smaller).sites["dec4"] > 0


def test_the_attention_map_is_that_of_the_last_gate(port):
    x = torch.randn(2, 1, *PATCH)
    seen = []
    port.dec1.fheat.register_forward_hook(lambda module, inputs, output: seen.append(output))
    features = port.forward_features(x)
    assert torch.equal(features.attention, seen[0].detach().abs().mean(dim=1, keepdim=True))
    assert features.attention.shape == (2, 1, 12, 8, 8)
    assert features.penultimate.shape == (2, 256, 12, 8, 8)


@pytest.mark.slow
def test_the_port_is_probed_and_traced(port):
    found = probe(port.train(), lambda network, batch: network(batch).square().mean(), torch.randn(2, 1, *PATCH))
    assert [row.site for row in found] == list(SITES)
    steps = trace(port, (torch.empty(1, 1, *PATCH, device="meta"),))
    assert {site: len(calls) for site, calls in steps.gate_calls.items()} == {
        site: 2 if site.startswith("enc") else 1 for site in SITES
    }
