"""The dataflow of one forward pass: which layers and functions ran, on which shapes, and whose results they took.

Layers are seen by hooks and functions of torch by a function mode, so the network is run as it is. Residuals and skips
are functions with two sources.
"""

from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from fheat.gates.dry_run import GateCall, record_calls, run_on_copy

Shape = tuple[int, ...]
_CONVOLUTIONS = nn.Conv3d, nn.ConvTranspose3d


@dataclass(frozen=True)
class Step:
    """One step of a forward pass: an input, a parameter that a function takes, a layer, or a function."""

    kind: str
    """`input`, `parameter`, the class of the layer (of a convolution that of torch), or the name of the function."""
    path: str
    """Path of the layer or parameter; empty for an input and a function."""
    caller: str
    """Path of the module in whose `forward` the step happened; empty for the network itself."""
    taken: Shape
    """Shape of the first tensor that the step took."""
    shape: Shape
    """Shape of the first tensor that it returned."""
    sources: tuple[int, ...]
    """Numbers of the steps whose results it took, in order."""
    kernel: Shape = ()
    """Lengths of the kernel of a convolution."""
    groups: int = 1
    """Number of groups of a convolution."""


@dataclass
class Trace:
    """The steps of a forward pass in order, and the calls of every module and of every gate."""

    steps: list[Step] = field(default_factory=list)
    calls: dict[str, list[range]] = field(default_factory=dict)
    """Numbers of the steps inside each call, by the path of the module. A layer that is one step is not listed."""
    gate_calls: dict[str, list[GateCall]] = field(default_factory=dict)
    """Calls of every gate, by site."""


def trace(model: nn.Module, inputs: tuple[Tensor, ...], whole: Collection[str] = ()) -> Trace:
    """Return the steps of one forward pass on inputs of these shapes, in evaluation mode; the network is not changed.

    Args:
        model: any network.
        inputs: example inputs, see `fheat.gates.dry_run.example_inputs`.
        whole: paths of modules that count as one step although they consist of several layers.
    """

    def run(copied: nn.Module, inputs: tuple[Tensor, ...]) -> Trace:
        recorder = _Recorder(copied, whole)
        recorder.trace.gate_calls = record_calls(copied)
        for value in inputs:
            recorder.add("input", "", (), value)
        with recorder:
            copied(*inputs)
        return recorder.trace

    return run_on_copy(model, inputs, run)


class _Recorder(TorchFunctionMode):
    """Sees every function of torch, and through hooks the calls of every module."""

    def __init__(self, model: nn.Module, whole: Collection[str]) -> None:
        super().__init__()
        self.trace = Trace()
        self.running: list[tuple[str, int]] = [("", 0)]  # path of each module that runs, and its first step
        self.in_layer = 0  # number of layers that run; what happens inside a layer is not recorded
        self.maker: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()  # step that made each living tensor
        self.parameter_path = {id(value): path for path, value in model.named_parameters()}
        for path, module in model.named_modules():
            if path and (path in whole or not any(True for _ in module.children())):
                module.register_forward_pre_hook(self._enter_layer)
                module.register_forward_hook(self._leave_layer(path), with_kwargs=True)
            elif path:
                module.register_forward_pre_hook(self._enter(path))
                module.register_forward_hook(self._leave)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.in_layer and any(True for _ in _tensors(result)):
            self.add(func.__name__.strip("_"), "", (args, kwargs), result)
        return result

    def add(self, kind: str, path: str, taken: Any, result: Any, kernel: Shape = (), groups: int = 1) -> None:
        """Record a step that took and returned these values; values other than tensors do not matter."""
        values = list(_tensors(taken))
        sources = tuple(number for value in values if (number := self._source(value)) is not None)
        results = list(_tensors(result))
        taken_shape, shape = (tuple(each[0].shape) if each else () for each in (values, results))
        for value in results:
            self.maker[value] = len(self.trace.steps)
        caller, _ = self.running[-1]
        self.trace.steps.append(Step(kind, path, caller, taken_shape, shape, sources, kernel, groups))

    def _source(self, value: Tensor) -> int | None:
        """Return the number of the step that made a tensor; a parameter becomes a step when it is first taken."""
        if value not in self.maker and id(value) in self.parameter_path:
            self.add("parameter", self.parameter_path[id(value)], (), value)
        return self.maker.get(value)

    def _enter(self, path: str) -> Any:
        return lambda module, inputs: self.running.append((path, len(self.trace.steps)))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        path, first = self.running.pop()
        self.trace.calls.setdefault(path, []).append(range(first, len(self.trace.steps)))

    def _enter_layer(self, module: nn.Module, inputs: Any) -> None:
        self.in_layer += 1

    def _leave_layer(self, path: str) -> Any:
        def leave(module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
            self.in_layer -= 1
            if not self.in_layer:
                kernel = getattr(module, "kernel_size", ())
                sizes = tuple(kernel) if isinstance(kernel, tuple) else ()
                self.add(_kind(module), path, (inputs, named), output, sizes, getattr(module, "groups", 1))

        return leave


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, in order, also those inside lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _kind(module: nn.Module) -> str:
    """Return what a layer is called: a convolution with a fast path of its own is still a convolution."""
    return next((kind.__name__ for kind in _CONVOLUTIONS if isinstance(module, kind)), type(module).__name__)
