"""How tests compare kernels with their plain twins."""

import torch


def error(found, expected):
    """Return |found - expected| / |expected| in float64, by Euclidean norms."""
    return ((found.double() - expected.double()).norm() / (expected.double().norm() + 1e-12)).item()


def shaken(module, by=0.3):
    """Move every parameter at random, so that none has a value that hides a fault, such as a bias of zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += by * torch.randn_like(parameter)
    return module
