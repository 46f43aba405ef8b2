"""Theorems about the operator, measured: heat flow, identity, norm, semigroup, complete monotonicity, shape, rounding.

Every function returns numbers and needs a fraction of a second. Dense matrices and definitions stand against the gate.
"""

import itertools
import math
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import expm, fractional_matrix_power

from fheat import FractionalHeat, cost
from fheat.nn.fheat import FHEAT
from fheat.ops.dct import dct, dct_matrix, idct
from fheat.ops.heat import frequency_radius

SITE_GRIDS = {
    "enc1, dec1": (24, 28, 28, 20),
    "enc2, dec2": (48, 14, 14, 10),
    "enc3, dec3": (60, 8, 8, 6),
    "enc4, dec4": (96, 4, 4, 3),
}
"""Channels and grid of every stage of FHEAT-Seg for a patch of 112x112x80."""
ORDERS = (0.05, 0.3, 0.372, 0.75, 0.9, 1.0, 1.5, 2.0)
SMALL_GRIDS: tuple[tuple[int, ...], ...] = ((16,), (6, 7), (4, 5, 3))
DIGITS = 60
"""Digits of the arithmetic in which signs of high differences are decided."""

Array = NDArray[np.float64]


def _basis(grid: tuple[int, ...]) -> Array:
    """Return the normalised cosine modes of eq. (2), one per row, (modes, voxels)."""
    rows = dct_matrix(grid[0])
    for length in grid[1:]:
        rows = np.kron(rows, dct_matrix(length))
    return rows


def _dense(gate: FractionalHeat, grid: tuple[int, ...]) -> Array:
    """Return the matrix of a gate, (voxels, voxels)."""
    voxels = math.prod(grid)
    unit = torch.eye(voxels, dtype=torch.float64).reshape(voxels, 1, *grid)
    with torch.no_grad():
        return np.asarray(gate(unit).reshape(voxels, voxels))


def heat_flow() -> dict[str, Any]:
    """Compare the gate with exp(-tau A), A = (-Laplace)^(alpha/2) as a matrix power of the spectral Laplacian (C02).

    The finite-difference Laplacian with insulated ends has the same modes but smaller eigenvalues; both are measured.
    """
    differences = {}
    for grid in SMALL_GRIDS:
        modes = _basis(grid)
        laplacian = modes.T @ np.diag(frequency_radius(*grid).ravel() ** 2) @ modes
        constants = np.full(laplacian.shape, 1 / len(laplacian))
        apart = []
        for alpha, strength in itertools.product((0.37, 0.9, 1.6), (0.03, 1.0, 3.0)):
            # The Laplacian is singular on constants; there one takes the place of zero, before the power and not after.
            power = np.real(fractional_matrix_power(laplacian + constants, alpha / 2)) - constants
            flow = expm(-(strength**alpha) * power)
            gate = FractionalHeat(dims=len(grid), alpha=alpha, strength=strength)
            apart.append(float(np.abs(flow - _dense(gate, grid)).max()))
        differences["x".join(map(str, grid))] = max(apart)
    length = 16
    path = np.diag([1.0, *[2.0] * (length - 2), 1.0]) - np.eye(length, k=1) - np.eye(length, k=-1)
    turned = dct_matrix(length) @ path @ dct_matrix(length).T
    eigenvalues = np.diag(turned)
    return {
        "largest_difference": max(differences.values()),
        "by_grid": differences,
        "finite_differences": {
            "coupling_between_modes": float(np.abs(turned - np.diag(eigenvalues)).max()),
            "top_eigenvalue_over_spectral": float(eigenvalues[-1] / frequency_radius(length)[-1] ** 2),
        },
    }


def start() -> dict[str, float]:
    """Return alpha, D and tau before training, and what the gate of enc1 leaves of its highest mode (C03)."""
    gate = FractionalHeat()
    return {
        "alpha": gate.alpha.item(),
        "D": gate.strength.item(),
        "tau": gate.tau.item(),
        "top_mode_left": gate.multiplier(SITE_GRIDS["enc1, dec1"][1:])[-1, -1, -1].item(),
    }


