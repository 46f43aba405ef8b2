"""ONNX Runtime: the network exported to ONNX in memory."""

import logging
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn


def build(
    network: nn.Module, example: Tensor, *, precision: Literal["float32"] = "float32", together: int = 1
) -> Callable[[Tensor], Tensor]:
    """Return a session of the network for batches of inputs of the example's shape, which run one by one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(onnx_bytes(network, example), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Tensor:
        return torch.cat([torch.from_numpy(session.run(None, {name: window.numpy()})[0]) for window in x.unsqueeze(1)])

    return run


def onnx_bytes(network: nn.Module, example: Tensor) -> bytes:
    """Return the network as an ONNX file for inputs of the example's shape."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it remarks on packages that the network does not need
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(network, (example,), dynamo=True, verbose=False)
    finally:
        logger.setLevel(level)
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content
