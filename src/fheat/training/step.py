"""External perturbations of a run: the only thing that can open a gate that training has closed."""

import torch
from torch import Tensor

from fheat.data.store import Size, VolumeStore
from fheat.data.stream import HostStore
from fheat.methods.base import Method
from fheat.methods.teacher import MeanTeacher
from fheat.networks.base import SegmentationNetwork
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from fheat.system.capture import capture, rehearse
from fheat.system.processes import ALONE, Group
from fheat.training.batches import Batches
from fheat.training.optimiser import NO_SPIKE, Optimiser, Spike, rate_factor
from fheat.training.parallel import parallel


def reopen(gates: dict[str, FractionalHeat], scale: float, seed: int) -> dict[str, float]:
    """Set D = scale |n| at every gate that is closed, n standard normal; return the new strengths by site.

    The draws have a generator of their own, so that the run's random numbers stay what they were. The optimiser keeps
    what it remembers of delta.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = scale * torch.randn(len(gates), generator=generator, dtype=torch.float64).abs()
    opened = {
        site: float(strength)
        for (site, gate), strength in zip(gates.items(), drawn, strict=True)
        if gate.delta is not None and gate.closed
    }
    for site, strength in opened.items():
        gates[site].set_strength(strength)
    return opened


_EAGER = 3
"""Iterations that run as they are before a graph is captured: libraries choose and allocate in them."""
_LOOK = 200
"""Iterations between looks for gates that closed."""
_EAGER_IN_A_GROUP = 11
"""As many as `DistributedDataParallel` needs."""


class Step:
    """The state of a run on its device, and the function that advances it.

    Nothing in it asks the host: which scans come (`orders`) and where crops of them lie (`places`) is drawn
    beforehand, the iteration counts itself, and losses and gates go into `history`, (iterations, columns), read
    whenever somebody wants to know. `orders` and `places` are for the whole batch of the group, of which this process
    crops and learns its rows.
    """

    def __init__(
        self,
        model: SegmentationNetwork,
        method: Method,
        store: VolumeStore | HostStore,
        orders: tuple[Tensor, Tensor],
        optimiser: Optimiser,
        *,
        places: tuple[Tensor, Tensor],
        patch: Size,
        warm_up: int,
        precision: torch.dtype,
        spike: Spike = NO_SPIKE,
        group: Group = ALONE,
    ) -> None:
        device = store.low.device
        self.model, self.method, self.store, self.optimiser = model, method, store, optimiser
        self.warm_up, self.precision, self.spike, self.group = warm_up, precision, spike, group
        self.network = parallel(model, group)
        self.iterations = len(orders[0])
        self.batches = Batches(store, orders, places, patch, group)
        if method.needs_teacher:
            method.teacher = MeanTeacher(model)
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
        self._ran = self._calls = 0
        self._closed_before: list[FractionalHeat] = []

    def __call__(self) -> None:
        """Advance by one iteration."""
        self._calls += 1
        if self._calls % _LOOK == 0 and self.group.size == 1:  # others would wait for its gradients
            self._let_closed_gates_sleep()
        self.batches.load(self.iteration)
        if self.iteration.device.type != "cuda":
            self._advance()
            return
        if self._graph is not None:
            self._graph.replay()
        elif self._ran < (_EAGER if self.group.size == 1 else _EAGER_IN_A_GROUP):
            rehearse(self._advance)
            self._ran += 1
        else:
            self.optimiser.zero_grad()
            self._graph, _ = capture(self._advance)
            self._graph.replay()

    def reopen_gates(self, scale: float, seed: int) -> dict[str, float]:
        """Open every closed gate at random, see `fheat.training.step`; return what was opened."""
        opened = reopen(self.gates, scale, seed)
        self._graph, self._closed_before = None, []
        return opened

    def _let_closed_gates_sleep(self) -> None:
        """Take the transforms of gates that closed out of the iteration, and out of the captured graph, for good.

        A gate is asked twice: what the optimiser still remembers from before it closed has faded by the second time.
        """
        closed = [gate for gate in self.gates.values() if not gate.asleep and not gate.retired and gate.closed]
        tired = [gate for gate in closed if gate in self._closed_before]
        for gate in tired:
            gate.sleep()
        self._closed_before = closed
        if tired:
            self._graph = None

    def _advance(self) -> None:
        batch = self.batches(self.iteration)
        self.optimiser.zero_grad()
        with torch.autocast(
            self.iteration.device.type, self.precision, enabled=self.precision != torch.float32, cache_enabled=False
        ):
            losses = self.method.losses(self.network, batch)
        losses[self.method.names[0]].backward()  # type: ignore[no-untyped-call]
        for gate in self.gates.values():
            if gate.asleep:  # what its transform would have sent back: the optimiser's moments go on as if it had
                for parameter in gate.parameters():
                    parameter.grad = torch.zeros_like(parameter)
        factor = rate_factor(self.iteration, iterations=self.iterations, warm_up=self.warm_up, spike=self.spike)
        norm = self.optimiser.step(factor)
        if self.method.needs_teacher:
            self.method.teacher.follow(self.model, self.iteration)
        values = [*(losses[name].detach().float() for name in self.method.names), norm, factor]
        for gate in self.gates.values():
            values += [gate.strength.detach(), gate.alpha.detach()]
        row = self.group.mean(torch.stack([value.to(self.history.device, torch.float32) for value in values]))
        self.history.index_copy_(0, self.iteration[None], row[None])
        self.iteration += 1
