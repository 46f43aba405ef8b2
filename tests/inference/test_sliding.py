"""The sliding window: the same numbers as a literal loop and as MONAI's, whatever the batch and the slab."""

import itertools
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data.utils import compute_importance_map
from monai.inferers import sliding_window_inference
from torch import nn

from fheat import create_model
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import PRESETS, Windows, covering, starts, window_weights

SIZE, STRIDE = (16, 12, 20), (8, 9, 5)
SHAPES = [(40, 33, 29), (20, 50, 17), (9, 8, 70), (16, 12, 20), (5, 6, 7)]


def network(classes=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv3d(1, classes, 5, padding=2), nn.Tanh()).eval()


def literal(net, image, windows, weight):
    """Section by section of the protocol: pad, visit every window, average, remove the padding."""
    pads = [max(size - length, 0) for size, length in zip(windows.size, image.shape[1:], strict=True)]
    lead = [pad // 2 for pad in pads]
    padded = torch.zeros(image.shape[0], *(n + pad for n, pad in zip(image.shape[1:], pads, strict=True)))
    inner = tuple(slice(a, a + n) for a, n in zip(lead, image.shape[1:], strict=True))
    padded[:, *inner] = image
    total = count = 0
    axes = [
        [min(step * i, n - size) for i in range(-(-(n - size) // step) + 1)]
        for n, size, step in zip(padded.shape[1:], windows.size, windows.stride, strict=True)
    ]
    for corner in itertools.product(*axes):
        box = tuple(slice(a, a + n) for a, n in zip(corner, windows.size, strict=True))
        values, visits = torch.zeros(3, *padded.shape[1:]), torch.zeros(1, *padded.shape[1:])
        values[:, *box] = torch.softmax(net(padded[None, :, *box])[0], 0) * weight
        visits[:, *box] = weight
        total, count = total + values, count + visits
    return (total / count)[:, *inner]


@pytest.mark.parametrize("weights", ["constant", "gaussian"])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_equals_a_literal_loop_and_monai(shape, weights):
    image, windows = torch.randn(1, *shape), Windows(SIZE, STRIDE)
    net = network()
    found = SlidingWindow(net, windows, weights=weights)(image)
    assert (found - literal(net, image, windows, window_weights(SIZE, weights))).abs().max() < 1e-6
    overlap = [1 - stride / size for size, stride in zip(SIZE, STRIDE, strict=True)]
    oracle = sliding_window_inference(image[None], SIZE, 3, lambda x: net(x).softmax(1), overlap, mode=weights)[0]
    assert (found - oracle).abs().max() < 1e-6


@torch.no_grad()
def test_equals_monai_with_a_real_network():
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).eval()
    image = torch.randn(1, 50, 41, 36)
    for weights in ("constant", "gaussian"):
        found = SlidingWindow(model, Windows((32, 32, 32), (16, 16, 16)), weights=weights, activation="none")(image)
        oracle = sliding_window_inference(image[None], (32, 32, 32), 4, model, 0.5, mode=weights)[0]
        assert (found - oracle).abs().max() < 1e-5


@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_weights_are_monais(weights):
    for size in [(16, 12, 20), (1, 2, 3), (112, 112, 80)]:
        oracle = compute_importance_map(size, mode=weights, sigma_scale=0.125)
        assert (window_weights(size, weights) - oracle).abs().max() < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flips", [False, True])
def test_identity_returns_its_input(shape, flips):
    image = torch.randn(2, *shape)
    for weights in ("constant", "gaussian"):
        found = SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), weights=weights, activation="none", flips=flips)(
            image
        )
        assert found.shape == image.shape
        assert (found - image).abs().max() < 2e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_independent_of_batch_and_slab(shape):
    image, net = torch.randn(1, *shape), network()
    first = SlidingWindow(net, Windows(SIZE, STRIDE), batch=1, slab=0)(image)
    for batch, slab in itertools.product((1, 2, 5, 64), (0, 1, 7, None, 500)):
        found = SlidingWindow(net, Windows(SIZE, STRIDE), batch=batch, slab=slab)(image)
        assert (found - first).abs().max() < 1e-6
        if batch == 1:
            assert torch.equal(found, first)


def test_flips_average_the_eight_mirror_images():
    image, net = torch.randn(1, *SIZE), network()
    with torch.no_grad():
        mirrored = [
            net(image[None].flip(axes)).softmax(1).flip(axes)
            for count in range(4)
            for axes in itertools.combinations((2, 3, 4), count)
        ]
    found = SlidingWindow(net, Windows(SIZE, STRIDE), flips=True)(image)
    assert len(mirrored) == 8
    assert (found - torch.stack(mirrored).mean(0)[0]).abs().max() < 1e-6


@given(length=st.integers(1, 300), size=st.integers(1, 120), stride=st.integers(1, 120))
def test_windows_cover_every_voxel(length, size, stride):
    stride = min(stride, size)
    found = list(starts(length, size, stride))
    assert found[0] == 0
    assert len(set(found)) == len(found)
    covered = {voxel for start in found for voxel in range(start, start + size)}
    assert covered >= set(range(length))
    assert max(covered) == max(length, size) - 1


def test_window_count_of_the_la_protocol():
    sliding = SlidingWindow(nn.Identity(), PRESETS["la"])
    assert sliding.count((192, 142, 88)) == 6 * 3 * 3
    assert sliding.count((100, 100, 50)) == 1
    seen = []
    counting = SlidingWindow(
        nn.Identity(), Windows(SIZE, STRIDE), activation="none", progress=lambda *step: seen.append(step)
    )
    counting(torch.zeros(1, 40, 33, 29))
    total = counting.count((40, 33, 29))
    assert {step[1] for step in seen} == {total}
    assert [step[0] for step in seen] == sorted({step[0] for step in seen})
    assert seen[-1] == (total, total)


def test_planes_are_read_once_and_in_order():
    asked = []
    image = torch.randn(1, 20, 50, 17)

    def planes(start, stop):
        asked.extend(range(start, stop))
        return image[:, :, start:stop]

    sliding = SlidingWindow(network(), Windows(SIZE, STRIDE), slab=0)
    first = [start for start, _ in sliding.stream(planes, (20, 50, 17), 1)]
    assert sliding.axis((20, 50, 17)) == 1
    assert asked == list(range(50))
    assert first == sorted(first)
    assert len(first) > 3


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="leaves gaps"):
        Windows((16, 16, 16), (8, 17, 8))
    with pytest.raises(ValueError, match="batch=0"):
        SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), batch=0)
    with pytest.raises(ValueError, match="slab=-1"):
        SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), slab=-1)
    with pytest.raises(ValueError, match="expected the same grid"):
        SlidingWindow(nn.MaxPool3d(2), Windows(SIZE, STRIDE))(torch.zeros(1, *SIZE))
    with pytest.raises(ValueError, match="'gauss' is unknown"):
        SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), weights="gauss")(torch.zeros(1, *SIZE))


