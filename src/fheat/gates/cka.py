"""Linear CKA, a similarity of two sets of features.

Facts: Kornblith et al., *Similarity of Neural Network Representations Revisited* (ICML 2019); written here from its
formula:

    CKA(x, y) = |Sxy|^2 / (|Sxx| |Syy|),    S the covariances of channels over all voxels, |.| the Frobenius norm

It is 1 where y is x up to a rotation, a shift and a scale of the channels, and 0 where no channel of one varies with a
channel of the other. Voxels are the examples and channels the features, so the covariances are all that has to be kept
of the voxels that passed, however many there are. There must be many more of them than channels: between two voxels it
is 1 whatever the features are.
"""

import torch
from torch import Tensor


class RunningCKA:
    """Linear CKA of pairs (x, y) that come one after another; memory is (2 C)^2 numbers of 64 bits.

    Means and covariances of two parts are combined as in Chan, Golub, LeVeque (1983), which loses no digits where the
    mean is large beside the deviation.
    """

    def __init__(self) -> None:
        self.voxels = 0
        self._mean: Tensor | float = 0.0
        self._scatter: Tensor | float = 0.0

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add a pair of features, (N, C, *grid), whose voxels are the samples; C must be that of the pairs before."""
        both = torch.cat([value.detach().double().movedim(1, -1).flatten(0, -2) for value in (x, y)], dim=1)
        added = len(both)
        mean = both.mean(dim=0)
        centred = both - mean
        step, total = mean - self._mean, self.voxels + added
        self._scatter = self._scatter + centred.t() @ centred + step.outer(step) * (self.voxels * added / total)
        self._mean = self._mean + step * (added / total)
        self.voxels = total

    def result(self) -> float:
        """Return the CKA of all pairs; of features that do not vary 1 if neither does, and 0 if the others do."""
        assert isinstance(self._scatter, Tensor)
        channels = len(self._scatter) // 2
        of_x, of_y = self._scatter[:channels], self._scatter[channels:]
        across = of_x[:, channels:]
        sizes = [float(part.norm()) for part in (of_x[:, :channels], of_y[:, channels:])]
        if not all(sizes):
            return float(not any(sizes))
        return min(float(across.square().sum()) / (sizes[0] * sizes[1]), 1.0)
