"""One training iteration as tensor code: take crops, compute losses, update. A GPU captures it once and replays it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fheat.methods.base import Batch, Method, Optimiser
from fheat.networks.base import SegmentationNetwork
from fheat.networks.padded import is_compiled
from fheat.ops.gates import gates_of
from fheat.ops.hard_concrete import penalty_of
from fheat.ops.heat import FractionalHeat
from fheat.system import processes
from fheat.system.capture import capture, rehearse
from fheat.training.average import WeightAverage
from fheat.training.batches import Batches
from fheat.training.optimiser import Schedule

EAGER_ITERATIONS = 3
"""Number of iterations that run as they are before a graph is captured: libraries choose and allocate in them."""
ITERATIONS_BETWEEN_GATE_CHECKS = 200
"""Number of iterations after which gates that have closed are taken out of the iteration."""


class Step:
    """The state of a run on its device, and the function that advances it by one iteration.

    Nothing in it asks the host: which crops come was drawn beforehand, the iteration counts itself, and losses and
    gates go into `history`, (iterations, columns), read whenever somebody wants to know.
    """

    def __init__(
        self,
        model: SegmentationNetwork,
        method: Method,
        batches: Batches,
        optimiser: Optimiser,
        schedule: Schedule,
        *,
        precision: torch.dtype = torch.float32,
        average: float | None = None,
    ) -> None:
        device = batches.store.low.device
        self.model, self.method, self.batches, self.optimiser = model, method, batches, optimiser
        self.schedule, self.precision = schedule, precision
        self.average = None if average is None else WeightAverage(model, average)
        self.iteration = torch.zeros((), dtype=torch.int64, device=device)
        self.gates = gates_of(model)
        gate_columns = (f"{name}.{site}" for site in self.gates for name in ("D", "alpha"))
        self.columns = (*method.names, "norm", "rate", *gate_columns)
        self._constants = _constants(self.gates, device)
        self.history = torch.zeros(schedule.iterations, len(self.columns), device=device)
        self._trained = [*model.parameters(), *method.trained()]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = self._done = 0
        self._closed_before: list[FractionalHeat] = []

    def __call__(self) -> None:
        """Advance by one iteration."""
        self.enter_stage(self.method.stage(self._done))
        self._done += 1
        if self._done % ITERATIONS_BETWEEN_GATE_CHECKS == 0:
            self._let_closed_gates_sleep()
        self.batches.load(self.iteration)
        if self.iteration.device.type != "cuda":
            self._advance()
            return
        if self._graph is not None:
            self._graph.replay()
        elif self._ran < EAGER_ITERATIONS:
            rehearse(self._advance)
            self._ran += 1
        else:
            self.optimiser.zero_grad()
            self._graph, _ = capture(self._advance)
            self._graph.replay()

    @property
    def result(self) -> SegmentationNetwork:
        """The network that is validated and saved: the average of the weights where one is kept, else the network."""
        return self.model if self.average is None else self.average.network

    def row(self, iteration: int) -> dict[str, float]:
        """Return what was logged in an iteration, counted from 1, by column. This waits for the device."""
        return dict(zip(self.columns, self.history[iteration - 1].tolist(), strict=True))

    def enter_stage(self, stage: int) -> None:
        """Let the method begin a later stage, whose iteration is another one and is captured anew."""
        if stage > self.method.current_stage:
            self.method.current_stage = stage
            self.method.begin_stage(self.model, stage)
            self._graph, self._ran = None, 0

    def reopen_gates(self, scale: float, seed: int) -> dict[str, float]:
        """Set D = scale |n| at every closed gate, n standard normal; return the new strengths by site.

        Nothing else can open a gate that training has closed. The draws have a generator of their own, so that the
        run's random numbers stay what they were. The optimiser keeps its moments of delta.
        """
        generator = torch.Generator().manual_seed(seed)
        drawn = scale * torch.randn(len(self.gates), generator=generator, dtype=torch.float64).abs()
        opened = {
            site: float(strength)
            for (site, gate), strength in zip(self.gates.items(), drawn, strict=True)
            if gate.delta is not None and gate.closed
        }
        for site, strength in opened.items():
            self.gates[site].set_strength(strength)
        self._drop_graph()
        self._closed_before = []
        return opened

    def state(self) -> dict[str, Tensor]:
        """Return copies of everything the next iteration depends on, and of what was logged so far.

        Weights and buffers of network and method, moments of the optimiser, iteration, stage, skipped updates, history,
        which gates have left the iteration, and the states of the random generators of host and device. All processes
        call this and get the same: what each remembers of its own crops is gathered, everything else is alike in all.
        """
        state = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, value in self.method.state_dict().items():
            gathered = processes.current().gather(value) if name in self.method.per_slot else value
            state[f"method.{name}"] = gathered
        if self.average is not None:
            state |= {f"average.{name}": value for name, value in self.average.network.state_dict().items()}
        state |= {f"optimiser.{name}": value for name, value in self.optimiser.state().items()}
        state["iteration"] = self.iteration
        state["stage"] = torch.tensor(self.method.current_stage)
        state["skipped"] = self.optimiser.skipped
        state["gates.asleep"] = torch.tensor([gate.asleep for gate in self.gates.values()], dtype=torch.bool)
        closed = [gate in self._closed_before for gate in self.gates.values()]
        state["gates.closed_before"] = torch.tensor(closed, dtype=torch.bool)
        state["history"] = self.history[: int(self.iteration)]
        state["generator.cpu"] = torch.get_rng_state()
        if self.iteration.is_cuda:
            state["generator.cuda"] = torch.cuda.get_rng_state(self.iteration.device)
        return {name: value.detach().cpu().clone() for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned, in place, before the first iteration."""
        self.model.load_state_dict(_part(state, "model."))
        remembered = _part(state, "method.")
        rows = processes.current().rows
        own = {name: rows(value) for name, value in remembered.items() if name in self.method.per_slot}
        self.method.load_state_dict(remembered | own)
        if self.average is not None:
            self.average.network.load_state_dict(_part(state, "average."))
        self.optimiser.restore(_part(state, "optimiser."))
        self.iteration.copy_(state["iteration"])
        self._done = int(state["iteration"])
        self.method.current_stage = int(state.get("stage", 0))  # older checkpoints are of methods without stages
        self.optimiser.skipped.copy_(state["skipped"])
        self._restore_sleep(_part(state, "gates."))
        self.history[: len(state["history"])] = state["history"].to(self.history.device)
        torch.set_rng_state(state["generator.cpu"])
        if self.iteration.is_cuda and "generator.cuda" in state:
            torch.cuda.set_rng_state(state["generator.cuda"], self.iteration.device)

    def _restore_sleep(self, state: dict[str, Tensor]) -> None:
        """Take the gates out of the iteration that had left it: on a GPU their place decides how gradients are rounded.

        Older checkpoints do not say which; closed gates then leave it as they do in a new run.
        """
        gates = list(self.gates.values())
        for gate, asleep in zip(gates, state.get("asleep", torch.zeros(len(gates))), strict=True):
            if asleep:
                gate.sleep()
        closed = state.get("closed_before", torch.zeros(len(gates)))
        self._closed_before = [gate for gate, one in zip(gates, closed, strict=True) if one]

    def _let_closed_gates_sleep(self) -> None:
        """Take the transforms of gates that closed out of the iteration, and out of the captured graph, for good.

        A gate is asked twice: what the optimiser still remembers from before it closed has faded by the second time.
        """
        awake = [gate for gate in self.gates.values() if gate.stays_closed and not gate.asleep and not gate.retired]
        closed = [gate for gate in awake if gate.closed]
        twice = [gate for gate in closed if gate in self._closed_before]
        for gate in twice:
            gate.sleep()
        self._closed_before = closed
        if twice:
            self._drop_graph()

    def _drop_graph(self) -> None:
        """Let the next iterations capture a new graph. A compiled network first runs without one, as `torch.compile`
        may have to build it anew."""
        self._graph = None
        if is_compiled(self.model):
            self._ran = 0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch in the precision of the run; the method may remember what it has seen."""
        half = self.precision != torch.float32
        with torch.autocast(self.iteration.device.type, self.precision, enabled=half, cache_enabled=False):
            return self.method.losses(self.model, batch)

    def _advance(self) -> None:
        batch = self.batches(self.iteration)
        self.optimiser.zero_grad()
        losses = self.losses(batch)
        penalty = penalty_of(self.model, self.method)
        loss = losses[self.method.names[0]]
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        self._complete_gradients()
        factor = self.schedule.factor(self.iteration)
        norm = self.optimiser.step(factor)
        self.method.after_update(self.model, self.iteration)
        if self.average is not None:
            self.average.follow(self.model, self.iteration)
        values = [*(losses[name].detach().float() for name in self.method.names), norm, factor]
        for site, gate in self.gates.items():
            values.append(self._constants[f"D.{site}"] if gate.delta is None else gate.strength.detach())
            values.append(self._constants[f"alpha.{site}"] if gate.theta is None else gate.alpha.detach())
        row = torch.stack([value.to(self.history.device, torch.float32) for value in values])
        self.history.index_copy_(0, self.iteration[None], processes.current().mean(row)[None])
        self.iteration += 1

    def _complete_gradients(self) -> None:
        """Give sleeping gates the zero gradients their transforms would have sent back, so that the optimiser's moments
        go on as if they had, and average all gradients over the processes."""
        for gate in self.gates.values():
            if gate.asleep:
                for parameter in gate.parameters():
                    parameter.grad = torch.zeros_like(parameter)
        group = processes.current()
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if group.size > 1:
            together = group.mean(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            parts = torch.split(together, [gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])


def _constants(gates: Mapping[str, FractionalHeat], device: torch.device) -> dict[str, Tensor]:
    """Return strengths and orders that are not learned, by column and on the device: a graph cannot fetch them."""
    strengths = {f"D.{site}": gate.strength for site, gate in gates.items() if gate.delta is None}
    orders = {f"alpha.{site}": gate.alpha for site, gate in gates.items() if gate.theta is None}
    return {name: value.to(device, torch.float32) for name, value in (strengths | orders).items()}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
