"""Prototypes of classes: mean features, and how similar every voxel is to them."""

import torch
import torch.nn.functional as F
from torch import Tensor


def class_prototypes(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean feature of each class in each sample, of length 1: (B, K, C); 0 for a class that is absent.

    Shapes: features (B, C, x, y, z), labels (B, x, y, z) whole numbers below K. The mean divides by the number of
    voxels plus 1e-6.
    """
    numbers = torch.arange(classes, device=labels.device)[:, None]
    inside = (labels.flatten(1)[:, None] == numbers).to(features.dtype)  # (B, K, V)
    sums = inside @ features.flatten(2).transpose(1, 2)
    return F.normalize(sums / (inside.sum(dim=2, keepdim=True) + 1e-6), dim=2)


def similarities(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosine between every feature and every prototype of its sample: (B, K, x, y, z), in [-1, 1]."""
    directions = F.normalize(features, dim=1).flatten(2)
    return (prototypes @ directions).view(len(features), -1, *features.shape[2:])
