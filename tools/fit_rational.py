"""Fit the initial coefficients of the rational activation and print the largest error: `make fit`.

GELU and SiLU are x/2 plus an even function. With an even denominator Q = 1 + b2 x^2 + b4 x^4 the odd part is exact
(a1 = 1/2, a3 = b2/2, a5 = b4/2) and only a2, a4, b2, b4 are left. For a fixed error level t the condition
|a2 x^2 + a4 x^4 - h(x) Q(x)| <= t Q(x) is linear in them, so the minimax fit is a bisection over linear programs.
b2, b4 >= 0 keeps the inner polynomial of the denominator non-negative, so the absolute value around it never bends.
"""

import numpy as np
from numpy.typing import NDArray
from results import write_result
from scipy.optimize import linprog
from scipy.special import erf, expit

HALF_WIDTH = 8.0
EVEN_PART = {
    "gelu": lambda x: x * erf(x / np.sqrt(2)) / 2,
    "silu": lambda x: x * (expit(x) - 0.5),
}


def minimax(even: NDArray[np.float64], x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the smallest error level (to 1e-9) and (a2, a4, b2, b4) that reach it on the points x."""
    low, high, best = 0.0, 1.0, None
    columns = np.stack([x**2, x**4, -even * x**2, -even * x**4], axis=1)
    scale = np.array([1.0, HALF_WIDTH**2, 1.0, HALF_WIDTH**2])  # x^4 columns are 64 times the others
    while high - low > 1e-9:
        level = (low + high) / 2
        slack = np.stack([0 * x, 0 * x, level * x**2, level * x**4], axis=1)
        found = linprog(
            np.zeros(4),
            A_ub=np.concatenate([columns - slack, -columns - slack]) / scale,
            b_ub=np.concatenate([level + even, level - even]),
            bounds=[(None, None), (None, None), (0, None), (0, None)],
        )
        if found.success:
            high, best = level, found.x / scale
        else:
            low = level
    assert best is not None
    return high, best


def fit(name: str, points: int = 1001) -> dict[str, object]:
    even = EVEN_PART[name]
    x = HALF_WIDTH * np.sin(np.linspace(0, np.pi / 2, points))  # denser at the end, where the error peaks
    _, (a2, a4, b2, b4) = minimax(even(x), x)
    a2, a4, b2, b4 = (float(f"{value:.9g}") for value in (a2, a4, b2, b4))
    numerator = [0.0, 0.5, a2, b2 / 2, a4, b4 / 2]
    denominator = [0.0, b2, 0.0, b4]
    return {
        "numerator": numerator,
        "denominator": denominator,
        "max_error": max_error(name, numerator, denominator),
    }


def max_error(name: str, numerator: list[float], denominator: list[float]) -> float:
    """Largest |rational - target| on [-8, 8], on a grid ten times finer than the fit's."""
    x = np.linspace(-HALF_WIDTH, HALF_WIDTH, 20001)
    value = np.polyval(numerator[::-1], x) / (1 + np.abs(x * np.polyval(denominator[::-1], x)))
    return float(np.max(np.abs(value - x / 2 - EVEN_PART[name](x))))


def main() -> None:
    fits = {name: fit(name) for name in EVEN_PART}
    for name, result in fits.items():
        print(f"{name}: max error {result['max_error']:.3e} on [-{HALF_WIDTH:g}, {HALF_WIDTH:g}]")
        print(f"  numerator   {result['numerator']}\n  denominator {result['denominator']}")
    write_result(
        "rational-fit",
        title="Initial coefficients of the rational activation and their largest error",
        command="make fit",
        seed=None,
        settings={"half_width": HALF_WIDTH},
        results={"fits": fits},
    )


if __name__ == "__main__":
    main()
