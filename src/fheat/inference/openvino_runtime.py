"""OpenVINO: the network traced, converted and compiled in memory."""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn


def build(
    network: nn.Module, example: Tensor, *, precision: Literal["float32", "bfloat16"] = "float32", together: int = 1
) -> Callable[[Tensor], Tensor]:
    """Return the compiled network for batches of inputs of the example's shape, so many of them `together`.

    Two windows on one thread each are faster than one after the other on two: threads need not wait for each other.
    """
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    # Not openvino.convert_model, which reports its use over the network.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what a trace turns into constants: the shape is fixed
        traced = torch.jit.trace(network, (example,), check_trace=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # a name, as the front end does not keep it alive
        model = frontend.convert(frontend.load(decoder))
    model.reshape(list(example.shape))
    threads = torch.get_num_threads()
    options = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": min(together, threads),
    }
    compiled = openvino.Core().compile_model(model, "CPU", options)
    requests = [compiled.create_infer_request() for _ in range(min(together, threads))]
    shape = tuple(requests[0].get_output_tensor(0).shape)[1:]

    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        output = torch.empty(len(x), *shape)
        for first in range(0, len(x), len(requests)):
            part = slice(first, first + len(requests))
            busy = list(zip(requests, x[part], output[part], strict=False))
            for request, window, found in busy:
                request.set_input_tensor(0, openvino.Tensor(window[None].numpy(), shared_memory=True))
                request.set_output_tensor(0, openvino.Tensor(found[None].numpy(), shared_memory=True))
                request.start_async()
            for request, _, _ in busy:
                request.wait()
        return output

    return run
