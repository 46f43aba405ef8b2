"""What kernels are launched with, found without a GPU, and compiled for one: a program that test_compile.py starts.

Launches are recorded instead of run, so that only shapes and types matter: networks have tensors without values.
Triton must not interpret kernels here, as it does in the tests, and therefore this is a process of its own:

    python -m tests.ops.launches recorded    every kernel, for an H200
    python -m tests.ops.launches widths      the convolution blocks of FHEAT-Seg-L, for other GPUs too
    python -m tests.ops.launches stages      the stages of FHEAT-Seg with an operator at their sites, for other GPUs too

It prints one line of JSON for each kernel that it compiled.
"""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from triton._C.libtriton import ir, llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime import JITFunction

from fheat import create_model
from fheat.networks.large_u import ConvBlock, ConvDown
from fheat.nn import fused
from fheat.nn.afno import AFNO3D
from fheat.nn.blocks import FHEATStage
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import widen_tiles

PATCH = (112, 112, 80)
SHARED = {80: 166_912, 89: 101_376, 90: 232_448}
"""Bytes of shared memory that a program can have on an A100, on an RTX 40 and on an H200."""
OPTIONS = "num_warps", "num_stages", "maxnreg"
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.bool: "*i1", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


class Launch(NamedTuple):
    """A kernel, the types of its arguments, those that are constants, those that 16 divides, and options."""

    module: str
    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes it another program, not only one of other sizes: types, words, and which constants are zero.

        FLIP only changes the order of taps.
        """
        constants = ((name, value if isinstance(value, str) else bool(value)) for name, value in self.constants)
        return self.module, self.kernel, self.types, tuple(one for one in constants if one[0] != "FLIP")

    @property
    def size(self) -> tuple[int, ...]:
        """How large its matrices are, then its tiles."""
        constants = dict(self.constants)
        parts = ("CP", "HP", "NP"), ("BLOCK", "RUN"), ("C",)
        return tuple(math.prod(constants.get(name, 1) for name in part) for part in parts)

    def source(self, *, ones: bool = False) -> ASTSource:
        """Return what Triton compiles; with `ones` every whole number is 1, which Triton builds in as a constant."""
        kernel = getattr(import_module(self.module), self.kernel)
        types, constants, place = dict(self.types), dict(self.constants), kernel.arg_names.index
        if ones:
            constants |= {name: 1 for name, kind in self.types if kind in ("i32", "i64")}
            types |= dict.fromkeys(constants, "constexpr")
        divisible = {(place(name),): [["tt.divisibility", 16]] for name in self.divisible if name not in constants}
        return ASTSource(kernel, types, {(place(name),): value for name, value in constants.items()}, divisible)

    def line(self, shared: int, arch: int) -> str:
        """Return what is known of it as JSON."""
        name = f"{self.module.rpartition('.')[2]}.{self.kernel}"
        return json.dumps({"kernel": name, "arch": arch, "shared": shared} | dict(self.constants) | dict(self.options))


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record launches within the block; nothing is launched."""
    found: list[Launch] = []

    def record(self: JITFunction, *arguments: Any, grid: object, warmup: bool, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        values = dict(zip(self.arg_names, arguments, strict=False)) | named
        types, constants, divisible = {}, {}, []
        for parameter in self.params:
            name, value = parameter.name, values[parameter.name]
            whole = type(value) is int and not parameter.do_not_specialize
            if parameter.is_constexpr or (whole and value == 1):
                types[name], constants[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                types[name] = TYPES[value.dtype]
                divisible.append(name)
            else:
                types[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
                divisible += [name] if whole and value % 16 == 0 else []
        parts = (tuple(part.items()) for part in (types, constants))
        found.append(Launch(self.fn.__module__, self.fn.__name__, *parts, tuple(divisible), tuple(options.items())))

    run, JITFunction.run = JITFunction.run, record
    try:
        yield found
    finally:
        JITFunction.run = run


def there_and_back(module: torch.nn.Module, *shape: int, half: bool = True) -> None:
    """Run a module on a tensor without values, and the gradients of its parameters."""
    with FakeTensorMode(allow_non_fake_inputs=True), kernels.use("always"):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = module(torch.empty(shape))
        out.float().sum().backward()


def run_networks() -> None:
    """Run the networks that have kernels, of crops as they are trained with."""
    FractionalHeat.check_parameters = lambda self: None  # it reads values
    for name in ("fheat_seg", "fheat_seg_l", "light_unetr"):
        there_and_back(create_model(name, patch_size=PATCH), 6, 1, *PATCH)
    there_and_back(create_model("fheat_seg", patch_size=PATCH, operator="stochastic_depth"), 6, 1, *PATCH)
    there_and_back(FHEATStage(150, 1, AFNO3D(150)), 6, 150, 14, 14, 10)


def run_iteration() -> None:
    """Run one small iteration of CSE, whose kernels compute nothing, and the sums of more than two classes."""
    from fheat.ops.voxel_sums import voxel_sums
    from tests.methods.predictions import cse
    from tests.miniature import register
    from tests.training.test_step import PATCH as SMALL
    from tests.training.test_step import build

    register()
    with kernels.use("always"), torch.autocast("cpu", torch.bfloat16):
        build(cse(SMALL), 1)()
        logits, target = torch.zeros(2, 3, *SMALL, requires_grad=True), torch.zeros(2, *SMALL, dtype=torch.uint8)
        sum(part.sum() for part in voxel_sums(logits, target)).backward()


def run_widths(arch: int) -> None:
    """Run convolution blocks of FHEAT-Seg-L as on a GPU with the shared memory of an architecture.

    The grid is so large that a program has several tiles: one alone takes less.
    """
    widen_tiles.shared_memory = lambda x: SHARED[arch]
    for half in (False, True):
        for block, channels in ((ConvBlock(32), 32), (ConvBlock(60), 60), (ConvDown(60, 96), 60)):
            there_and_back(block, 2, channels, *PATCH, half=half)


def run_stages(arch: int) -> None:
    """Run stages of FHEAT-Seg as on a GPU with the shared memory of an architecture, without a gate and around an
    operator, on a grid so large that a program has several tiles."""
    fused.shared_memory = lambda x: SHARED[arch]
    retired = FractionalHeat()
    retired.bypass(0.5)
    for half in (False, True):
        for channels, grid in ((24, (28, 28, 20)), (60, (28, 28, 20)), (96, (20, 20, 19))):
            for operator in (retired, AFNO3D(channels)):
                there_and_back(FHEATStage(channels, 1, operator), 2, channels, *grid, half=half)


def largest(launches: list[Launch]) -> list[Launch]:
    """Return of each kind the launch with the largest tiles, the largest of all first."""
    found: dict[tuple[Any, ...], Launch] = {}
    for one in sorted(launches, key=lambda one: one.size, reverse=True):
        found.setdefault(one.kind, one)
    return list(found.values())


def lowered(source: ASTSource, options: dict[str, int], arch: int, last: str = "llir") -> dict[str, Any]:
    """Go through the stages of Triton's compiler up to one of them, and return what is known then.

    By "llir" all is known but registers, and nothing was optimised yet, which takes most of the time.
    """
    target = GPUTarget("cuda", arch, 32)
    backend, context = make_backend(target), ir.context()
    parsed, stages, known = backend.parse_options(options), {}, {}
    backend.add_stages(stages, parsed, source.language)
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(target, parsed, *functions, context)
    with patch.object(llvm, "optimize_module"):
        for name, stage in stages.items():
            module = stage(module, known)
            if name == last:
                break
    return known


def compile_recorded() -> None:
    """Compile one launch of each kernel, lower those of other types, and see that whole numbers may be 1."""
    with recorded() as found:
        run_networks()
        run_iteration()
    done = set()
    for one in largest(found):
        options, name = dict(one.options), (one.module, one.kernel)
        if name in done:
            shared = lowered(one.source(), options, 90)["shared"]
        else:
            shared = triton.compile(one.source(), target=GPUTarget("cuda", 90, 32), options=options).metadata.shared
            lowered(one.source(ones=True), options, 90, "ttir")
        done.add(name)
        print(one.line(shared, 90), flush=True)


def lower_widths() -> None:
    """Lower the kernels of convolution blocks for each architecture."""
    for arch in SHARED:
        with recorded() as found:
            run_widths(arch)
        for one in largest([one for one in found if one.module.endswith(".widen")]):
            print(one.line(lowered(one.source(), dict(one.options), arch)["shared"], arch), flush=True)


def lower_stages() -> None:
    """Lower the kernels of blocks around T for each architecture, each width and type of products."""
    rooms = "fheat", "mixer", "wide", "norm"
    for arch in SHARED:
        with recorded() as found:
            run_stages(arch)
        for one in dict.fromkeys(one for one in found if one.module.rpartition(".")[2] in rooms):
            print(one.line(lowered(one.source(), dict(one.options), arch)["shared"], arch), flush=True)


if __name__ == "__main__":
    {"recorded": compile_recorded, "widths": lower_widths, "stages": lower_stages}[sys.argv[1]]()
