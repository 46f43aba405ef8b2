"""Reductions and types in the interpreter of the tests are those of Triton's own, bit for bit."""

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
if torch.cuda.is_available():
    pytest.skip("kernels are not interpreted here", allow_module_level=True)
quick = pytest.importorskip("tests.interpreter")


@triton.jit
def combined(a, b, c, d):
    return a + 0.5 * c, tl.maximum(b, c) - d


@triton.jit
def reduce_both(x, y, out, axis: tl.constexpr, keep: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    place = tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]
    first, second = tl.reduce((tl.load(x + place), tl.load(y + place)), axis, combined, keep_dims=keep)
    if keep:  # along the columns
        first, second = tl.reshape(first, [rows]), tl.reshape(second, [rows])
    kept = tl.arange(0, columns if axis == 0 else rows)
    tl.store(out + kept, first)
    tl.store(out + 64 + kept, second)


@triton.jit
def reduce_vector(x, y, out, columns: tl.constexpr):
    place = tl.arange(0, columns)
    first, second = tl.reduce((tl.load(x + place), tl.load(y + place)), 0, combined)
    tl.store(out, first)
    tl.store(out + 64, second)


@pytest.mark.parametrize("run", ["rows", "columns", "kept", "vector"])
def test_slices_are_reduced_as_elements_are(run, monkeypatch):
    x, y = torch.randn(2, 8, 16)
    found = []
    for reduce in (quick.INTERPRETED, quick.reduce_slices):
        monkeypatch.setattr(quick.interpreter.ReduceOps, "generic_reduce", reduce)
        out = torch.zeros(128)
        if run == "vector":
            reduce_vector[(1,)](x, y, out, columns=16)
        else:
            reduce_both[(1,)](x, y, out, axis=0 if run == "rows" else 1, keep=run == "kept", rows=8, columns=16)
        found.append(out)
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int1", "uint8", "int32", "int64"])
def test_types_are_those_of_the_interpreter(name):
    kind = getattr(tl, name)
    plain = quick._known.__wrapped__
    for one in (kind, tl.pointer_type(kind), tl.block_type(kind, [2, 4]), tl.block_type(tl.pointer_type(kind), [8])):
        assert quick.np_dtype(one) == plain(one)
