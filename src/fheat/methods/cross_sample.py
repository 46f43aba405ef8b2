"""Cross-sample attention (CMA of CAML): features of one crop attend to each other, then to those of the other crops."""

from typing import Any

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MOST_HEADS = 4


class CrossSampleAttention(nn.Module):
    """Two transformer encoder layers on features (N, C, x, y, z) -> the same; the identity in evaluation mode.

    The first layer attends over the x y z voxels of each sample, the second over the N samples at each voxel. Both are
    post-norm, with ReLU, 4 C channels inside, no position embedding, and as many of up to four heads as divide C.
    """

    def __init__(self, channels: int, dropout: float = 0.5) -> None:
        super().__init__()
        heads = next(count for count in range(MOST_HEADS, 0, -1) if channels % count == 0)
        self.within, self.across = (
            nn.TransformerEncoderLayer(channels, heads, 4 * channels, dropout, batch_first=True) for _ in range(2)
        )

    def follow(self, stage: nn.Module) -> None:
        """From now on, replace what this stage of a network returns.

        The hook is a bound method, so that in a deep copy of a module that holds both it refers to the copy.
        """
        stage.register_forward_hook(self._replace)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sample, then across samples."""
        if not self.training:
            return x
        tokens: Tensor = x.flatten(2).transpose(1, 2)  # (N, V, C)
        with sdpa_kernel(SDPBackend.MATH):  # the others do not repeat bit by bit
            tokens = self.across(self.within(tokens).transpose(0, 1)).transpose(0, 1)
        return tokens.transpose(1, 2).reshape(x.shape)

    def _replace(self, stage: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return self(output) if stage.training else output
