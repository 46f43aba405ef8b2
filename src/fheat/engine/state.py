"""The complete state of a step as named tensors, and back."""

import torch
from torch import Tensor

from fheat.engine.step import Step


def state_of(step: Step) -> dict[str, Tensor]:
    """Return copies of everything the next iteration depends on, and of what was logged so far.

    Weights and buffers of network and method, moments of the optimiser, iteration, skipped updates, history, and the
    states of the random generators of host and device. All processes of a group call this and get the same: what each
    remembers of its own scans is gathered, everything else is alike in all.
    """
    state = {f"model.{name}": value for name, value in step.model.state_dict().items()}
    for name, value in step.method.state_dict().items():
        state[f"method.{name}"] = step.group.gather(value) if name in step.method.per_slot else value
    for index, parameter in enumerate(step.optimiser.parameters):
        moments = step.optimiser.adamw.state[parameter]
        state |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
    state["iteration"] = step.iteration
    state["skipped"] = step.optimiser.skipped
    state["history"] = step.history[: int(step.iteration)]
    state["generator.cpu"] = torch.get_rng_state()
    if step.iteration.is_cuda:
        state["generator.cuda"] = torch.cuda.get_rng_state(step.iteration.device)
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def restore(step: Step, state: dict[str, Tensor]) -> None:
    """Put a step into a state, in place, before its first iteration."""
    step.model.load_state_dict(_part(state, "model."))
    remembered = _part(state, "method.")
    own = {name: step.group.rows(value) for name, value in remembered.items() if name in step.method.per_slot}
    step.method.load_state_dict(remembered | own)
    device = step.iteration.device
    for index, parameter in enumerate(step.optimiser.parameters):
        moments = _part(state, f"optimiser.{index}.")
        if moments:
            # The step count of a fused update lies on the device of the parameter.
            step.optimiser.adamw.state[parameter] = {name: value.to(device) for name, value in moments.items()}
    step.iteration.copy_(state["iteration"])
    step.optimiser.skipped.copy_(state["skipped"])
    step.history[: len(state["history"])] = state["history"].to(device)
    torch.set_rng_state(state["generator.cpu"])
    if step.iteration.is_cuda and "generator.cuda" in state:
        torch.cuda.set_rng_state(state["generator.cuda"], device)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
