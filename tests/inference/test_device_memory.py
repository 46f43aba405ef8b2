"""How many windows run on a GPU at a time: all that it has room for, fewer where memory runs out. A CPU stands in."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fheat import Predictor
from fheat.inference import device_memory, replay, sliding
from fheat.inference.device_memory import batch_on, fitting_batch, graph_sizes, is_out_of_memory
from fheat.inference.memory import activation_bytes
from fheat.inference.replay import Replay
from fheat.io import Volume

GIB = 2**30
SHAPE = torch.Size([1, 4, 4, 4])


class Windows(nn.Module):
    """Two classes, and the number of windows of every call; more windows than `room` are too many."""

    def __init__(self, room=1000, error=None):
        super().__init__()
        self.room, self.seen = room, []
        self.error = error or torch.OutOfMemoryError("CUDA out of memory")

    def forward(self, x):
        self.seen.append(len(x))
        if len(x) > self.room:
            raise self.error
        return torch.cat([x, 2 * x], dim=1)


@pytest.fixture
def captured(monkeypatch):
    """Sizes of graphs, which are calls of the network here; every window is worth one."""
    sizes = []

    class Graph:
        def __init__(self, run):
            self.replay = run

    def capture(self, x, shape):
        source = torch.zeros(shape)
        source[: len(x)] = x
        result = self.network(source).clone()
        sizes.append(shape[0])
        return Graph(lambda: result.copy_(self.network(source))), source, result

    monkeypatch.setattr(replay, "VOXELS_WORTH_KERNELS", 0)
    monkeypatch.setattr(Replay, "_capture", capture)
    return sizes


@pytest.mark.parametrize(("batch", "sizes"), [(16, [4, 16]), (8, [2, 8]), (4, [1, 4]), (2, [1, 2]), (1, [1])])
def test_graphs_have_two_sizes(batch, sizes):
    assert graph_sizes(batch) == sizes


@pytest.mark.parametrize(
    ("free", "window", "fits"),
    [
        (139, 1.9, 16),  # FHEAT-Seg-L on an H200
        (139, 0.03, 16),
        (7.5, 0.03, 16),  # FHEAT-Seg on a card of 8 GiB
        (7.5, 0.44, 8),
        (7.5, 1.9, 2),
        (7.5, 3.0, 1),
        (1.0, 3.0, 1),  # which is tried all the same
    ],
)
def test_the_largest_batch_whose_graphs_fit(free, window, fits):
    found = fitting_batch(16, int(window * GIB), int(free * GIB))
    assert found == fits
    assert found == 1 or sum(graph_sizes(found)) * window <= device_memory.SHARE * free
    assert found == 16 or sum(graph_sizes(2 * found)) * window > device_memory.SHARE * free


@torch.no_grad()
@pytest.mark.parametrize(("batches", "sizes"), [((16, 3, 16, 1), [16]), ((3, 1, 4), [4]), ((3, 16, 3), [4, 16])])
def test_what_is_left_of_a_scan_fills_up_a_graph_that_is_there(batches, sizes, captured):
    run = Replay(Windows(), "float32", batch=16)
    for count in batches:
        x = torch.randn(count, *SHAPE)
        assert torch.equal(run(x), torch.cat([x, 2 * x], dim=1))
    assert captured == sizes


@torch.no_grad()
@pytest.mark.parametrize(("windows", "sizes"), [(29, [16]), (28, [16, 4]), (13, [16, 4])])
def test_a_graph_is_filled_up_until_a_smaller_one_pays(windows, sizes, captured, monkeypatch):
    """Batches of three and of one leave 13 and 15 of sixteen places to windows that nobody wants."""
    monkeypatch.setattr(replay, "VOXELS_WORTH_A_GRAPH", windows * SHAPE[1:].numel())
    run = Replay(Windows(), "float32", batch=16)
    for count in (16, 3, 16, 1):
        x = torch.randn(count, *SHAPE)
        assert torch.equal(run(x), torch.cat([x, 2 * x], dim=1))
    assert captured == sizes


def test_a_window_is_measured_and_compared_with_what_is_free(monkeypatch):
    network, device = Windows(), torch.device("cuda")
    one = activation_bytes(network, (1, *SHAPE), torch.device("cpu"))[1]
    monkeypatch.setattr(
        device_memory,
        "activation_bytes",
        lambda network, shape, on: activation_bytes(network, shape, torch.device("cpu")),
    )
    for free, fits in ((25 * one, 16), (24 * one, 8), (13 * one, 8), (12 * one, 4), (one, 1)):
        monkeypatch.setattr(device_memory, "free_bytes", lambda device, free=free: free)
        assert batch_on(device, 16, SHAPE, network) == fits
    assert set(network.seen) == {1}
    monkeypatch.setattr(device_memory, "activation_bytes", None)
    assert batch_on(device, 1, SHAPE, network) == 1  # without a measurement
    assert batch_on(torch.device("cpu"), 16, SHAPE, network) == 16


@torch.no_grad()
@pytest.mark.parametrize("much", [False, True])
def test_windows_come_in_parts_that_fit(much, captured, monkeypatch):
    monkeypatch.setattr(replay, "VOXELS_WORTH_KERNELS", 0 if much else 10**9)
    monkeypatch.setattr(replay, "batch_on", lambda *given: 4)
    network, x = Windows(), torch.randn(11, *SHAPE)
    run = Replay(network, "float32", batch=16)
    for _ in range(2):
        assert torch.equal(run(x), torch.cat([x, 2 * x], dim=1))
    assert max(network.seen) == 4
    assert captured == ([4] if much else [])
    assert torch.equal(run(x[:1]), torch.cat([x, 2 * x], dim=1)[:1])
    assert captured == ([4] if much else [])  # which the single window fills up


@torch.no_grad()
@pytest.mark.parametrize("much", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=["torch", "cudnn", "triton"],
)
def test_after_memory_ran_out_fewer_windows_run_for_good(error, much, captured, monkeypatch):
    monkeypatch.setattr(replay, "VOXELS_WORTH_KERNELS", 0 if much else 10**9)
    network, x = Windows(5, error), torch.randn(16, *SHAPE)
    run, expected = Replay(network, "float32", batch=16), torch.cat([x, 2 * x], dim=1)
    assert torch.equal(run(x[:3]), expected[:3])
    with pytest.warns(UserWarning, match="no memory for 16 windows at a time: from now on 4 run") as told:
        assert torch.equal(run(x), expected)
    assert len(told) == 1
    assert network.seen.count(16) == 1
    assert captured == ([4, 4] if much else [])  # the first one went, to make room
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(x), expected)
    assert network.seen.count(16) == 1


@torch.no_grad()
def test_one_window_that_is_too_large_and_other_errors_are_raised():
    network = Windows(0)
    with pytest.warns(UserWarning, match="no memory") as told, pytest.raises(torch.OutOfMemoryError):
        Replay(network, "float32", batch=16)(torch.randn(16, *SHAPE))
    assert (network.seen, len(told)) == ([16, 4, 1], 2)
    other = Windows(3, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        Replay(other, "float32", batch=16)(torch.randn(16, *SHAPE))
    assert other.seen == [16]


def test_an_error_that_follows_from_missing_memory_is_one_of_memory():
    later = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert not is_out_of_memory(later)
    later.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(later)
    assert not is_out_of_memory(RuntimeError("CUDA error: operation not permitted when stream is capturing"))


def test_the_bound_has_room_for_kernels_where_so_many_windows_come_that_they_are_built(monkeypatch):
    run = Replay(Windows(), "float32", batch=16)
    run.expect(replay.VOXELS_WORTH_KERNELS - 1, SHAPE)
    assert run.kernel_bytes == 0
    run.expect(replay.VOXELS_WORTH_KERNELS, SHAPE)
    assert run.kernel_bytes == 2**29
    windows = sliding.Windows((16, 16, 16), (8, 8, 8))
    predictor = Predictor(nn.Conv3d(1, 2, 1), windows=windows, runtime="torch")
    scan = Volume(np.zeros((20, 20, 20), np.float32), np.eye(4))
    without = predictor.memory(scan)
    monkeypatch.setattr(predictor._run, "kernel_bytes", 2**29, raising=False)
    assert predictor.memory(scan).program == pytest.approx(without.program + 2**29, abs=2**24)
