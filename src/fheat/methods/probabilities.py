"""Formulas on class probabilities, (B, K, X, Y, Z)."""

import torch
from torch import Tensor

from fheat.methods.vector_heads import precise


def class_probabilities(logits: Tensor) -> Tensor:
    """Return the softmax over classes in float32, or in float64 for float64 logits."""
    return precise(logits).softmax(dim=1)


def entropy(p: Tensor) -> Tensor:
    """Return -sum over classes of p log(p + 1e-6): (B, K, X, Y, Z) to (B, X, Y, Z), 0 where certain, at most ln K."""
    return -(p * torch.log(p + 1e-6)).sum(dim=1)


def sharpened(logits: Tensor, temperature: float) -> Tensor:
    """Return p_k^(1/T) / sum_j p_j^(1/T) of p = softmax(logits), which is softmax(logits / T).

    For two classes this is p^(1/T) / (p^(1/T) + (1 - p)^(1/T)) in each channel. A temperature of 1 changes nothing.
    """
    return (precise(logits) / temperature).softmax(dim=1)