@given(
    shape=st.tuples(*[st.integers(1, 90)] * 3),
    size=st.tuples(*[st.integers(1, 40)] * 3),
    stride=st.tuples(*[st.integers(1, 40)] * 3),
)
def test_whatever_the_choice_every_voxel_is_seen(shape, size, stride):
    windows = Windows(size, tuple(min(step, length) for step, length in zip(stride, size, strict=True)))
    every, fast = (chosen.corners(shape) for chosen in (windows, windows.fast()))
    assert set(fast) <= set(every)
    dense = all(len(list(starts(*axis))) >= 3 for axis in zip(shape, windows.size, windows.stride, strict=True))
    assert len(fast) >= len(every) // (3 if dense else 7)
    _, step, _ = windows.fast().thinning(shape) or (None, 1, None)
    fewest = [len(list(covering(*axis))) for axis in zip(shape, windows.size, windows.stride, strict=True)]
    assert len(fast) <= len(every) // step + 1 + np.prod(fewest)
    for listed, chosen in ((every, windows), (fast, windows.fast())):
        assert chosen.count(shape) == len(listed) == len(set(listed))
        for axis in range(3) if len(listed) <= 2000 else ():
            planes = dict(chosen.planes(shape, axis))
            assert list(planes) == sorted({corner[axis] for corner in listed})
            assert all(
                corners == [corner for corner in listed if corner[axis] == first] for first, corners in planes.items()
            )
    seen = np.zeros(shape, dtype=bool)
    for corner in fast:
        seen[tuple(slice(a, a + n) for a, n in zip(corner, size, strict=True))] = True
    assert seen.all()
    assert not any(map(windows.filling(shape), every))


