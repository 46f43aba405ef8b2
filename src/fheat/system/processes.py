"""Processes that train one network together: what each draws, what they add up, what they tell each other.

A batch of the group is that of its processes one after the other: rank r has rows r b to (r + 1) b - 1. All draw the
same random numbers for the whole batch and keep their rows, so n processes with b scans each do what one does with n b.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fheat.system.errors import BadInput

Result = TypeVar("Result")
_LONGEST_WAIT = timedelta(hours=2)
"""Time for which a process waits for another one, for instance while the first one validates."""


@dataclass(frozen=True)
class Group:
    """This process among `size`. Alone, nothing is sent: `rows`, `sum`, `mean` and `gather` return their argument.

    Every method but `rows` is called by all processes, in the same order.
    """

    rank: int = 0
    size: int = 1

    def rows(self, whole: Tensor) -> Tensor:
        """Return the rows of this process, (b, ...), of a tensor for the whole batch, (size b, ...)."""
        return whole if self.size == 1 else whole.chunk(self.size)[self.rank]

    def sum(self, part: Tensor) -> Tensor:
        """Add up a tensor over the processes; gradients as `_Sum` says."""
        total: Tensor = part if self.size == 1 else _Sum.apply(part, self.size)  # type: ignore[no-untyped-call]
        return total

    def mean(self, part: Tensor) -> Tensor:
        """Average a tensor over the processes."""
        return part if self.size == 1 else self.sum(part) / self.size

    def gather(self, part: Tensor) -> Tensor:
        """Return the rows of all processes, (size b, ...), from those of each, (b, ...)."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    def largest(self, number: int) -> int:
        """Return the largest of the processes' numbers, without asking a device."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def tell(self, thing: Any) -> list[Any]:
        """Return what all processes have to say, in the order of their ranks."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def together(self, work: Callable[[], Result]) -> Result:
        """Do something on every process, which sends nothing meanwhile; if it fails on one, all raise its error."""
        if self.size == 1:
            return work()
        error = None
        try:
            result = work()
        except Exception as mistake:
            error = mistake
        for one in self.tell(error):
            if one is not None:
                raise error or one
        return result

    def lead(self, work: Callable[[], object]) -> None:
        """Do something on the first process while the others wait; if it fails, all raise its error."""
        self.together(lambda: work() if self.rank == 0 else None)


ALONE = Group()
_current = ALONE


def current() -> Group:
    """Return this process's place among those that train together; `ALONE` unless `joined` or `acting_as` says else."""
    return _current


@contextmanager
def acting_as(group: Group) -> Iterator[Group]:
    """Within the block, `current` is this group."""
    global _current
    before, _current = _current, group
    try:
        yield group
    finally:
        _current = before


@contextmanager
def joined() -> Iterator[Group]:
    """Within the block, this process is one of those that `torchrun` has started, or alone without it.

    `torchrun` sets RANK, WORLD_SIZE and LOCAL_RANK. A scheduler that has set WORLD_SIZE but no RANK starts a process
    that is alone.
    """
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        with acting_as(ALONE) as group:
            yield group
        return
    # A captured iteration holds collectives, which no watchdog may query meanwhile.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_LONGEST_WAIT)
    try:
        with acting_as(Group(dist.get_rank(), size)) as group:
            yield group
    finally:
        dist.destroy_process_group()


def own_device(name: str | None) -> torch.device:
    """Return the device of this process, by default a GPU of its own where there are any, or raise `BadInput`."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type != "cuda":
        return device
    if current().size == 1:
        if device.index is None:  # which `set_device` does not take
            return torch.device("cuda", torch.cuda.current_device())
        torch.cuda.set_device(device)  # streams, graphs and kernels start on the current one
        return device
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise BadInput(str(device), f"has {count} GPUs for more processes", "start one per GPU, or pass --device cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


class _Sum(torch.autograd.Function):
    """The sum over the processes, and `size` times the gradient back.

    Each process goes on to the same value with the same sum, so its gradient is the same everywhere and need not be
    sent: of all their values together the gradient is `size` times that. The mean over the processes, which is what a
    training step makes of the gradients of the weights, is then the gradient of one value.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, size: int) -> Tensor:
        ctx.size = size
        total = part.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.size, None
