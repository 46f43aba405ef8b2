"""One training iteration as tensor code: draw crops, compute losses, update. A GPU captures it once and replays it."""

import torch
from torch import Tensor

from fheat.data.augment import gamma, noise
from fheat.data.store import Size, VolumeStore
from fheat.engine.optimiser import Optimiser
from fheat.engine.parallel import parallel
from fheat.engine.schedule import rate_factor
from fheat.group import ALONE, Group
from fheat.methods.base import Batch, Method
from fheat.models.base import SegmentationNetwork
from fheat.ops.gates import gates_of

_EAGER = 3
"""Iterations that run as they are before a graph is captured: libraries choose and allocate in them."""
_EAGER_IN_A_GROUP = 11
"""As many as `DistributedDataParallel` needs."""


class Step:
    """The state of a run on its device, and the function that advances it.

    Nothing in it asks the host: which scans come is drawn beforehand, the iteration counts itself, and losses and
    gates go into `history`, (iterations, columns), read whenever somebody wants to know. `orders` are for the whole
    batch of the group, of which this process crops and learns its rows.
    """

    def __init__(
        self,
        model: SegmentationNetwork,
        method: Method,
        store: VolumeStore,
        orders: tuple[Tensor, Tensor],
        optimiser: Optimiser,
        *,
        patch: Size,
        warm_up: int,
        precision: torch.dtype,
        group: Group = ALONE,
    ) -> None:
        device = store.starts.device
        self.model, self.method, self.store, self.optimiser = model, method, store, optimiser
        self.patch, self.warm_up, self.precision, self.group = patch, warm_up, precision, group
        self.network = parallel(model, group)
        self.labelled, self.unlabelled = (order.to(device) for order in orders)
        self.iterations = len(self.labelled)
        self.iteration = torch.zeros((), dtype=torch.int64, device=device)
        self.gates = gates_of(model)
        self.columns = (
            *method.names,
            "norm",
            "rate",
            *(f"{name}.{site}" for site in self.gates for name in ("D", "alpha")),
        )
        self.history = torch.zeros(self.iterations, len(self.columns), device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = 0

    def __call__(self) -> None:
        """Advance by one iteration."""
        if self.iteration.device.type != "cuda":
            self._advance()
            return
        if self._graph is not None:
            self._graph.replay()
        elif self._ran < (_EAGER if self.group.size == 1 else _EAGER_IN_A_GROUP):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._advance()
            torch.cuda.current_stream().wait_stream(stream)
            self._ran += 1
        else:
            self.optimiser.zero_grad()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._advance()
            self._graph.replay()

    def _advance(self) -> None:
        batch = self._batch()
        self.optimiser.zero_grad()
        with torch.autocast(
            self.iteration.device.type, self.precision, enabled=self.precision != torch.float32, cache_enabled=False
        ):
            losses = self.method.losses(self.network, batch)
        losses[self.method.names[0]].backward()  # type: ignore[no-untyped-call]
        factor = rate_factor(self.iteration, iterations=self.iterations, warm_up=self.warm_up)
        norm = self.optimiser.step(factor)
        values = [*(losses[name].detach().float() for name in self.method.names), norm, factor]
        for gate in self.gates.values():
            values += [gate.strength.detach(), gate.alpha.detach()]
        row = self.group.mean(torch.stack([value.to(self.history.device, torch.float32) for value in values]))
        self.history.index_copy_(0, self.iteration[None], row[None])
        self.iteration += 1

    def _batch(self) -> Batch:
        labelled, corners = self._draw(self.labelled)
        images, labels = self.store.crop(labelled, corners, self.patch)
        if self.unlabelled.shape[1] == 0:
            return Batch(images, labels, images[:0], images[:0])
        unlabelled, corners = self._draw(self.unlabelled)
        weak, _ = self.store.crop(unlabelled, corners, self.patch)
        bright = gamma(weak, self.store.low[unlabelled], self.store.high[unlabelled], group=self.group)
        return Batch(images, labels, weak, noise(bright, group=self.group))

    def _draw(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return this process's scans of the iteration, (b,), and where their crops begin, (b, 3)."""
        cases = order.index_select(0, self.iteration[None])[0]
        return self.group.rows(cases), self.group.rows(self.store.corners(cases, self.patch))
