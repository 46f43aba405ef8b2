"""Runtimes of a network: torch itself, captured CUDA graphs, ONNX Runtime or OpenVINO, all behind one protocol.

ONNX Runtime and OpenVINO are optional and imported when they are first used; they are in `compilers`. The graphs are in
`replay`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Final, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from fheat.inference.compilers import Forward, OpenVinoNetwork, compiled_before, compiled_network
from fheat.inference.replay import Precision, Replay, checked_precision
from fheat.inference.work import WindowVoxels, macs_per_voxel
from fheat.system.errors import BadInput, first_line
from fheat.system.machine import lacks_bfloat16

RuntimeName = Literal["auto", "torch", "onnx", "openvino"]

FASTEST: Final = "openvino"
"""CPU runtime that `auto` uses, read off `benchmarks/results/scan-cpu.json`; a test compares the two."""
PACKAGES: Final = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
VOXELS_WORTH_COMPILING: Final = 100_000_000
"""Number of window voxels from which on `auto` compiles: about two scans with dense windows. Compiling FHEAT-Seg takes
7.5 s of a processor and saves 0.08 s of it with every window of a million voxels: as much after 94 of them. What was
compiled is kept on disk, and then opened for any number."""
MACS_WORTH_COMPILING: Final = 100_000_000_000
"""Number of multiply-adds from which on `auto` compiles, too: those of FHEAT-Seg on so many voxels."""


class UnusableRuntime(BadInput):
    """A network that the runtime asked for cannot run: no scan is to blame, and none can be segmented."""


Each = Callable[[Iterable[Tensor]], Iterator[Tensor]]
"""A function that maps windows (1, C, X, Y, Z) in order; each result is valid until the next one is asked for."""


class Runtime(Protocol):
    """Something that runs one network. Maps windows (B, C, X, Y, Z) to logits (B, K, X, Y, Z).

    The result is valid until the next call.
    """

    @property
    def name(self) -> str:
        """Name of the runtime of the next window: `torch`, `onnx` or `openvino`."""

    @property
    def precision(self) -> str:
        """Precision of the next window: `float32` or `bfloat16`; `auto` where the first windows will decide it."""

    @property
    def each(self) -> Each | None:
        """A function for windows one by one, faster than batches of them; None where batches are not slower."""

    @property
    def kernel_bytes(self) -> int:
        """Bytes of this machine's memory that kernels and graphs, which the first windows build, may take."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""

    def rehearse(self, x: Tensor) -> Tensor:
        """Take the memory of a call, and return a tensor like its result; its numbers may be any."""

    def expect(self, voxels: int, shape: tuple[int, ...]) -> None:
        """Take note of how many voxels of windows of a shape, (C, X, Y, Z), come next, in place of what was said."""

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do now what the first window of this shape, (C, X, Y, Z), would have to wait for."""


class TorchRuntime:
    """The network as it is, in float32, on any device; see `Runtime`."""

    name = "torch"
    precision = "float32"
    each = None
    kernel_bytes = 0

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        return cast(Tensor, self.network(x))

    def rehearse(self, x: Tensor) -> Tensor:
        """Map the batch: torch says what memory it takes by taking it."""
        return self(x)

    def expect(self, voxels: int, shape: tuple[int, ...]) -> None:
        """Ignore the number: torch runs one window as readily as many."""

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do nothing: torch is always ready."""


