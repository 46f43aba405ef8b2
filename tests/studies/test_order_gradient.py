"""dL/dalpha of open gates: against finite differences, and on a saved network."""

import pytest
import torch
from torch import nn

from fheat import FractionalHeat
from fheat.studies.order_gradient import order_gradients


class Chain(nn.Module):
    """Two gates on 1D signals: one open, one closed."""

    def __init__(self, alpha):
        super().__init__()
        self.open = FractionalHeat(dims=1, alpha=alpha, initial_strength=0.7)
        self.shut = FractionalHeat(dims=1, initial_strength=0.0)

    def forward(self, x):
        return self.shut(self.open(x))


def loss(network, batch):
    signal, target = batch
    return (network(signal) - target).square().mean()


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    signals = torch.randn(3, 2, 1, 64, generator=generator, dtype=torch.float64)
    return [(signal, torch.cumsum(signal, dim=-1) / 8) for signal in signals]


@pytest.mark.parametrize("kind", ["bounded", "softplus"])
def test_gradient_is_that_of_finite_differences(kind, batches):
    model = Chain(kind).double()
    (found,) = order_gradients(model, loss, batches)
    assert (found.site, found.D) == ("open", pytest.approx(0.7))
    assert found.alpha == pytest.approx(model.open.alpha.item())
    step = 1e-4
    slopes = []
    for batch in batches:
        high, low = (loss(Chain(found.alpha + sign * step).double(), batch).item() for sign in (1, -1))
        slopes.append((high - low) / (2 * step))
    assert found.mean == pytest.approx(sum(slopes) / 3, rel=1e-4)
    assert found.error == pytest.approx(torch.tensor(slopes).std().item() / 3**0.5, rel=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_batch_has_no_error_and_fixed_orders_have_no_gradient(batches):
    (found,) = order_gradients(Chain("bounded").double(), loss, batches[:1])
    assert (found.error, found.batches) == (None, 1)
    assert order_gradients(Chain(0.5).double(), loss, batches) == []
