"""A network whose gradients are averaged over the processes that train together."""

import inspect
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fheat.networks.base import Features, SegmentationNetwork
from fheat.system import processes

_names = inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _names else "broadcast_buffers": False
}
"""Option that leaves buffers alone: they are constants here and need not be sent; torch renamed it after 2.10."""


class Parallel(DistributedDataParallel):
    """A network whose gradients are averaged over the processes. One forward per backward may need gradients."""

    def forward_features(self, x: Tensor) -> Features:
        """Return logits, attention and features of a batch, without gradients."""
        with torch.no_grad():
            return cast(SegmentationNetwork, self.module).forward_features(x)


def parallel(model: SegmentationNetwork) -> SegmentationNetwork:
    """Return the network to compute losses with: the same one for a process that is alone."""
    if processes.current().size == 1:
        return model
    device = next(model.parameters()).device
    if device.type != "cuda":
        return cast(SegmentationNetwork, Parallel(model, **_NO_BUFFERS))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # else no graph can be captured
        wrapped = Parallel(model, device_ids=[device.index], **_NO_BUFFERS)
    torch.cuda.current_stream().wait_stream(stream)
    return cast(SegmentationNetwork, wrapped)
