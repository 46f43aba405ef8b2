"""A step of CSE with predictions that are given instead of made by a network."""

import torch
from torch import nn

from fheat.methods.base import Batch, Task
from fheat.methods.cse import CSE, CSESettings
from fheat.networks.base import Features


def cse(patch_size, batch=2, **settings):
    """Return the method for crops of this size."""
    return CSE(CSESettings(**settings), Task(patch_size, batch))


def batch_of(images, labels, unlabelled):
    """Return a batch whose scans span the intensities of their crops."""
    low, high = (bound(unlabelled.flatten(2), dim=2) for bound in (torch.amin, torch.amax))
    return Batch(images, labels, unlabelled, low, high)


class Given(nn.Module):
    """Predicts `weak` on the weak view and `views` on what is learned from, whatever it sees."""

    def __init__(self, weak, views):
        super().__init__()
        self.weak, self.views = weak, views

    def forward(self, x):
        return self.views

    def forward_features(self, x):
        return Features(self.weak, torch.ones(len(x), 1, 2, 2, 2), x)


def consistency(method, weak, strong):
    """Take one step with these predictions of the weak and the strong view."""
    images, labels = torch.zeros_like(weak[:, :1]), torch.zeros_like(weak[:, 0], dtype=torch.int64)
    views = torch.cat([torch.zeros_like(strong), strong, torch.zeros_like(strong)])
    losses = method.losses(Given(weak, views), batch_of(images, labels, images))
    return losses["consistency"], losses["accepted"]
