"""Compiling the networks of a run and comparing them with what they were compiled from, before the first iteration.

One batch that no iteration sees goes through the losses of the method, in the precision of the run. Whenever they call
the body of a network in a new form (shape, with or without gradients), the compiled one gets the same input, and

    largest |y' - y| / largest |y|  <= e          |g' - g| / |g|  <= 3 e

have to hold for its features y' and the gradient g' of 1/2 sum_c w_c y_c^2, w normal, with respect to input and
weights; or else y' and g' differ from y and g by at most twice as much as these do from themselves in float32, because
norms over a few voxels can make rounding as large as the gradient.

These forms are those of an iteration, so that nothing is compiled for the comparison alone. Then everything is as it
was before: weights, buffers, what the method remembers, and random numbers.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from fheat.inference.compilers import LARGEST_ERROR
from fheat.networks.padded import bodies_of, compile_bodies
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.training.compiling import Compiling
from fheat.training.prepare import Prepared
from fheat.training.step import Step

GRADIENT_FACTOR: Final = 3
"""Factor of the largest accepted error for gradients, in which rounding also decides on which side of zero values lie.
From float32 to bfloat16 the features of the networks that can be compiled change by at most 0.025 and such gradients by
at most 0.043, on crops of 48 or 64 voxels a side with fresh weights; 0.1 and 0.3 are accepted there. A wrong kernel is
off by about 1."""
LONGEST_REASON: Final = 200
"""Number of characters of a compiler's complaint that are shown."""
ROUNDING_FACTOR: Final = 2
"""Number of times by which the compiled body may differ from the one that is written as this one does from itself in
float32: both are rounded, each in its way."""
Body = Callable[[Tensor], Tensor]


def compile_run(prepared: Prepared) -> Prepared:
    """Return the run with its networks compiled, where that was chosen.

    Where the compiler fails, or what it built computes something else, the networks run as they are written, and a
    remark says so; `BadInput` is raised where the settings insist. All processes that train together do the same.
    """
    if not prepared.compiling.compiled:
        return prepared
    step, settings = prepared.step, prepared.settings
    failure = _compile(prepared)
    failure = next((told for told in processes.current().tell(failure) if told is not None), None)
    if failure is None:
        return prepared
    for body in bodies_of(step.model, step.method):
        body._compiled_call_impl = None
    what = f"{settings.network.name} as compiled by torch.compile cannot be used: {failure}"
    if settings.optimiser.compile == "yes":
        raise BadInput("optimiser.compile", f"is yes, and {what}", "set it to no, or leave it at auto")
    compiling = Compiling(reason=f"what was compiled cannot be used: {failure}")
    return dataclasses.replace(prepared, compiling=compiling, remarks=(*prepared.remarks, f"{what}; it runs without"))


def _compile(prepared: Prepared) -> str | None:
    """Compile the networks and compare them; return in one line what is wrong, None where nothing is."""
    step = prepared.step
    comparison = Comparison(step)
    before = step.state()
    try:
        compile_bodies(step.model, step.method)
        batch = prepared.other_batches(1, prepared.settings.schedule.seed + 1).all()[0]
        with comparison.of_every_call():
            step.losses(batch)
    except Exception as error:  # of the network as written too: the first iteration then raises it again
        return comparison.failure or _in_one_line(error)
    finally:
        step.restore(before)
    return comparison.failure


class Pass(NamedTuple):
    """The result of a pass of a body: its features, and as one vector their gradient for input and weights."""

    features: Tensor
    gradient: Tensor


class Off(NamedTuple):
    """The difference of two passes: of the features over their largest value, and of the gradient over its norm."""

    features: float
    gradient: float


