"""What runs a network: torch itself, captured CUDA graphs, ONNX Runtime or OpenVINO, all behind one protocol.

ONNX Runtime and OpenVINO are optional and imported when they are first used. The graphs are in `replay`.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from fheat.inference.compilable import compilable
from fheat.inference.replay import Precision, Replay, checked_precision
from fheat.system.errors import BadInput

RuntimeName = Literal["auto", "torch", "onnx", "openvino"]
Forward = Callable[[Tensor], Tensor]

FASTEST: Final = "openvino"
"""CPU runtime that `auto` uses, read off `benchmarks/results/scan-cpu.json`; a test compares the two."""
PACKAGES: Final = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
VOXELS_WORTH_COMPILING: Final = 50_000_000
"""Number of window voxels from which on `auto` compiles: about one scan with dense windows. Compiling takes seconds."""
LARGEST_ERROR: Final = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest accepted difference from torch on noise, relative to the output's largest value, by precision. A runtime that
miscompiles a network is off by far more."""


class Runtime(Protocol):
    """Something that runs one network. Maps windows (B, C, X, Y, Z) to logits (B, K, X, Y, Z).

    The result is valid until the next call.
    """

    @property
    def name(self) -> str:
        """What runs the next window: `torch`, `onnx` or `openvino`."""

    @property
    def precision(self) -> str:
        """Precision of the next window: `float32` or `bfloat16`; `auto` where the first windows will decide it."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""

    def expect(self, voxels: int) -> None:
        """Take note of how many voxels of windows come next, which replaces what was said before."""

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do now what the first window of this shape, (C, X, Y, Z), would have to wait for."""


class TorchRuntime:
    """The network as it is, in float32, on any device; see `Runtime`."""

    name = "torch"
    precision = "float32"

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        return cast(Tensor, self.network(x))

    def expect(self, voxels: int) -> None:
        """Ignore the number: torch runs one window as readily as many."""

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do nothing: torch is always ready."""


class CompiledRuntime:
    """A network compiled for a CPU by ONNX Runtime or OpenVINO, when the first window of a size comes; see `Runtime`.

    Each compiled network is compared with the network itself on a window of noise before it is used. Where it cannot be
    compiled or differs, `BadInput` says so. With `automatic` the network itself runs until `VOXELS_WORTH_COMPILING` are
    done or known to come, and also, after one warning, where it cannot be compiled.

    Args:
        network: what is compiled, on the CPU and in evaluation mode.
        compiler: `onnx` or `openvino`.
        automatic: run by torch where compiling does not pay or fails.
        precision: bfloat16 is for OpenVINO. With an open gate it was not measured to be faster, so `auto` is float32.
        batch: number of windows that come together.
    """

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
        self._compiler = compiler
        self._precision = "bfloat16" if precision == "bfloat16" else "float32"
        self._batch = batch
        self._voxels_done = self._voxels_to_come = 0
        self._compiled: dict[tuple[int, ...], Forward] = {}
        self._failed = False

    @property
    def name(self) -> str:
        """What runs the next window."""
        waiting = self.automatic and self._voxels_done + self._voxels_to_come < VOXELS_WORTH_COMPILING
        return "torch" if waiting or self._failed else self._compiler

    @property
    def precision(self) -> str:
        """Precision of the next window."""
        return "float32" if self.name == "torch" else self._precision

    def expect(self, voxels: int) -> None:
        """Take note of how many voxels of windows come next, which decides whether compiling pays."""
        self._voxels_to_come = voxels

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        voxels = x.numel() // x.shape[1]
        self._voxels_done, self._voxels_to_come = self._voxels_done + voxels, max(self._voxels_to_come - voxels, 0)
        shape = tuple(x.shape[1:])
        self.prepare(shape)
        return cast(Tensor, self.network(x) if self.name == "torch" else self._compiled[shape](x.float()))

    @torch.no_grad()
    def prepare(self, shape: tuple[int, ...]) -> None:
        """Compile the network for windows of this shape, (C, X, Y, Z), unless it is compiled or torch runs them."""
        if self.name == "torch" or shape in self._compiled:
            return
        try:
            self._compiled[shape] = self._compile(shape)
        except Exception as error:  # exporters and compilers raise whatever they like
            reason = f"cannot run this network ({_first_line(error)})"
            if not self.automatic:
                raise BadInput(self._compiler, reason, "use the runtime torch") from None
            warnings.warn(f"{self._compiler} {reason}: torch runs it, slower", stacklevel=3)
            self._failed = True

    def _compile(self, shape: tuple[int, ...]) -> Forward:
        noise = torch.Generator().manual_seed(0)
        example, other = (torch.randn((1, *shape), generator=noise) for _ in range(2))
        run = COMPILERS[self._compiler](compilable(self.network), example, self._precision, self._batch)
        expected = self.network(other)  # not of the example: a trace may have made its output a constant
        error = float((run(other) - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if not error <= LARGEST_ERROR[self._precision]:
            raise RuntimeError(f"its output is off by {error:.1g} of the largest value")
        return run


def compile_onnx(network: nn.Module, example: Tensor, precision: str, batch: int) -> Forward:
    """Return an ONNX Runtime session of the network for the example's shape; windows of a batch run one by one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(onnx_bytes(network, example), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Tensor:
        return torch.cat([torch.from_numpy(session.run(None, {name: window.numpy()})[0]) for window in x.unsqueeze(1)])

    return run


