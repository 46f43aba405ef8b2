"""Invariants as assertions, for your own gates and in your own tests.

>>> from fheat import FractionalHeat
>>> assert_identity_at_zero(FractionalHeat(dims=2, initial_strength=0.0), (1, 2, 8, 8))
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fheat.gates.retire import retire
from fheat.ops.heat import FractionalHeat


def assert_identity_at_zero(gate: FractionalHeat, shape: Sequence[int], *, dtype: torch.dtype = torch.float32) -> None:
    """Assert that a closed gate returns its input and the gradient of its output bit for bit."""
    assert gate.closed, f"the gate is open: D = {gate.strength.item():.4g}"
    x = torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(*shape, dtype=torch.float64).to(dtype)
    y = gate(x)
    assert torch.equal(y, x), f"output differs from input by {(y - x).abs().max():.3g}"
    (gradient,) = torch.autograd.grad(y, x, weight)
    assert torch.equal(gradient, weight), f"gradient differs by {(gradient - weight).abs().max():.3g}"


def assert_contraction(gate: FractionalHeat, shape: Sequence[int]) -> None:
    """Assert that a gate keeps the mean and amplifies nothing; an open gate reduces the norm of the rest (float64)."""
    x = torch.randn(*shape, dtype=torch.float64)
    axes = tuple(range(-gate.dims, 0))
    x = x - x.mean(dim=axes, keepdim=True)
    with torch.no_grad():
        y, shifted = gate(x), gate(x + 1.0)
    assert torch.allclose(shifted, y + 1.0, atol=1e-12), "the constant mode is not kept"
    norm, bound = y.norm(), x.norm()
    if gate.closed:
        assert norm == bound, "a closed gate changed the norm"
    else:
        assert norm < bound, f"norm grew from {bound:.17g} to {norm:.17g}"


def assert_orthonormal(transform: Callable[[Tensor], Tensor], size: Sequence[int], *, tolerance: float = 1e-12) -> None:
    """Assert that a linear map on a grid of this size keeps inner products (float64)."""
    cells = torch.Size(size).numel()
    basis = torch.eye(cells, dtype=torch.float64).reshape(cells, *size)
    image = transform(basis).reshape(cells, cells)
    error = (image @ image.t() - torch.eye(cells, dtype=torch.float64)).abs().max().item()
    assert error <= tolerance, f"inner products change by {error:.3g}"


def assert_retirement_is_exact(model: nn.Module, x: Tensor) -> None:
    """Assert that `fheat.retire` changes no bit of the output (in evaluation mode)."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            full, small = model(x), retire(model)(x)
    finally:
        model.train(training)
    assert torch.equal(full, small), f"retired output differs by {(full - small).abs().max():.3g}"