class Comparison:
    """Compares compiled bodies with themselves as they are written, and has in `failure` what was wrong first.

    The losses go on with what the body as written computes, whatever the compiled one does, so that processes which
    wait for each other in them never wait in vain.
    """

    def __init__(self, step: Step) -> None:
        self.failure: str | None = None
        self._step, self._most = step, largest_error(step.precision, step.iteration.device)
        self._seen: set[tuple[object, ...]] = set()

    @contextmanager
    def of_every_call(self) -> Iterator[None]:
        """Within the block, the compiled bodies of the step compare themselves when they are called."""
        compiled = {body: body._compiled_call_impl for body in bodies_of(self._step.model, self._step.method)}
        try:
            for body, run in compiled.items():
                assert run is not None
                body._compiled_call_impl = partial(self._call, body, run)
            yield
        finally:
            for body, run in compiled.items():
                body._compiled_call_impl = run

    def _call(self, body: nn.Module, compiled: Body, x: Tensor) -> Tensor:
        devices = [x.device] if x.is_cuda else []
        before = _generators(x.device)
        y: Tensor = body._call_impl(x)  # type: ignore[no-untyped-call]
        moved = not all(map(torch.equal, before, _generators(x.device)))
        form = (body, x.shape, x.dtype, x.requires_grad, torch.is_grad_enabled(), body.training)
        if self.failure is None and form not in self._seen:
            self._seen.add(form)
            with torch.random.fork_rng(devices):
                try:
                    self.failure = self._difference(body, compiled, x, moved)
                except Exception as error:  # compilers raise whatever they like
                    self.failure = _in_one_line(error)
        return y

    def _difference(self, body: nn.Module, compiled: Body, x: Tensor, moved: bool) -> str | None:
        """Return how the compiled body differs too much from the one that is written.

        A compiler may draw random numbers in another way. A body that draws some is compared in evaluation, where it
        draws none, after the one for training was built and has run too.
        """
        if moved:
            _run(compiled, body, x)
        with _evaluating(body) if moved else nullcontext():
            expected = _run(body._call_impl, body, x)
            found = _run(compiled, body, x, expected.features)
            off = _relative(found, expected)
            if off.features <= self._most and off.gradient <= GRADIENT_FACTOR * self._most:
                return None
            rounding = _relative(_run(_exactly(body), body, x, expected.features), expected)
        if not off.features <= max(self._most, ROUNDING_FACTOR * rounding.features):
            return f"its features are off by {off.features:.1g} of the largest value"
        if not off.gradient <= max(GRADIENT_FACTOR * self._most, ROUNDING_FACTOR * rounding.gradient):
            return f"its gradient is off by {off.gradient:.1g} of its norm"
        return None


def largest_error(precision: torch.dtype, device: torch.device) -> float:
    """Return the largest accepted error of features: as in prediction, by the precision in which products are made.

    In a float32 run a GPU rounds the factors of a convolution to TF32, to three bits more than bfloat16 has.
    """
    if precision == torch.bfloat16:
        return LARGEST_ERROR["bfloat16"]
    return LARGEST_ERROR["bfloat16"] / 2**3 if device.type == "cuda" else LARGEST_ERROR["float32"]


def _run(run: Body, body: nn.Module, x: Tensor, reference: Tensor | None = None) -> Pass:
    """Return features and gradient of a body that is run in some way; `reference` are the features y in w y."""
    y = run(x)
    features = y.detach()
    asked = [tensor for tensor in (x, *body.parameters()) if tensor.requires_grad]
    if not y.requires_grad or not asked:
        return Pass(features, features[:0].flatten())
    noise = torch.Generator().manual_seed(0)
    weights = torch.randn(1, y.shape[1], *[1] * (y.ndim - 2), generator=noise).to(y)
    with torch.autocast(x.device.type, enabled=False):  # as in an iteration
        backward = weights * (features if reference is None else reference)
        found = torch.autograd.grad(y, asked, backward, allow_unused=True)
    pairs = zip(found, asked, strict=True)
    parts = [torch.zeros_like(tensor) if gradient is None else gradient for gradient, tensor in pairs]
    return Pass(features, torch.cat([part.detach().flatten().float() for part in parts]))


def _exactly(body: nn.Module) -> Body:
    """Return the body as it is written, in float32 whatever the precision of the run is."""

    def run(x: Tensor) -> Tensor:
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.autocast(x.device.type, enabled=False), exact:
            y: Tensor = body._call_impl(x.float())  # type: ignore[no-untyped-call]
        return y

    return run


def _relative(found: Pass, expected: Pass) -> Off:
    """Return how far a pass is from another one."""
    features = _distance(found.features, expected.features, torch.inf)
    return Off(features, _distance(found.gradient, expected.gradient, 2))


def _distance(found: Tensor, expected: Tensor, order: float) -> float:
    """Return |found - expected| / |expected| in a norm, over the values that are expected to be finite."""
    finite = expected.isfinite()
    if not finite.any():
        return 0.0
    expected = expected[finite].float()
    difference = torch.linalg.vector_norm(found[finite].float() - expected, order)
    return float(difference / torch.linalg.vector_norm(expected, order).clamp(min=1e-30))


@contextmanager
def _evaluating(body: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in body.modules()}
    try:
        body.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _generators(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators of the host and of the device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _in_one_line(error: Exception) -> str:
    """Return the cause of an error, which compilers wrap, in one line."""
    cause = getattr(error, "inner_exception", error)
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"[:LONGEST_REASON]
