"""The fractional heat operator: a gate that mixes all voxels with a learned strength, or is the identity."""

import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.ops import parameterisation as par
from fheat.ops.dct import Transform, compute_dtype, constant, dct, idct, transform_for

LARGEST_LOG_EXPONENT = 20.0
"""Upper limit of the exponent's logarithm: exp(-exp(20)) is zero in float64 as well, and exp of more may overflow."""


class FractionalHeat(nn.Module):
    r"""Fractional heat operator on the last `dims` axes, with two learned scalars.

    .. math::  T(v) = C^{-1} [ \exp(-(D r)^\alpha) \cdot C(v) ],  \qquad  \tau = D^\alpha

    `C` is the orthonormal DCT-II, `r` the Euclidean norm of the per-axis frequencies :math:`\pi k / N`.
    The order is :math:`\alpha = 0.3 + 0.6\,\mathrm{sigmoid}(\theta)`, the strength :math:`D = \mathrm{relu}(\delta)`.

    Identity case: with :math:`\delta \le 0` the output *is* the input, bit for bit, for every dtype; the device
    decides this without waiting for the host. The gradients of `theta` and `delta` are then exactly zero, so a gate
    that training closed stays closed (weight decay only moves delta towards zero from below). Gradients are finite
    everywhere, at D = 0 and at the constant mode r = 0 as well. The mean (r = 0) is always kept.

    Shapes: (N, C, \*grid) or (C, \*grid) -> the same. Half precision is computed in float32 and cast back, also
    under autocast. On a GPU keep `torch.backends.cuda.matmul.allow_tf32` off (the default): TF32 costs three digits.

    Args:
        size: the only grid that the gate accepts. With `None` it accepts any grid.
        dims: number of spatial axes, 1, 2 or 3.
        alpha: `bounded` as above; `softplus`, 0.3 + softplus(theta), without an upper bound; `fixed` at its initial
            value; or a number in (0, 2] to fix it there.
        strength: `relu` as above, the only kind that can stay at zero; `softplus` or `exp` of delta, which are always
            positive, so **such a gate never closes and never retires**; or a number >= 0 to freeze D there.
        initial_theta, initial_strength: values of theta and D before training.
        transform: algorithm of the cosine transform, see `fheat.ops.dct`.

    Parameters that are fixed or frozen are None. NaN in a parameter raises on the CPU; on an accelerator it propagates
    to the output, because reading it would wait for the device.

    >>> gate = FractionalHeat(dims=2, initial_strength=0.0)
    >>> x = torch.randn(1, 3, 16, 16)
    >>> torch.equal(gate(x), x)
    True
    """

    theta: nn.Parameter | None
    delta: nn.Parameter | None
    stays_closed: ClassVar[bool] = True
    """Whether training never opens the gate again once it is closed, so that its transform can be left out."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        dims: int = 3,
        *,
        alpha: Literal["bounded", "softplus", "fixed"] | float = "bounded",
        strength: Literal["relu", "softplus", "exp"] | float = "relu",
        initial_theta: float = -2.0,
        initial_strength: float = 0.03,
        transform: Transform = "auto",
    ) -> None:
        super().__init__()
        if dims not in (1, 2, 3):
            raise ValueError(f"dims={dims!r} is not supported: use 1, 2 or 3 spatial axes")
        transform_for(1, "cpu", transform)
        self.dims = dims
        self.size = _checked_size(size, dims)
        self.transform: Transform = transform
        self._order = par.order(alpha, initial_theta)
        self._strength = par.strength(strength)
        self._retired_alpha: float | None = None
        self.asleep = False
        self._initial_theta = float(initial_theta)
        start = par.checked_number("initial_strength", initial_strength, low=0.0, high=1e30)
        # A gate whose strength is frozen at zero never uses its order.
        learned_order = self._order.value is None and self._strength.value != 0.0
        self.theta = nn.Parameter(torch.tensor(self._initial_theta)) if learned_order else None
        learned_strength = self._strength.value is None
        self.delta = nn.Parameter(torch.tensor(self._strength.inverse(start))) if learned_strength else None

    @property
    def alpha(self) -> Tensor:
        """Fractional order, a scalar tensor that carries the gradient to theta."""
        if self.theta is None:
            return torch.tensor(self._constant_alpha, dtype=torch.float64)
        return self._order.map(self.theta)

    @property
    def strength(self) -> Tensor:
        """Diffusion strength D >= 0, a scalar tensor that carries the gradient to delta; 0 when retired."""
        if self.delta is None:
            return torch.tensor(0.0 if self._always_closed else self._strength.value, dtype=torch.float64)
        return self._strength.map(self.delta)

    @property
    def tau(self) -> Tensor:
        """Diffusion time D^alpha: the times of successive gates with the same alpha and grid add up (Theorem 1)."""
        strength = self.strength
        closed = strength <= 0
        return torch.where(closed, 0.0, torch.where(closed, 1.0, strength) ** self.alpha)

    @property
    def retired(self) -> bool:
        """Whether the gate was removed from the graph: `forward` returns its input and there are no parameters."""
        return self._retired_alpha is not None

    @property
    def closed(self) -> bool:
        """Whether D is exactly zero now. Reads the value from the device.

        This is never so for `softplus` and `exp`: if their D underflows, the transform still runs and rounds.
        """
        self.check_parameters()
        return self._always_closed or (self._strength.closes and self.strength.item() == 0.0)

    @property
    def standard(self) -> bool:
        """Whether the multiplier is the paper's: that of this very class, with a bounded order and strength by relu."""
        return type(self) is FractionalHeat and (self._order.name, self._strength.name) == ("bounded", "relu")

    @property
    def one_response(self) -> bool:
        """Whether one call of `response` serves all calls of the gate in a forward pass, as fused kernels assume."""
        return True

    def retire(self) -> None:
        """Remove a closed gate from the graph for good: it drops its parameters, and `forward` returns its input."""
        if not self.closed:
            raise ValueError(
                f"the gate is open (D = {self.strength.item():.4g}) and retiring it would change the output: "
                "retire only gates with .closed"
            )
        self.bypass(self.alpha.item())

    def sleep(self) -> None:
        """Skip the transform of a closed gate while training goes on; its D stays zero, so no result changes.

        The parameters stay. `set_strength` and `load_state_dict` end the sleep; nothing else may open the gate.
        """
        if not self.closed:
            raise ValueError(f"the gate is open (D = {self.strength.item():.4g}): only a closed gate can sleep")
        self.asleep = True

    def bypass(self, alpha: float) -> None:
        """Remove the gate from the graph whatever its strength, and remember `alpha`. Only `retire` is exact."""
        self._retired_alpha = alpha
        self.theta = self.delta = None

    def set_strength(self, value: float) -> None:
        """Set D: by setting delta if D is learned, and by replacing the constant if D is frozen."""
        value = par.checked_number("value", value, low=0.0, high=1e30)
        if self.retired:
            raise ValueError("the gate is retired and has no strength to set: work on the network before fheat.retire")
        if self.delta is None:
            self._strength = par.strength(value)
        else:
            self.asleep = False
            with torch.no_grad():
                self.delta.fill_(self._strength.inverse(value))

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is NaN or infinite, or has no value. Reads the values from the device."""
        for name in ("theta", "delta"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.is_meta:
                raise ValueError(f"{name} of this FractionalHeat is on the meta device: give the network values first")
            number = value.item()
            if not math.isfinite(number):
                shown = "NaN" if math.isnan(number) else "infinite"
                raise ValueError(
                    f"{name} of this FractionalHeat is {shown}: training diverged, go back to a checkpoint"
                )

    def multiplier(self, size: Sequence[int]) -> Tensor:
        """Return exp(-(D r)^alpha) on a DCT grid, shape `size`: in (0, 1], one at r = 0, all ones when closed."""
        grid = _checked_size(size, self.dims)
        assert grid is not None
        like = self.delta if self.delta is not None else self.theta if self.theta is not None else torch.empty(())
        if self._always_closed:
            return torch.ones(grid, device=like.device)
        return self._multiplier(grid, like)[0]

    def response(self, grid: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Return the multiplier, shape `grid`, and the 0-d flag "closed", both on the device of `like`.

        The flag is None if the gate cannot close. The result is None if the gate returns its input without a transform.
        """
        self.check_size(grid)
        return None if self._always_closed or self.asleep else self._multiplier(grid, like)

    def tau_slope(self, multiplier: Tensor) -> Tensor:
        """Return -(dm / dtau) / r^alpha, given the multiplier m: for exp(-tau r^alpha) it is m itself."""
        return multiplier

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gate to (N, C, *grid) or (C, *grid)."""
        self._check_input(x)
        if self._always_closed or self.asleep:  # the grid is not read, so an exported graph accepts any
            return x
        response = self.response(tuple(map(int, x.shape[-self.dims :])), x)
        assert response is not None
        multiplier, closed = response
        spectrum = dct(x, dims=self.dims, transform=self.transform)
        y = idct(multiplier * spectrum, dims=self.dims, transform=self.transform).to(x.dtype)
        return y if closed is None else torch.where(closed, x, y)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self.asleep = False
        super()._load_from_state_dict(*args, **options)

    def extra_repr(self) -> str:
        """Name the grid and the parameterisation."""
        if self.retired:
            return "retired"
        grid = "any" if self.size is None else "x".join(map(str, self.size))
        return f"grid={grid}, dims={self.dims}, alpha={self._order.name}, strength={self._strength.name}"

    @property
    def _constant_alpha(self) -> float:
        """Alpha if there is no theta: it is remembered, fixed, or never used."""
        if self._retired_alpha is not None:
            return self._retired_alpha
        return self._order.scalar(self._initial_theta) if self._order.value is None else self._order.value

    @property
    def _always_closed(self) -> bool:
        return self.retired or self._strength.value == 0.0

    def _multiplier(self, grid: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the multiplier in the dtype of computation, and the 0-d flag "closed" (None if it cannot close).

        The exponent is computed as alpha * (log D + log r), because D^alpha has an infinite derivative at zero. Modes
        without an exponent (r = 0, or a closed gate) are masked before and after, so that they have no gradient.
        """
        dtype = compute_dtype(like)
        mean_mode = constant(_mean_mode, grid, like.device, torch.bool)
        alpha = self._constant_alpha if self.theta is None else self._order.map(self.theta.to(dtype))
        log_strength: Tensor | float
        closed: Tensor | None
        if self.delta is None:
            log_strength, closed = math.log(self._strength.value or 1.0), None
        else:
            log_strength, closed = self._strength.log(self.delta.to(dtype))
        exponent = (alpha * (log_strength + log_radius(grid, like))).clamp(max=LARGEST_LOG_EXPONENT)
        keep = mean_mode if closed is None else mean_mode | closed
        return torch.where(keep, 1.0, self._decay(exponent)), closed

    def _decay(self, exponent: Tensor) -> Tensor:
        """Return the multiplier exp(-tau r^alpha), given the logarithm of tau r^alpha."""
        return torch.exp(-torch.exp(exponent))

    def check_size(self, grid: tuple[int, ...]) -> None:
        """Raise ValueError if the gate was built for another grid."""
        if self.size is not None and grid != self.size:
            raise ValueError(
                f"x has grid {grid} but this gate was built for size={self.size}: "
                "resize x, or build the gate with size=None"
            )

    def _check_input(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}: FractionalHeat needs a floating tensor, call x.float()")
        if x.ndim not in (self.dims + 1, self.dims + 2):
            raise ValueError(
                f"x has {x.ndim} axes, shape {tuple(x.shape)}: a {self.dims}D gate takes (N, C, *grid) or (C, *grid)"
            )
        grid = tuple(x.shape[-self.dims :])
        if 0 in grid:
            raise ValueError(f"x has an empty axis in its grid {grid}: every length must be at least 1")
        self.check_size(grid)
        if _readable_for_free(self.delta) or _readable_for_free(self.theta):
            self.check_parameters()


