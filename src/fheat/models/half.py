"""Weights at half their size: large tensors as float16 in the file, float32 again in the network."""

import torch
from torch import Tensor, nn

FULL_BELOW = 256
"""Smaller tensors stay float32: gates, rational coefficients, biases and norms. They are 3 % of FHEAT-Seg, and a gate
must keep D, alpha and above all a closed D = 0 exactly."""
LARGEST_LOSS = 2**-10
"""Of a tensor, relative to its norm. Rounding alone stays below 2^-11; more means that values fell out of range."""


def halve(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with every large parameter as float16; buffers, small parameters and vectors stay as they are.

    Raises `ValueError` naming the first tensor that is not float32, or that float16 cannot hold.
    """
    halved = dict(state)
    for key, _ in model.named_parameters(remove_duplicate=False):
        value = state[key]
        if value.dtype != torch.float32:
            raise ValueError(f"key {key!r} is {value.dtype}: only float32 networks are stored as float16")
        if value.numel() < FULL_BELOW or value.ndim < 2:
            continue
        half = value.half()
        if not torch.isfinite(half).all():
            raise ValueError(f"key {key!r} holds {value.abs().max():.3g}, beyond float16: store it as it is")
        if (half.double() - value.double()).norm() > LARGEST_LOSS * value.double().norm():
            raise ValueError(f"key {key!r} holds numbers too small for float16: store it as it is")
        halved[key] = half
    return halved


def unhalve(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with float16 as float32, which changes no value."""
    return {key: value.float() if value.dtype == torch.float16 else value for key, value in state.items()}