def identity() -> dict[str, Any]:
    """Count how often a gate with D = 0 returns its input bit for bit; say how far FHEAT is from affine (C04).

    An affine map has f(a + b) - f(a) - f(b) + f(0) = 0; the norm of this is divided by that of f(a) - f(0).
    """
    kinds = (torch.float32, torch.float64, torch.bfloat16)
    equal = tried = 0
    for grid, alpha, kind in itertools.product(((5,), (16, 3), (28, 28, 20)), ORDERS, kinds):
        gate = FractionalHeat(dims=len(grid), alpha=alpha, initial_strength=0.0)
        x = torch.randn(1, 2, *grid).to(kind)
        equal += torch.equal(gate(x), x)
        tried += 1
    block, gate = FHEAT(8).double(), FractionalHeat(initial_strength=0.0)
    a, b = torch.randn(2, 1, 8, 6, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        origin, at_a, at_b, at_both = (block(x, gate) for x in (0 * a, a, b, a + b))
    defect = (at_both - at_a - at_b + origin).norm() / (at_a - origin).norm()
    return {"equal": equal, "tried": tried, "fheat_distance_from_affine": float(defect)}


def rounding() -> dict[str, Any]:
    """Return max |y - x| / max |x| of a transform pair with multiplier one in float32, on every grid (C05)."""
    apart = {}
    for sites, shape in SITE_GRIDS.items():
        x = torch.randn(1, *shape)
        apart[sites] = float((idct(dct(x)) - x).abs().max() / x.abs().max())
    gate = FractionalHeat(initial_strength=0.0)
    x = torch.randn(1, *SITE_GRIDS["enc1, dec1"])
    return {"transform_pair": max(apart.values()), "by_site": apart, "closed_gate": (gate(x) - x).abs().max().item()}


def norm() -> dict[str, float]:
    """Compare the operator norm of dense gates with 1, and off the mean with exp(-(D r_min)^alpha) (C06)."""
    whole, off_mean, largest = 0.0, 0.0, 0.0
    for grid, alpha, strength in itertools.product(SMALL_GRIDS, (0.37, 0.9, 2.0), (0.03, 1.2, 5.0)):
        matrix = _dense(FractionalHeat(dims=len(grid), alpha=alpha, strength=strength), grid)
        voxels = len(matrix)
        fluctuation = matrix @ (np.eye(voxels) - np.full((voxels, voxels), 1 / voxels))
        expected = math.exp(-((strength * math.pi / max(grid)) ** alpha))
        found = float(np.linalg.norm(fluctuation, 2))
        whole = max(whole, abs(float(np.linalg.norm(matrix, 2)) - 1))
        off_mean, largest = max(off_mean, abs(found - expected)), max(largest, found)
    return {"distance_from_one": whole, "off_mean_from_formula": off_mean, "largest_off_mean": largest}


def monotonicity() -> dict[str, Any]:
    """Test complete monotonicity of s -> exp(-s^(alpha/2)) and positive definiteness, up to and beyond alpha = 2 (C07).

    (-1)^n times the n-th forward difference of a completely monotone function is never negative; orders up to 12 are
    tried with sixty digits. Gram matrices exp(-|x - y|^alpha) of forty points in space have no negative eigenvalue.
    """
    getcontext().prec = DIGITS
    points = np.random.default_rng(0).normal(size=(40, 3))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)

    def least_difference(alpha: float) -> float:
        half = Decimal(alpha) / 2
        row = [(-((Decimal(step) / 10) ** half)).exp() for step in range(1, 30)]
        least = min(row)
        for _ in range(12):
            row = [low - high for low, high in itertools.pairwise(row)]
            least = min(least, *row)
        return float(least)

    def least_eigenvalue(alpha: float) -> float:
        return float(np.linalg.eigvalsh(np.exp(-(distance**alpha))).min())

    within, beyond = ORDERS, (2.5, 3.0, 4.0)
    return {
        "least_difference_up_to_2": min(map(least_difference, within)),
        "largest_least_difference_beyond_2": max(map(least_difference, beyond)),
        "least_eigenvalue_up_to_2": min(map(least_eigenvalue, within)),
        "largest_least_eigenvalue_beyond_2": max(map(least_eigenvalue, beyond)),
    }


