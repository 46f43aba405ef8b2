"""Residual blocks that mix voxels and then channels, as layers that can be compared with each other and left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


class MixingBlock(nn.Module):
    """Base of residual blocks: x plus a mixing of voxels, then x plus a mixing of channels.

    `forward` takes x, (N, C, *grid), as its first argument and returns the new x of the same shape, alone or as the
    first element of a tuple. What enters a block is what the block before it returned, so input and output of a block
    are the outputs of two consecutive layers, see `fheat.gates.similarity`.

    A block names in `branches` those of its residual branches that can be left out: for each, under the name of its
    main module, the modules through which x passes, first and last, one of which is the main module. `own_mixer` names
    the one of them that mixes voxels, where no gate that is shared between blocks does. A block must return what it
    would without a branch where the modules of that branch are None.

    Identity case: without a branch, x passes it as it is.
    """

    branches: ClassVar[Mapping[str, tuple[str, str]]] = {}
    own_mixer: ClassVar[str | None] = None


@dataclass(frozen=True)
class Branch:
    """A residual branch of a block that can be left out."""

    block: MixingBlock
    name: str

    @property
    def present(self) -> bool:
        """Whether the block still has the branch."""
        return getattr(self.block, self.name) is not None

    @property
    def ends(self) -> tuple[nn.Module, nn.Module]:
        """The modules through which x passes first and last."""
        first, last = self.block.branches[self.name]
        return self.block.get_submodule(first), self.block.get_submodule(last)

    def remove(self) -> None:
        """Remove the modules of the branch from the block, for good."""
        for module in self.block.branches[self.name]:
            setattr(self.block, module, None)


def blocks_of(model: nn.Module) -> dict[str, MixingBlock]:
    """Return the blocks of a network by their paths."""
    return {path: module for path, module in model.named_modules() if isinstance(module, MixingBlock)}


def branches_of(model: nn.Module) -> dict[str, Branch]:
    """Return the branches that can be left out by the paths of their main modules, also those that were removed."""
    return {
        f"{path}.{name}": Branch(block, name) for path, block in blocks_of(model).items() for name in block.branches
    }
