"""One predictor, many threads: the masks of calls one after the other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fheat import Predictor, create_model
from fheat.inference.runtimes import missing_packages
from fheat.inference.windows import Windows

SIZE = (16, 16, 16)


@pytest.mark.parametrize("runtime", ["torch", "onnx", "openvino"])
def test_sixteen_calls_from_eight_threads(runtime):
    if runtime != "torch" and missing_packages(runtime):
        pytest.skip(f"{runtime} is not installed")
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=SIZE).eval()
    predictor = Predictor(network, windows=Windows(SIZE, (8, 8, 8)), device="cpu", runtime=runtime, batch=3)
    noise = np.random.default_rng(0)
    scans = [noise.normal(size=(16 + 2 * (number % 5), 20, 24)).astype(np.float32) for number in range(16)]
    expected = [predictor.segment(scan) for scan in scans]
    assert len({mask.tobytes() for mask in expected}) == 16
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(predictor.segment, scans))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
