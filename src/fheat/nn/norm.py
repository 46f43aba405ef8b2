"""The normalisation used throughout: GroupNorm with a single group."""

from torch import nn


def one_group(channels: int) -> nn.GroupNorm:
    """Normalise over channels and grid together, with a scale and shift per channel."""
    return nn.GroupNorm(1, channels)
