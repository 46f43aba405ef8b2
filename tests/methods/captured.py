"""Whether an iteration of a method could be captured as a graph, asked on a CPU."""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fheat.networks.base import Features
from fheat.networks.registry import NetworkSpec


class Plain(nn.Module):
    """A network without gates, which read their parameters on a CPU: features on half of the grid, and a batch norm."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv3d(1, 6, 2, stride=2), nn.BatchNorm3d(6)
        self.head = nn.ConvTranspose3d(6, classes, 2, stride=2)
        self.spec = NetworkSpec("plain", 1, classes, (16, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x).logits

    def forward_features(self, x: Tensor) -> Features:
        features = self.norm(self.stem(x)).relu()
        return Features(self.head(features), features[:, :1].detach(), features)


_ATEN = torch.ops.aten
ASKING = (_ATEN._local_scalar_dense, _ATEN.nonzero, _ATEN.masked_select, _ATEN._unique2, _ATEN.lift_fresh)
"""Operations that wait for the device or copy from the host: `.item()` and branches, sizes that depend on values, and
`torch.tensor`."""
INDEXING = (_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_)


class NobodyAsks(TorchDispatchMode):
    """Within this context an operation that a captured graph cannot hold raises an error."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        masks = [at for at in args[1] if at is not None and at.dtype == torch.bool] if packet in INDEXING else []
        if packet in ASKING or masks:
            raise RuntimeError(f"{func} cannot be captured")
        return func(*args, **(kwargs or {}))


def advance_as_captured(method, model, batch):
    """Do what an iteration does, but for the update of the network, where nothing may ask the host."""
    with NobodyAsks():
        losses = method.losses(model, batch)
        losses["total"].backward()
        method.after_update(model, torch.zeros((), dtype=torch.int64))
    return losses
