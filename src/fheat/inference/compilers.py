"""Networks compiled for a CPU by ONNX Runtime or OpenVINO, and kept on disk for the next process.

Compiling takes two steps: `build` turns the network into bytes, which takes seconds, and `open` turns the bytes into a
function. Bytes are kept in the cache only after the function was compared with the network, under a key of all that
they depend on: weights, layers and their options, the shape of the windows, precision and threads, the source code of
fheat that describes networks, the versions of the libraries, and the processor.
"""

import hashlib
import logging
import platform
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from fheat.inference.ahead import Kept, forget_ahead, taken_ahead
from fheat.inference.channels_last import channels_last
from fheat.inference.compilable import compilable, with_precise_norms
from fheat.inference.ledger import options_text, weights_digest
from fheat.inference.opening import Plan, opened_requests, openvino_options, run_first_windows
from fheat.nn.layers import has_hooks
from fheat.system.cache import is_cached, read_cached, write_cached
from fheat.system.imports import import_openvino, openvino_core
from fheat.system.machine import installed_version, processor_features
from fheat.system.threads import one_thread, usual_threads

Forward = Callable[[Tensor], Tensor]

LARGEST_ERROR: Final = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest accepted difference from torch on noise, relative to the output's largest value, by precision. A runtime that
miscompiles a network is off by far more."""
KNOWN_SOURCES: Final = ("fheat", "torch", "monai")
"""Packages whose layers are described by their versions; the code of other layers may change under the same name."""


class Compiler(NamedTuple):
    """Two functions: a form of the network as bytes for an example and a plan, and bytes as something that runs.

    The forms are tried in turn until one compiles and computes what the network does; one may not know a network, and
    say so by None.
    """

    build: Callable[[nn.Module, Tensor, Plan], bytes]
    open: Callable[[bytes, Plan], Forward]
    forms: tuple[Callable[[nn.Module], nn.Module | None], ...] = (compilable,)


@torch.no_grad()
def compiled_network(name: str, network: nn.Module, shape: tuple[int, ...], precision: str, batch: int) -> Forward:
    """Return a network as a compiler runs it on windows of a shape, (C, X, Y, Z), from the cache where it is there.

    A network that is compiled now is compared with itself on noise; where every form differs, that raises
    `RuntimeError`.
    """
    plan, compiler = Plan(shape, precision, batch, usual_threads()), COMPILERS[name]
    kind, key = _kind(name, network), _key(plan)
    opened = taken_ahead(Kept(kind, key, plan)) if name == "openvino" and kind is not None else None
    if opened is not None:
        return OpenVinoNetwork(opened, ready=True)
    kept = None if kind is None else read_cached(kind, key)
    if kept is not None:
        try:
            return compiler.open(kept, plan)
        except Exception as reason:  # whatever a library says to bytes that it wrote itself: they are written anew
            logging.getLogger(__name__).debug("a kept network cannot be opened: %s", reason)
    noise = torch.Generator().manual_seed(0)
    example, other = (torch.randn((1, *shape), generator=noise) for _ in range(2))
    expected = network(other)  # not of the example: a trace may have made its output a constant
    failure: Exception = RuntimeError("there is no form of it")
    for form in compiler.forms:
        try:
            if (written := form(network)) is None:
                continue
            content = compiler.build(written, example, plan)
            run = compiler.open(content, plan)
            _check_equal(run(other), expected, LARGEST_ERROR[precision])
        except Exception as error:  # exporters and compilers raise whatever they like
            logging.getLogger(__name__).debug("a network cannot be compiled as %s: %s", form.__name__, error)
            failure = error
        else:
            if kind is not None:
                write_cached(kind, key, content)
            return run
    raise failure


def _check_equal(found: Tensor, expected: Tensor, most: float) -> None:
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    if not error <= most:
        raise RuntimeError(f"its output is off by {error:.1g} of the largest value")


def compiled_before(name: str, network: nn.Module, shape: tuple[int, ...], precision: str, batch: int) -> bool:
    """Return whether the cache has what `compiled_network` would compile, so that it need only be opened.

    Where it has not, what was opened ahead was something else.
    """
    kind = _kind(name, network)
    there = kind is not None and is_cached(kind, _key(Plan(shape, precision, batch, usual_threads())))
    if not there:
        forget_ahead()
    return there


def onnx_bytes(network: nn.Module, example: Tensor, plan: Plan) -> bytes:
    """Return the network as the content of an ONNX file for inputs of the example's shape."""
    content: bytes = onnx_model(network, example).SerializeToString()
    return content