class CompiledRuntime:
    """A network compiled for a CPU by ONNX Runtime or OpenVINO, when the first window of a size comes; see `Runtime`.

    Each compiled network is compared with the network itself on a window of noise before it is used. Where it cannot be
    compiled or differs, `UnusableRuntime` says so, for later windows of this shape without another attempt. With
    `automatic` the network itself runs until `VOXELS_WORTH_COMPILING` or `MACS_WORTH_COMPILING` are done or known to
    come, and also, after one warning, where it cannot be compiled. What was compiled and compared is kept on disk for
    the next process, see `fheat.inference.compilers`; that is opened for any number of windows.

    Args:
        network: what is compiled, on the CPU and in evaluation mode.
        compiler: `onnx` or `openvino`.
        automatic: run by torch where compiling does not pay or fails.
        precision: bfloat16 is for OpenVINO; `auto` is float32, which keeps the masks of torch.
        batch: number of windows that come together.
    """

    kernel_bytes = 0

    def __init__(
        self,
        network: nn.Module,
        compiler: str,
        *,
        automatic: bool = False,
        precision: Precision = "auto",
        batch: int = 1,
    ) -> None:
        self.network, self.automatic = network, automatic
        self.compiler = compiler
        self._precision = "bfloat16" if precision == "bfloat16" else "float32"
        self._batch = batch
        self._voxels = WindowVoxels()
        self._compiled: dict[tuple[int, ...], Forward] = {}
        self._kept: dict[tuple[int, ...], bool] = {}
        self._macs: dict[tuple[int, ...], float] = {}
        self._shape: tuple[int, ...] | None = None
        self._failures: dict[tuple[int, ...], str] = {}

    @property
    def name(self) -> str:
        """Name of the runtime of the next window; with `automatic`, `torch` where compiling does not pay or fails."""
        waiting = self.automatic and not self._is_much() and not self._only_opens()
        failed = self.automatic and bool(self._failures)
        return "torch" if waiting or failed else self.compiler

    @property
    def precision(self) -> str:
        """Precision of the next window."""
        return "float32" if self.name == "torch" else self._precision

    def _is_much(self) -> bool:
        """Return whether the windows that are done and those to come are worth compiling the network."""
        voxels = self._voxels.total
        work = 0.0 if self._shape is None else voxels * self._macs.get(self._shape, 0.0)
        return voxels >= VOXELS_WORTH_COMPILING or work >= MACS_WORTH_COMPILING

    def _only_opens(self) -> bool:
        """Return whether windows of the shape that comes next need no compiling, here or by an earlier process."""
        shape = self._shape
        if shape is None or shape in self._compiled:
            return shape is not None
        if shape not in self._kept:
            plan = shape, self._precision, self._batch
            self._kept[shape] = compiled_before(self.compiler, self.network, *plan)
        return self._kept[shape]

    def expect(self, voxels: int, shape: tuple[int, ...]) -> None:
        """Take note of how many voxels of windows of a shape come next, which decides whether compiling pays.

        The first time, the network is run on a small window to see how much it computes.
        """
        self._voxels.expect(voxels)
        self._shape = shape
        if self.automatic and shape not in self._macs and not self._is_much() and not self._only_opens():
            self._macs[shape] = macs_per_voxel(self.network, shape)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        self._voxels.take(x)
        shape = tuple(x.shape[1:])
        self.prepare(shape)
        return cast(Tensor, self.network(x) if self.name == "torch" else self._compiled[shape](x.float()))

    def rehearse(self, x: Tensor) -> Tensor:
        """Take the memory of a call; what OpenVINO compiled need not compute for that."""
        shape = tuple(x.shape[1:])
        self.prepare(shape)
        run = None if self.name == "torch" else self._compiled[shape]
        return run.rehearse(x.float()) if isinstance(run, OpenVinoNetwork) else self(x)

    @property
    def each(self) -> Each | None:
        """A function for windows one by one, where what runs the next window has one."""
        run = None if self._shape is None or self.name == "torch" else self._compiled.get(self._shape)
        if not isinstance(run, OpenVinoNetwork):
            return None
        return lambda windows: run.each(map(self._voxels.take, windows))

    @torch.no_grad()
    def prepare(self, shape: tuple[int, ...]) -> None:
        """Compile the network for windows of this shape, (C, X, Y, Z), unless it is compiled or torch runs them."""
        self._shape = shape
        if self.name == "torch" or shape in self._compiled:
            return
        if shape not in self._failures:
            try:
                plan = shape, self._precision, self._batch
                self._compiled[shape] = compiled_network(self.compiler, self.network, *plan)
                return
            except Exception as error:  # exporters and compilers raise whatever they like
                self.network(torch.zeros(1, *shape))  # which raises where such windows are not for this network
                self._failures[shape] = f"cannot run this network ({first_line(error)})"
            if self.automatic:
                warnings.warn(f"{self.compiler} {self._failures[shape]}: torch runs it, slower", stacklevel=3)
        if not self.automatic:
            remedy = "use --precision float32" if self._precision == "bfloat16" else "use the runtime torch"
            raise UnusableRuntime(self.compiler, self._failures[shape], remedy)


def choose_runtime(
    network: nn.Module,
    name: RuntimeName,
    device: torch.device,
    precision: Precision = "auto",
    *,
    batch: int = 1,
    regions: bool = False,
    groups: int = 1,
) -> Runtime:
    """Return the runtime of a network; `auto` compiles where that was measured to be faster, and on a CPU for bfloat16.

    On a GPU the launches of the network are replayed, in half precision where that keeps the classes; see `Replay`.
    """
    if name not in get_args(RuntimeName):
        raise ValueError(f"runtime={name!r} is unknown: use one of {', '.join(get_args(RuntimeName))}")
    if device.type == "cuda" and name in ("auto", "torch"):
        return Replay(network, precision, batch=batch, regions=regions, groups=groups)
    usable = device.type == "cpu" and not missing_packages(FASTEST)
    if checked_precision(precision) == "bfloat16" and (name in ("torch", "onnx") or not usable):
        raise ValueError(f"precision 'bfloat16' is for GPUs and OpenVINO: use float32 with {name} on {device}")
    if name == "torch" or (name == "auto" and not usable):
        return TorchRuntime(network)
    if precision == "bfloat16" and lacks_bfloat16():
        warnings.warn("this processor has no bfloat16 and imitates it: float32 is faster", stacklevel=2)
    if name == "auto":
        automatic = precision != "bfloat16"  # which torch would not run
        return CompiledRuntime(network, FASTEST, automatic=automatic, precision=precision, batch=batch)
    if device.type != "cpu":
        raise ValueError(f"runtime {name!r} runs on the CPU: use --device cpu, or --runtime torch on {device}")
    missing = missing_packages(name)
    if missing:
        raise BadInput(name, f"needs the package {missing[0]}", 'pip install "fheat[export]"')
    return CompiledRuntime(network, name, precision=precision, batch=batch)


def missing_packages(runtime: str) -> list[str]:
    """Return the packages that a runtime needs and that are not installed."""
    return [name for name in PACKAGES[runtime] if find_spec(name) is None]
