"""CPU runtimes behind one option: what runs the retired network on a processor."""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal, cast, get_args

import torch
from torch import Tensor, nn

from fheat.inference.compilable import compilable
from fheat.inference.replay import Precision, Replay, checked_precision
from fheat.system.errors import BadInput

Runtime = Literal["auto", "torch", "onnx", "openvino"]
Forward = Callable[[Tensor], Tensor]

FASTEST: Final = "openvino"
"""What `auto` takes: read off `benchmarks/results/scan-cpu.json`; a test holds the two together."""
PACKAGES: Final = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
WORTH: Final = 50_000_000
"""Voxels of windows from which on `auto` compiles: about one scan with dense windows. Compiling takes seconds."""
_LARGEST_ERROR = {"float32": 1e-3, "bfloat16": 0.1}
"""Of the output's largest value, on noise; a runtime that miscompiles a network is off by far more."""


class CompiledNetwork:
    """A network on a CPU runtime, compiled for a window size when the first one comes.

    Maps (B, C, X, Y, Z) to (B, K, X, Y, Z), `batch` windows at a time where there are so many. Each compiled network is
    compared with the network itself on a window of noise before it is used. Where it cannot be compiled or differs,
    `BadInput` says so.
    With `automatic` the network itself runs until `WORTH` voxels are done or known to come, and also, after one
    warning, where it cannot be compiled.

    `precision` bfloat16 is for OpenVINO; with an open gate it was not measured to be faster, so auto is float32.
    """

    def __init__(
        self,
        network: nn.Module,
        runtime: str,
        *,
        automatic: bool = False,
        precision: Precision = "auto",
        batch: int = 1,
    ) -> None:
        self.network, self.automatic = network, automatic
        self._runtime = runtime
        self._precision = "bfloat16" if precision == "bfloat16" else "float32"
        self._batch = batch
        self._done = self._coming = 0
        self._runs: dict[tuple[int, ...], Forward] = {}

    @property
    def runtime(self) -> str:
        """What runs the next window."""
        waiting = self.automatic and self._done + self._coming < WORTH
        return "torch" if waiting else self._runtime

    @property
    def precision(self) -> str:
        """Of the next window."""
        return "float32" if self.runtime == "torch" else self._precision

    def expect(self, voxels: int) -> None:
        """Say how many voxels of windows come next, in place of what was said before."""
        self._coming = voxels

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        voxels = x.numel() // x.shape[1]
        self._done, self._coming = self._done + voxels, max(self._coming - voxels, 0)
        run = self.compiled(tuple(x.shape[1:]))
        return cast(Tensor, run(x) if run is self.network else run(x.float()))

    @torch.no_grad()
    def compiled(self, shape: tuple[int, ...]) -> Forward:
        """Return what maps windows of this shape, (C, X, Y, Z): the network itself, or its compiled form."""
        if self.runtime == "torch":
            return cast(Forward, self.network)
        if shape not in self._runs:
            try:
                self._runs[shape] = self._build(shape)
            except Exception as error:  # exporters and compilers raise whatever they like
                reason = f"cannot run this network ({_first_line(error)})"
                if not self.automatic:
                    raise BadInput(self._runtime, reason, "use the runtime torch") from None
                warnings.warn(f"{self._runtime} {reason}: torch runs it, slower", stacklevel=3)
                self._runtime = "torch"
                return cast(Forward, self.network)
        return self._runs[shape]

    def _build(self, shape: tuple[int, ...]) -> Forward:
        noise = torch.Generator().manual_seed(0)
        example, other = (torch.randn((1, *shape), generator=noise) for _ in range(2))
        build: Callable[..., Forward] = import_module(f"fheat.inference.{self._runtime}_runtime").build
        run = build(compilable(self.network), example, precision=self._precision, together=self._batch)
        expected = self.network(other)  # a trace may have made the example's output a constant
        error = float((run(other) - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if not error <= _LARGEST_ERROR[self._precision]:
            raise RuntimeError(f"its output is off by {error:.1g} of the largest value")
        return run


def on_runtime(
    network: nn.Module,
    runtime: Runtime,
    device: torch.device,
    precision: Precision = "auto",
    *,
    batch: int = 1,
    regions: bool = False,
) -> nn.Module | CompiledNetwork | Replay:
    """Return what runs the network: itself, or compiled. `auto` compiles where that was measured to be faster.

    On a GPU its launches are replayed, in half precision where that keeps the classes; see `Replay`.
    """
    if runtime not in get_args(Runtime):
        raise ValueError(f"runtime={runtime!r} is unknown: use one of {', '.join(get_args(Runtime))}")
    if device.type == "cuda" and runtime in ("auto", "torch"):
        return Replay(network, precision, regions=regions)
    usable = device.type == "cpu" and not missing_packages(FASTEST)
    if checked_precision(precision) == "bfloat16" and (runtime in ("torch", "onnx") or not usable):
        raise ValueError(f"precision 'bfloat16' is for GPUs and OpenVINO: use float32 with {runtime} on {device}")
    if runtime == "auto":
        return (
            CompiledNetwork(network, FASTEST, automatic=True, precision=precision, batch=batch) if usable else network
        )
    if runtime == "torch":
        return network
    if device.type != "cpu":
        raise ValueError(f"runtime {runtime!r} runs on the CPU: use --device cpu, or --runtime torch on {device}")
    missing = missing_packages(runtime)
    if missing:
        raise BadInput(runtime, f"needs the package {missing[0]}", 'pip install "fheat[export]"')
    return CompiledNetwork(network, runtime, precision=precision, batch=batch)


def missing_packages(runtime: str) -> list[str]:
    """Return the packages that a runtime needs and that are not installed."""
    return [name for name in PACKAGES[runtime] if find_spec(name) is None]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