def frequency_radius(*size: int) -> NDArray[np.float64]:
    """Return r on the DCT grid, shape `size`: the norm of the per-axis frequencies pi k / N, in [0, pi sqrt(dims))."""
    axes = [np.pi * np.arange(length) / length for length in size]
    squares = np.stack([axis**2 for axis in np.meshgrid(*axes, indexing="ij")])
    return np.asarray(np.sqrt(squares.sum(axis=0)))


def log_radius(grid: tuple[int, ...], like: Tensor) -> Tensor:
    """Return log r, shape `grid`, on the device of `like`; it is 0 at r = 0, which is masked wherever it is used."""
    return constant(_log_radius, grid, like.device, compute_dtype(like))


def _log_radius(*size: int) -> NDArray[np.float64]:
    radius = frequency_radius(*size)
    return np.asarray(np.log(np.where(radius > 0, radius, 1.0)))


def _mean_mode(*size: int) -> NDArray[np.float64]:
    return np.asarray(frequency_radius(*size) == 0, dtype=np.float64)


def _readable_for_free(value: Tensor | None) -> bool:
    """Return whether the host can read the value without waiting for a device and without breaking a trace."""
    return (
        value is not None
        and value.device.type == "cpu"
        and type(value) is nn.Parameter
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def _checked_size(size: int | Sequence[int] | None, dims: int) -> tuple[int, ...] | None:
    if size is None:
        return None
    try:
        grid = tuple(map(operator.index, size)) if isinstance(size, Sequence) else (operator.index(size),) * dims
    except TypeError:
        raise ValueError(f"size={size!r} is not a grid: every length must be a whole number of at least 1") from None
    if len(grid) != dims:
        raise ValueError(f"size={grid} has {len(grid)} axes but dims={dims}: give {dims} lengths or change dims")
    if min(grid) < 1:
        raise ValueError(f"size={grid} is not a grid: every length must be a whole number of at least 1")
    return grid