@given(length=st.integers(1, 200), size=st.integers(1, 60), stride=st.integers(1, 60))
def test_the_fewest_windows_cover_an_axis(length, size, stride):
    stride = min(stride, size)
    every, fewest = list(starts(length, size, stride)), list(covering(length, size, stride))
    assert set(fewest) <= set(every)
    assert fewest[0] == 0
    assert fewest[-1] == every[-1]
    assert all(0 < second - first <= size for first, second in pairwise(fewest))
    greedy = [0]  # the slow obvious way: always the farthest start that leaves no gap
    while greedy[-1] != every[-1]:
        greedy.append(max(start for start in every if start <= greedy[-1] + size))
    assert len(fewest) == len(greedy)


def test_counting_the_windows_of_a_volume_of_any_size_lists_none():
    """A header of 32^3 voxels of 900 mm asked for 70 million windows: they are counted, and come plane by plane."""
    shape = (46080, 46080, 46080)
    windows = Windows((112, 112, 80), (112, 112, 80))
    tracemalloc.start()
    assert windows.count(shape) == 412 * 412 * 576
    assert windows.count((2**53,) * 3) > 2**120
    first, corners = next(windows.planes((46080, 200, 200), 0))
    assert (first, corners) == (0, [(0, y, z) for y in (0, 88) for z in (0, 80, 120)])
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    with pytest.raises(ValueError, match=r"97,\d+,\d+ windows are too many to thin, over 1,048,576"):
        windows.fast().count(shape)


def test_fast_windows_of_the_la_protocol():
    fast = PRESETS["la"].fast()
    assert len(fast.corners((192, 142, 88))) == 24  # a third of 54, and those in six of the eight corners
    assert len(fast.corners((192, 142, 84))) == 12  # two along the last axis: every seventh of 36, and the corners
    for axis in range(3):  # all places take their turn
        places = starts((192, 142, 88)[axis], fast.size[axis], fast.stride[axis])
        assert {corner[axis] for corner in fast.corners((192, 142, 88))} == set(places)
    assert fast.corners((112, 112, 80)) == [(0, 0, 0)]


@pytest.mark.parametrize("shape", [(192, 142, 88), (240, 240, 155), (160, 130, 96), (512, 512, 300)])
def test_fast_windows_are_at_most_half_where_they_are_dense(shape):
    for name in ("la", "pancreas-b"):
        assert 0.2 < PRESETS[name].fast().count(shape) / PRESETS[name].count(shape) < 0.5
    sparse = Windows((112, 112, 80), (56, 56, 40))
    assert sparse.fast().count((192, 142, 88)) == 8
    assert sparse.count((192, 142, 88)) == 12


def test_windows_that_are_needed_to_cover_count_only_where_there_is_no_other():
    windows, shape = Windows((24, 24, 24), (6, 6, 6)).fast(), (60, 45, 50)
    fills = windows.filling(shape)
    regular = [corner for corner in windows.corners(shape) if not fills(corner)]
    assert 0 < len(regular) < len(windows.corners(shape))

    def first_voxel(x):  # a constant per window that tells them apart
        return x[:, :, :1, :1, :1].expand_as(x)

    image = torch.rand(1, *shape)
    found = SlidingWindow(first_voxel, windows, activation="none", slab=100)(image)
    total, count = torch.zeros(shape), torch.zeros(shape)
    for x, y, z in regular:
        total[x : x + 24, y : y + 24, z : z + 24] += image[0, x, y, z]
        count[x : x + 24, y : y + 24, z : z + 24] += 1
    seen = count > 0
    assert 0.8 < seen.float().mean() < 1
    assert (found[0][seen] - total[seen] / count[seen]).abs().max() < 1e-4
    assert seen[0, 0, 0]
    assert not seen[0, -1, 0]  # the fifth window along the second axis ends here
    assert found[0, 0, -1, 0].item() == pytest.approx(image[0, 0, 21, 0].item(), abs=1e-6)