def onnx_bytes(network: nn.Module, example: Tensor) -> bytes:
    """Return the network as the content of an ONNX file for inputs of the example's shape."""
    content: bytes = onnx_model(network, example).SerializeToString()
    return content


def onnx_model(network: nn.Module, example: Tensor, **options: Any) -> Any:
    """Return the network as an `onnx.ModelProto` for inputs of the example's shape, or as `torch.onnx.export` is told.

    The options are those of `torch.onnx.export`, such as `dynamic_shapes`.
    """
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it remarks on packages that the network does not need
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(network, (example,), dynamo=True, verbose=False, **options)
    finally:
        logger.setLevel(level)
    assert program is not None
    return program.model_proto


def compile_openvino(network: nn.Module, example: Tensor, precision: str, batch: int) -> Forward:
    """Return the network traced, converted and compiled by OpenVINO for the example's shape, `batch` at a time.

    Two windows on one thread each are faster than one after the other on two: threads need not wait for each other.
    """
    import openvino

    threads = torch.get_num_threads()
    options = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": min(batch, threads),
    }
    compiled = openvino.Core().compile_model(openvino_model(network, example), "CPU", options)
    requests = [compiled.create_infer_request() for _ in range(min(batch, threads))]
    shape = tuple(requests[0].get_output_tensor(0).shape)[1:]

    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        output = torch.empty(len(x), *shape)
        for first in range(0, len(x), len(requests)):
            part = slice(first, first + len(requests))
            busy = list(zip(requests, x[part], output[part], strict=False))
            for request, window, place in busy:
                request.set_input_tensor(0, openvino.Tensor(window[None].numpy(), shared_memory=True))
                request.set_output_tensor(0, openvino.Tensor(place[None].numpy(), shared_memory=True))
                request.start_async()
            for request, _, _ in busy:
                request.wait()
        return output

    return run


def openvino_model(network: nn.Module, example: Tensor, shape: Sequence[int] | None = None) -> Any:
    """Convert a traced network; not by `openvino.convert_model`, which reports its use over the network.

    The model takes inputs of this shape, where -1 is any length; by default of the example's.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what a trace turns into constants: the shape is fixed
        traced = torch.jit.trace(network, (example,), check_trace=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # needs a name, as the front end does not keep it alive
        model = frontend.convert(frontend.load(decoder))
    model.reshape(list(example.shape if shape is None else shape))
    return model


COMPILERS: Final[dict[str, Callable[[nn.Module, Tensor, str, int], Forward]]] = {
    "onnx": compile_onnx,
    "openvino": compile_openvino,
}
"""Functions that compile a network for the shape of an example, in a precision, for batches of a size."""


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
    """Return what runs the network; `auto` compiles where that was measured to be faster.

    On a GPU the launches of the network are replayed, in half precision where that keeps the classes; see `Replay`.
    """
    if name not in get_args(RuntimeName):
        raise ValueError(f"runtime={name!r} is unknown: use one of {', '.join(get_args(RuntimeName))}")
    if device.type == "cuda" and name in ("auto", "torch"):
        return Replay(network, precision, regions=regions, groups=groups)
    usable = device.type == "cpu" and not missing_packages(FASTEST)
    if checked_precision(precision) == "bfloat16" and (name in ("torch", "onnx") or not usable):
        raise ValueError(f"precision 'bfloat16' is for GPUs and OpenVINO: use float32 with {name} on {device}")
    if name == "torch" or (name == "auto" and not usable):
        return TorchRuntime(network)
    if name == "auto":
        return CompiledRuntime(network, FASTEST, automatic=True, precision=precision, batch=batch)
    if device.type != "cpu":
        raise ValueError(f"runtime {name!r} runs on the CPU: use --device cpu, or --runtime torch on {device}")
    missing = missing_packages(name)
    if missing:
        raise BadInput(name, f"needs the package {missing[0]}", 'pip install "fheat[export]"')
    return CompiledRuntime(network, name, precision=precision, batch=batch)


def missing_packages(runtime: str) -> list[str]:
    """Return the packages that a runtime needs and that are not installed."""
    return [name for name in PACKAGES[runtime] if find_spec(name) is None]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
