"""Training by several processes: how a process finds its group, its device and the others' gradients.

`torchrun` starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK. Without it, or with one process, the group is
`ALONE` and the network stays what it is. So it is where a scheduler has set WORLD_SIZE but no RANK.
"""

import inspect
import os
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fheat.networks.base import Features, SegmentationNetwork
from fheat.system.errors import BadInput
from fheat.system.processes import ALONE, Group

_PATIENCE = timedelta(hours=2)
"""How long a process waits for another, for instance while the first one validates."""


def join() -> Group:
    """Return this process's place in its group, after all of the group have come here."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        return ALONE
    # A captured iteration holds collectives, which no watchdog may query meanwhile.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    return Group(dist.get_rank(), size)


def leave() -> None:
    """End what `join` began."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def device_for(group: Group, name: str | None) -> torch.device:
    """Return the device of a process, by default a GPU of its own where there are any, or raise `BadInput`."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type != "cuda":
        return device
    if group.size == 1:
        if device.index is None:  # which `set_device` does not take
            return torch.device("cuda", torch.cuda.current_device())
        torch.cuda.set_device(device)  # streams, graphs and kernels start on the current one
        return device
    local, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= found:
        raise BadInput(str(device), f"has {found} GPUs for more processes", "start one per GPU, or pass --device cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


_names = inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _names else "broadcast_buffers": False
}
"""Buffers are constants here and need not be sent; torch renamed the option after 2.10."""


class Parallel(DistributedDataParallel):
    """A network whose gradients are averaged over the processes. One forward per backward may need gradients."""

    def forward_features(self, x: Tensor) -> Features:
        """Return what the network knows about a batch, without gradients."""
        with torch.no_grad():
            return cast(SegmentationNetwork, self.module).forward_features(x)


def parallel(model: SegmentationNetwork, group: Group) -> SegmentationNetwork:
    """Return the network to compute losses with: the same one for a process that is alone."""
    if group.size == 1:
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
