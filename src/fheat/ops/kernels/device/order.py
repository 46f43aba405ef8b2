"""How a kernel follows the one before it: programmatic dependent launch, which GPUs from sm_90 on have.

Without it a kernel is launched when the one before has ended, and the multiprocessors idle in between. With it a kernel
is launched earlier and `follow`, the first statement of each kernel, waits until the one before has ended and all that
it wrote is visible. `FHEAT_PDL` in the environment says how early: 0, the default, not at all; 1 when the last programs
of the one before end; 2 when all of its programs have begun, so that the launch of a kernel hides behind the work of
the one before.

Chains are safe: a kernel touches memory only after its own wait, and lets its successor be launched only then, so the
kernels before it have all ended when its successor begins to wait, and they stay ended. A kernel of another library
knows nothing of this and is launched when the one before has ended, as ever.
"""

import os
from functools import partial

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def _asked() -> int:
    """Return what the environment asks for, or 0 in the interpreter and where a GPU is older than sm_90."""
    asked = os.environ.get("FHEAT_PDL", "0")
    if asked not in ("0", "1", "2"):
        raise ValueError(f"FHEAT_PDL={asked!r} in the environment is unknown: use 0, 1 or 2")
    if asked == "0" or knobs.runtime.interpret or not torch.cuda.is_available():
        return 0
    devices = range(torch.cuda.device_count())
    return int(asked) if all(torch.cuda.get_device_capability(index) >= (9, 0) for index in devices) else 0


EARLY = tl.constexpr(_asked())
"""How early kernels are launched: 0, 1 or 2."""


@triton.jit
def follow():
    """Wait for the kernel before this one, then let the next be launched; do nothing where kernels are not early."""
    if EARLY >= 1:
        gdc_wait()
    if EARLY >= 2:
        gdc_launch_dependents()


def kernel(function=None, **options):
    """Compile a function as `triton.jit` does, for launches from the host; its first statement is `follow()`."""
    if function is None:
        return partial(kernel, **options)
    compiled = triton.jit(function, **options)
    if EARLY.value >= 1:
        compiled.run = partial(compiled.run, launch_pdl=True)
    return compiled