def transform_cost() -> dict[str, float]:
    """Return the counted multiply-adds of a gate over 2 C HWZ (H + W + Z), on every grid (C08)."""
    ratios = []
    for channels, *grid in SITE_GRIDS.values():
        counted = cost(FractionalHeat(transform="product"), (1, channels, *grid)).transform
        ratios.append(counted / (2 * channels * math.prod(grid) * sum(grid)))
    return {"least_over_formula": min(ratios), "largest_over_formula": max(ratios)}


def semigroup() -> dict[str, float]:
    """Return the largest difference between two gates in turn and one gate at the summed time, in float64 (C09)."""
    apart = 0.0
    for grid, alpha in itertools.product(((256,), (14, 10), (8, 8, 6)), ORDERS):
        x = torch.randn(1, 2, *grid, dtype=torch.float64)
        first, second = 0.4, 2.5
        gates = [FractionalHeat(dims=len(grid), alpha=alpha, strength=strength) for strength in (first, second)]
        together = (first**alpha + second**alpha) ** (1 / alpha)
        one = FractionalHeat(dims=len(grid), alpha=alpha, strength=together)
        apart = max(apart, float((gates[0](gates[1](x)) - one(x)).abs().max()))
    return {"largest_difference": apart}


def tikhonov() -> dict[str, float]:
    """Compare the gate with the minimiser of eq. (20), solved as a linear system (C21).

    Both leave 1 - slope * tau r^alpha + ... of a mode. The slope of the minimiser is 2, that of the gate is 1; with
    half the penalty the two agree to first order. Beyond it they part: `at_tau_1` is what each leaves of the highest
    mode.
    """
    length, alpha = 24, 0.9
    modes, powers = dct_matrix(length), frequency_radius(length) ** alpha
    seminorm = modes.T @ np.diag(powers) @ modes
    top, small = modes[-1], 1e-6

    def minimiser(tau: float) -> float:
        # The gradient of 1/2 |u - v|^2 + tau <u, A u> is u - v + 2 tau A u.
        return float(top @ np.linalg.solve(np.eye(length) + 2 * tau * seminorm, top))

    def gate(tau: float) -> float:
        heat = FractionalHeat(dims=1, alpha=alpha, strength=tau ** (1 / alpha))
        return float(top @ heat(torch.from_numpy(top)[None]).numpy()[0])

    return {
        "slope_of_minimiser": (1 - minimiser(small)) / (small * powers[-1]),
        "slope_of_gate": (1 - gate(small)) / (small * powers[-1]),
        "slope_with_half_the_penalty": (1 - minimiser(small / 2)) / (small * powers[-1]),
        "gate_at_tau_1": gate(1.0),
        "minimiser_with_half_the_penalty_at_tau_1": minimiser(0.5),
    }


def shape() -> dict[str, Any]:
    """Return what is left below and above D r = 1 by alpha, and how far alpha = 2 is from a Gaussian (C85)."""
    length, strength = 64, 3.0
    impulse = torch.zeros(1, 1, length, dtype=torch.float64)
    impulse[..., length // 2] = 1.0
    kernel = FractionalHeat(dims=1, alpha=2.0, strength=strength)(impulse)[0, 0].numpy()
    places = np.arange(length) - length // 2
    gaussian = np.exp(-(places**2) / (4 * strength**2)) / (math.sqrt(4 * math.pi) * strength)
    left = {f"D r = {at}": {f"alpha {a}": math.exp(-(at**a)) for a in (0.3, 0.9, 2.0)} for at in (0.5, 2.0)}
    return {"left": left, "gaussian_difference_over_peak": float(np.abs(kernel - gaussian).max() / kernel.max())}
