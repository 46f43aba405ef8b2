"""Two classes by one logit: the same probabilities, from half the output."""

import types

import numpy as np
import pytest
import torch

from fheat import Predictor, create_model
from fheat.inference.one_logit import one_logit
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.light_unetr import LightUNETR
from tests.inference.test_runtimes import network

WINDOWS = Windows((32, 32, 32), (10, 16, 16))


@pytest.mark.parametrize("name", ["fheat_seg", "light_unetr"])
@torch.no_grad()
def test_the_sigmoid_of_the_difference_is_the_softmax(name):
    torch.manual_seed(0)
    model, x = create_model(name, patch_size=(32, 32, 32)).eval(), torch.randn(2, 1, 33, 32, 40)
    one = one_logit(model)
    assert one(x).shape == (2, 1, 33, 32, 40)
    assert (one(x).sigmoid() - model(x).softmax(dim=1)[:, 1:]).abs().max() < 1e-6
    assert model(x).shape[1] == 2


def test_other_networks_are_left_alone():
    heard, replaced = network(), network()
    heard.register_forward_hook(lambda module, given, output: 2 * output)
    replaced.head = torch.nn.ConvTranspose3d(24, 2, 4, stride=4)
    overflowing = network()
    overflowing.head.weight.data.fill_(3e38)
    for model in (heard, replaced, overflowing, network(out_channels=3), torch.nn.Conv3d(1, 2, 1)):
        assert one_logit(model) is None


class LogProbabilities(FHEATSeg):
    def forward(self, x):
        return super().forward(x).log_softmax(dim=1)


class LogProbabilitiesInside(LightUNETR):
    def forward_features(self, x):
        found = super().forward_features(x)
        return found._replace(logits=found.logits.log_softmax(dim=1))


class Centred(FHEATSeg):
    def forward(self, x):
        logits = super().forward(x)
        return logits - logits.mean(dim=1, keepdim=True)


class WithPrior(FHEATSeg):
    def forward(self, x):
        return super().forward(x) + torch.tensor([0.0, 0.05])[:, None, None, None]


class Flipped(FHEATSeg):
    def forward(self, x):
        return super().forward(x).flip(1)


def with_own_forward(kind=FHEATSeg, name="forward"):
    model = kind(patch_size=(32, 32, 32))
    if name == "forward":
        model.forward = types.MethodType(lambda self, x: type(self).forward(self, x).flip(1), model)
    else:
        inner = type(model).forward_features
        model.forward_features = types.MethodType(
            lambda self, x: (found := inner(self, x))._replace(logits=found.logits.flip(1)), model
        )
    return model


def with_own_head():
    model = FHEATSeg(patch_size=(32, 32, 32))
    model.head.forward = types.MethodType(lambda self, x: type(self).forward(self, x).flip(1), model.head)
    return model


@pytest.mark.parametrize(
    "build",
    [
        with_own_forward,
        lambda: with_own_forward(LightUNETR, "forward_features"),
        with_own_head,
        *(
            lambda kind=kind: kind(patch_size=(32, 32, 32))
            for kind in (LogProbabilities, LogProbabilitiesInside, Centred, WithPrior, Flipped)
        ),
    ],
    ids=["forward", "features", "head", "log", "log-inside", "centred", "prior", "flipped"],
)
@torch.no_grad()
def test_a_network_with_a_forward_pass_of_its_own_has_its_own_masks(build):
    torch.manual_seed(0)
    model = build().eval()
    scan = np.random.default_rng(0).normal(size=(40, 36, 32)).astype(np.float32)
    expected = SlidingWindow(model, WINDOWS)(torch.from_numpy(scan)[None]).argmax(0).numpy()
    assert 0.01 < expected.mean() < 0.99
    found = Predictor(model, windows=WINDOWS, runtime="torch", device="cpu").segment(scan, check=False)
    assert (found == expected).mean() > 0.9999


@torch.no_grad()
def test_one_logit_is_one_channel_and_has_no_members():
    with pytest.raises(ValueError, match="takes one channel, not the 2"):
        SlidingWindow(network(), WINDOWS, activation="difference")(torch.randn(1, 32, 32, 32))
    for more in ({"members": True}, {"groups": 2}):
        with pytest.raises(ValueError, match="use softmax with members or groups"):
            SlidingWindow(network(), WINDOWS, activation="difference", **more)


@torch.no_grad()
def test_averages_are_those_of_both_classes():
    model, image = network(), torch.randn(1, 50, 40, 32)
    expected = SlidingWindow(model, WINDOWS)(image)
    found = SlidingWindow(one_logit(model), WINDOWS, activation="difference")(image)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-6


def test_a_predictor_uses_it_for_two_classes_on_a_cpu():
    scan = np.random.default_rng(0).normal(size=(50, 40, 32)).astype(np.float32)
    two = Predictor(network(), windows=WINDOWS, runtime="torch", probabilities=True)
    assert two.sliding(None).activation == "difference"
    assert two.activation == "softmax"
    found = two.predict(scan)
    probabilities = torch.from_numpy(found.probabilities.data)
    expected = SlidingWindow(two.network, WINDOWS)(torch.from_numpy(scan)[None]).movedim(0, -1)
    assert probabilities.shape == (50, 40, 32, 2)
    assert (probabilities - expected).abs().max() < 1e-5
    assert (found.mask.data == probabilities.argmax(dim=-1).numpy()).all()
    members = Predictor(network(), windows=WINDOWS, runtime="torch", flips=True, uncertainty="disagreement")
    three = Predictor(network(out_channels=3), windows=WINDOWS, runtime="torch")
    assert members.sliding(None).activation == three.sliding(None).activation == "softmax"


def test_an_infinite_difference_is_as_bad_as_infinite_logits():
    sliding = SlidingWindow(lambda x: x / 0, Windows((8, 8, 8), (4, 4, 4)), activation="difference")
    assert sliding(torch.ones(1, 8, 8, 8)).isnan().all()
