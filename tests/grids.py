"""Grids in space for the tests: every orientation, several spacings, oblique angles."""

import itertools

import numpy as np


def oblique(degrees):
    """Rotation about a skew axis."""
    axis = np.array([1.0, 2.0, -1.5]) / np.linalg.norm([1.0, 2.0, -1.5])
    angle = np.radians(degrees)
    cross = np.cross(np.eye(3), axis)
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def affines():
    """48 axis orders and flips x 3 spacings x 3 oblique angles."""
    for order, signs in itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)):
        for spacing, degrees in itertools.product(((1, 1, 1), (0.625, 0.625, 1.25), (0.3, 0.3, 10)), (0, 17, 45)):
            matrix = oblique(degrees) @ (np.eye(3)[:, order] * signs) @ np.diag(spacing)
            affine = np.eye(4)
            affine[:3, :3], affine[:3, 3] = matrix, (-31.5, 12.25, 7.0)
            yield affine, spacing
