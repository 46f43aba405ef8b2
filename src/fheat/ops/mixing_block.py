"""Residual blocks that mix voxels and then channels, as layers that can be compared with each other."""

from torch import nn


class MixingBlock(nn.Module):
    """Base of residual blocks: x plus a mixing of voxels, then x plus a mixing of channels.

    `forward` takes x, (N, C, *grid), as its first argument and returns the new x of the same shape, alone or as the
    first element of a tuple. What enters a block is what the block before it returned, so input and output of a block
    are the outputs of two consecutive layers, see `fheat.gates.similarity`.
    """


class OwnMixerBlock(MixingBlock):
    """A block whose mixing of voxels is a module of its own, `mixer` behind the norm `mixer_norm`, and can be removed.

    Identity case: without the mixer, x goes to the mixing of channels as it is.
    """

    mixer: nn.Module | None
    mixer_norm: nn.Module | None

    def remove_mixer(self) -> None:
        """Take the mixer and its norm out of the graph for good; the mixing of channels stays."""
        self.mixer = self.mixer_norm = None


def blocks_of(model: nn.Module) -> dict[str, MixingBlock]:
    """Return the blocks of a network by their paths."""
    return {path: module for path, module in model.named_modules() if isinstance(module, MixingBlock)}


def own_mixers_of(model: nn.Module) -> dict[str, OwnMixerBlock]:
    """Return the blocks with a mixer of their own by the paths of these mixers, also where it was removed."""
    return {f"{path}.mixer": block for path, block in blocks_of(model).items() if isinstance(block, OwnMixerBlock)}
