"""Kernels compile for a GPU as they are launched, and fit its shared memory; the compiler needs no GPU.

The interpreter, in which the other tests run kernels, accepts what the compiler refuses.
"""

import ast
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from fheat.ops import kernels
from fheat.ops.kernels.launch import block_bytes
from fheat.ops.kernels.widen_tiles import Widths, backward_bytes, forward_bytes

pytest.importorskip("triton")
from tests.ops.launches import SHARED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compiled(tmp_path, pytestconfig):
    """Run tests/ops/launches.py and return what it compiled.

    Triton keeps what it has compiled, by source, options and version, so that only a changed kernel takes time.
    """
    cache = getattr(pytestconfig, "cache", None)
    kept = tmp_path if cache is None else cache.mkdir("triton")

    def run(what):
        paths = os.pathsep.join(map(str, (Path(kernels.__file__).parents[3], ROOT)))
        environment = {"TRITON_CACHE_DIR": str(kept), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        environment |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.ops.launches", what]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return run


def programs():
    """Return the names of the functions in `fheat.ops.kernels.device` that ask which program they are."""
    return {
        f"{path.stem}.{part.name}"
        for path in (Path(kernels.__file__).parent / "device").glob("*.py")
        for part in ast.parse(path.read_text()).body
        if isinstance(part, ast.FunctionDef) and "tl.program_id" in ast.unparse(part)
    }


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are recorded on a CPU")
def test_every_kernel_compiles_as_it_is_launched_and_fits_its_gpu(compiled):
    """All but the kernels of convolution blocks, whose tiles depend on the GPU, fit one with little memory too."""
    found = compiled("recorded")
    assert programs() <= {one["kernel"] for one in found}
    for one in found:
        assert one["shared"] <= (SHARED[90] if one["kernel"].startswith("widen.") else 100_000), one


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are recorded on a CPU")
def test_convolution_blocks_fit_every_gpu_and_the_bytes_are_known_beforehand(compiled):
    found = compiled("widths")
    ways = {(one["arch"], one["kernel"], one["DOT"]) for one in found}
    assert ways == set(product(SHARED, ("widen.widen_forward", "widen.widen_backward"), ("bf16", "ieee")))
    for one in found:
        widths, dot = Widths(one["C"], one["H"], one["N"]), one["DOT"]
        backward = one["kernel"] == "widen.widen_backward"
        bound = backward_bytes(widths, dot, one) if backward else forward_bytes(widths, dot)
        assert one["shared"] <= SHARED[one["arch"]], one
        assert one["shared"] <= bound + (4096 if one["arch"] == 90 else 0), one


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are recorded on a CPU")
def test_stages_fit_every_gpu_and_the_bytes_are_known_beforehand(compiled):
    """In float32 96 channels do not fit a program on an RTX 40, and the library computes the products there."""
    found = compiled("stages")
    products = [one for one in found if "DOT" in one]
    kernels = {"fheat.project_forward", "fheat.gated_forward", "fheat.gated_backward", "fheat.project_backward"}
    kernels |= {"mixer.mixer_forward", "mixer.mixer_backward"}
    ways = set(product(SHARED, kernels, ("bf16", "ieee"), (24, 60, 96)))
    assert {(one["arch"], one["kernel"], one["DOT"], one["C"]) for one in products} == {
        way for way in ways if way[0] != 89 or way[2:] != ("ieee", 96)
    }
    for one in products:
        assert one["shared"] <= block_bytes(one["C"], one["DOT"]), one
    for one in found:
        assert one["shared"] <= SHARED[one["arch"]], one
    by_library = {(one["arch"], one["C"]) for one in found if one["kernel"].startswith("wide.")}
    assert by_library == {(89, 96)}
    assert max(one["shared"] for one in products if one["C"] == 96 and one["DOT"] == "ieee") == 139_264