def open_onnx(content: bytes, plan: Plan) -> Forward:
    """Return an ONNX Runtime session; windows of a batch run one by one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = plan.threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Tensor:
        return torch.cat([torch.from_numpy(session.run(None, {name: window.numpy()})[0]) for window in x.unsqueeze(1)])

    return run


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


def openvino_bytes(network: nn.Module, example: Tensor, plan: Plan) -> bytes:
    """Return the network traced, converted and compiled by OpenVINO for the example's shape, as it stores it."""
    model = openvino_model(network, example)
    compiled = openvino_core().compile_model(model, "CPU", openvino_options(plan))
    content: bytes = compiled.export_model().getvalue()
    return content


class OpenVinoNetwork:
    """A network that OpenVINO compiled, see `opened_requests`. Windows run singly, on one thread each, several at once.

    That is faster than one after the other on all threads, which would have to wait for each other. `ready` says that
    the first windows have run.
    """

    def __init__(self, requests: Sequence[Any], *, ready: bool = False) -> None:
        self._requests = requests
        self._ready = ready
        self._shape = tuple(requests[0].get_output_tensor(0).shape)[1:]

    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        output = torch.empty(len(x), *self._shape)
        with one_thread():
            for place, y in zip(output, self.each(window[None] for window in x), strict=True):
                place.copy_(y[0])
        return output

    def rehearse(self, x: Tensor) -> Tensor:
        """Take the memory of a call for as long as that would, and return a tensor like its result, of any numbers."""
        if not self._ready:
            run_first_windows(self._requests)
            self._ready = True
        output = torch.empty(len(x), *self._shape)
        results = [self._result(request) for request in self._requests]
        for at, place in enumerate(output):
            place.copy_(results[at % len(results)][0])
        return output

    def each(self, windows: Iterable[Tensor]) -> Iterator[Tensor]:
        """Map windows (1, C, X, Y, Z) in order, while later ones run; see `fheat.inference.runtimes.Each`."""
        for request in self._requests:
            with suppress(RuntimeError):  # of a round that was left
                request.wait()
        free, busy = list(self._requests), deque[Any]()
        try:
            for window in windows:
                if not free:
                    yield self._finished(busy[0])
                    free.append(busy.popleft())
                request = free.pop()
                request.get_input_tensor(0).data[...] = window.numpy()
                request.start_async()
                busy.append(request)
            while busy:
                yield self._finished(busy[0])
                busy.popleft()
        finally:
            for request in busy:
                request.wait()

    def _finished(self, request: Any) -> Tensor:
        request.wait()
        return self._result(request)

    def _result(self, request: Any) -> Tensor:
        return torch.from_numpy(request.get_output_tensor(0).data)


def open_openvino(content: bytes, plan: Plan) -> OpenVinoNetwork:
    """Return what OpenVINO compiled as something that runs."""
    return OpenVinoNetwork(opened_requests(content, plan))


def openvino_model(network: nn.Module, example: Tensor, shape: Sequence[int] | None = None) -> Any:
    """Convert a traced network; not by `openvino.convert_model`, which reports its use over the network.

    The model takes inputs of this shape, where -1 is any length; by default of the example's.
    """
    import_openvino()
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


COMPILERS: Final = {
    "onnx": Compiler(onnx_bytes, open_onnx),
    "openvino": Compiler(openvino_bytes, open_openvino, (channels_last, compilable, with_precise_norms)),
}
"""The compilers by the names of their runtimes."""


def _kind(compiler: str, network: nn.Module) -> str | None:
    """Return the name that the cache has for this network; None where its code is not known, or not all of it."""
    for module in network.modules():
        if type(module).__module__.split(".")[0] not in KNOWN_SOURCES:
            return None
        if has_hooks(module) or "forward_features" in vars(module):
            return None
    return f"{compiler}-{weights_digest(network, options_text(network)).hexdigest()[:16]}"


def _key(plan: Plan) -> str:
    versions = {
        name: installed_version(name) for name in ("torch", "monai", "numpy", "openvino", "onnx", "onnxruntime")
    }
    return hashlib.sha256(
        repr((plan, versions, _source_sha256(), platform.machine(), processor_features())).encode()
    ).hexdigest()


@cache
def _source_sha256() -> str:
    """Return the hash of the code that says what networks compute, which in a source tree changes under one version."""
    inference = Path(__file__).parent
    rooms = [sorted((inference.parent / room).glob("*.py")) for room in ("ops", "nn", "networks", "gates")]
    digest = hashlib.sha256()
    ensemble = inference.parent / "models" / "ensemble.py"
    names = ("channels_last", "compilable", "compilers", "opening")
    own = [*(inference / f"{name}.py" for name in names), ensemble]
    for file in [*own, *(file for room in rooms for file in room)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()
