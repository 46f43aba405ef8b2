"""OpenVINO: the network traced, converted and compiled in memory."""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn


def build(
    network: nn.Module, example: Tensor, *, precision: Literal["float32", "bfloat16"] = "float32"
) -> Callable[[Tensor], Tensor]:
    """Return the compiled network for inputs of the example's shape."""
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
    options = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
    }
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    shape = tuple(request.get_output_tensor(0).shape)

    def run(x: Tensor) -> Tensor:
        output = torch.empty(shape)
        request.set_input_tensor(0, openvino.Tensor(x.contiguous().numpy(), shared_memory=True))
        request.set_output_tensor(0, openvino.Tensor(output.numpy(), shared_memory=True))
        request.infer()
        return output

    return run
