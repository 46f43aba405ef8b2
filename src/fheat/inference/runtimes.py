"""CPU runtimes behind one option: what runs the retired network on a processor."""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal, cast, get_args

import torch
from torch import Tensor, nn

from fheat.errors import BadInput
from fheat.models.compilable import compilable

Runtime = Literal["auto", "torch", "onnx", "openvino"]
Run = Callable[[Tensor], Tensor]

FASTEST: Final = "openvino"
"""What `auto` takes: read off `benchmarks/results/scan-cpu.json`; a test holds the two together."""
PACKAGES: Final = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
WORTH: Final = 50_000_000
"""Voxels of windows from which on `auto` compiles: about one scan with dense windows. Compiling takes seconds."""
_LARGEST_ERROR = 1e-3
"""Of the output's largest value, on noise; a runtime that miscompiles a network is off by far more."""


class CompiledNetwork:
    """A network on a CPU runtime, compiled for a window size when the first one comes.

    Maps (B, C, X, Y, Z) to (B, K, X, Y, Z), float32, window by window. Each compiled network is compared with the
    network itself on a window of noise before it is used. Where it cannot be compiled or differs, `BadInput` says so.
    With `automatic` the network itself runs until `WORTH` voxels are done or known to come, and also, after one
    warning, where it cannot be compiled.
    """

    def __init__(self, network: nn.Module, runtime: str, *, automatic: bool = False) -> None:
        self.network, self.automatic = network, automatic
        self._runtime = runtime
        self._done = self._coming = 0
        self._runs: dict[tuple[int, ...], Run] = {}

    @property
    def runtime(self) -> str:
        """What runs the next window."""
        waiting = self.automatic and self._done + self._coming < WORTH
        return "torch" if waiting else self._runtime

    def expect(self, voxels: int) -> None:
        """Say how many voxels of windows come next, in place of what was said before."""
        self._coming = voxels

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        voxels = x.numel() // x.shape[1]
        self._done, self._coming = self._done + voxels, max(self._coming - voxels, 0)
        run = self.compiled(tuple(x.shape[1:]))
        if run is self.network:
            whole: Tensor = run(x)
            return whole
        return torch.cat([run(window) for window in x.float().contiguous().unsqueeze(1)])

    @torch.no_grad()
    def compiled(self, shape: tuple[int, ...]) -> Run:
        """Return what maps windows of this shape, (C, X, Y, Z): the network itself, or its compiled form."""
        if self.runtime == "torch":
            return cast(Run, self.network)
        if shape not in self._runs:
            try:
                self._runs[shape] = self._build(shape)
            except Exception as error:  # exporters and compilers raise whatever they like
                reason = f"cannot run this network ({_first_line(error)})"
                if not self.automatic:
                    raise BadInput(self._runtime, reason, "use the runtime torch") from None
                warnings.warn(f"{self._runtime} {reason}: torch runs it, slower", stacklevel=3)
                self._runtime = "torch"
                return cast(Run, self.network)
        return self._runs[shape]

    def _build(self, shape: tuple[int, ...]) -> Run:
        noise = torch.Generator().manual_seed(0)
        example, other = (torch.randn((1, *shape), generator=noise) for _ in range(2))
        build: Callable[[nn.Module, Tensor], Run] = import_module(f"fheat.inference.{self._runtime}_runtime").build
        run = build(compilable(self.network), example)
        expected = self.network(other)  # a trace may have made the example's output a constant
        error = float((run(other) - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if not error <= _LARGEST_ERROR:
            raise RuntimeError(f"its output is off by {error:.1g} of the largest value")
        return run


def on_runtime(network: nn.Module, runtime: Runtime, device: torch.device) -> nn.Module | CompiledNetwork:
    """Return what runs the network: itself, or compiled. `auto` compiles where that was measured to be faster."""
    if runtime not in get_args(Runtime):
        raise ValueError(f"runtime={runtime!r} is unknown: use one of {', '.join(get_args(Runtime))}")
    if runtime == "auto":
        usable = device.type == "cpu" and not missing_packages(FASTEST)
        return CompiledNetwork(network, FASTEST, automatic=True) if usable else network
    if runtime == "torch":
        return network
    if device.type != "cpu":
        raise ValueError(f"runtime {runtime!r} runs on the CPU: use --device cpu, or --runtime torch on {device}")
    missing = missing_packages(runtime)
    if missing:
        raise BadInput(runtime, f"needs the package {missing[0]}", 'pip install "fheat[export]"')
    return CompiledNetwork(network, runtime)


def missing_packages(runtime: str) -> list[str]:
    """Return the packages that a runtime needs and that are not installed."""
    return [name for name in PACKAGES[runtime] if find_spec(name) is None]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