@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_averages_of_fast_windows_do_not_depend_on_the_slab(weights):
    windows, image = Windows((8, 8, 8), (2, 2, 1)).fast(), torch.rand(1, 24, 14, 40)
    assert any(map(windows.filling((24, 14, 40)), windows.corners((24, 14, 40))))
    network = nn.Identity()
    found = [
        SlidingWindow(network, windows, slab=slab, weights=weights, batch=batch, activation="none")(image)
        for slab, batch in ((0, 4), (4, 1), (100, 4), (None, 3))
    ]
    assert all(torch.equal(one, found[0]) for one in found)


def test_fast_windows_average_what_they_see():
    image = torch.rand(2, 60, 45, 50) + 1
    windows = Windows((24, 24, 24), (6, 6, 6)).fast()
    found = SlidingWindow(nn.Identity(), windows, activation="none", weights="gaussian")(image)
    assert (found - image).abs().max() < 1e-5
    steps = []
    SlidingWindow(nn.Identity(), windows, activation="none", progress=lambda *step: steps.append(step))(image)
    assert steps[-1] == (len(windows.corners((60, 45, 50))),) * 2


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batches_choose_their_threads(batch):
    """A forward pass with its flips is a unit of its number of windows; what a runtime takes one by one is none."""
    image, net, units = torch.randn(1, 40, 33, 29), network(), []

    class Recorded:
        @contextmanager
        def unit(self, amount):
            units.append(amount)
            yield

    sliding = SlidingWindow(net, Windows(SIZE, STRIDE), batch=batch, pace=Recorded())
    assert torch.equal(sliding(image), SlidingWindow(net, Windows(SIZE, STRIDE), batch=batch)(image))
    assert sum(units) == sliding.count((40, 33, 29))
    assert set(units) - {batch} <= set(range(1, batch))
    del units[:]
    replace(sliding, flips=True)(image)
    assert sum(units) == sliding.count((40, 33, 29))
    del units[:]
    replace(sliding, each=lambda windows: map(net, windows))(image)
    assert units == []


@torch.no_grad()
def test_windows_one_by_one_give_the_same_as_batches():
    """Sums are the same bit for bit, torch has its threads back, and flips take the network."""
    image, net = torch.randn(1, 40, 33, 29), network()
    threads, seen = torch.get_num_threads(), []

    def each(windows):
        for window in windows:
            seen.append(torch.get_num_threads())
            yield net(window)

    expected = SlidingWindow(net, Windows(SIZE, STRIDE), batch=1)(image)
    found = SlidingWindow(net, Windows(SIZE, STRIDE), each=each)(image)
    assert torch.equal(found, expected)
    assert set(seen) == {1}
    assert torch.get_num_threads() == threads
    del seen[:]
    SlidingWindow(net, Windows(SIZE, STRIDE), each=each, flips=True)(image)
    assert not seen


@torch.no_grad()
def test_a_round_of_windows_that_fails_is_closed_at_once():
    """Also while the exception, and with it the frame of the round, is alive."""
    ended = []

    def each(windows):
        try:
            yield from windows
        finally:
            ended.append(True)

    def stop(done, total):
        raise KeyError(done)

    sliding = SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), each=each, progress=stop, activation="none")
    try:
        sliding(torch.randn(1, 40, 33, 29))
    except KeyError:
        assert ended == [True]
    assert ended


@torch.no_grad()
def test_each_window_has_one_result():
    def too_few(windows):
        return itertools.islice(windows, 2)

    def too_many(windows):
        return itertools.chain(windows, [torch.zeros(1, 1, *SIZE)])

    for each, message in ((too_few, "returned 2 of"), (too_many, "shorter")):
        sliding = SlidingWindow(nn.Identity(), Windows(SIZE, STRIDE), each=each, activation="none")
        with pytest.raises(ValueError, match=message):
            sliding(torch.randn(1, 40, 33, 29))
