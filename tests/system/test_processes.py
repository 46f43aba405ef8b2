"""A group of processes: alone it is not there; in a group, draws are rows of what one process would draw."""

import pickle

import pytest
import torch

from fheat.methods.cse import box_scores
from fheat.methods.teacher import noisy
from fheat.methods.views import gamma, noise, soft_mask
from fheat.system.errors import BadInput
from fheat.system.processes import ALONE, Group, acting_as, current, joined


def test_alone_nothing_is_sent_or_copied():
    x = torch.randn(4, 3)
    assert all(call(x) is x for call in (ALONE.rows, ALONE.sum, ALONE.mean, ALONE.gather))
    assert ALONE.largest(7) == 7
    assert ALONE.tell("x") == ["x"]
    assert ALONE.together(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        ALONE.lead(lambda: 1 // 0)


def test_rows_of_all_are_the_batch():
    x = torch.randn(6, 2)
    parts = [Group(rank, 3).rows(x) for rank in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert torch.equal(torch.cat(parts), x)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "augment",
    [
        lambda x: gamma(x, x.amin((2, 3, 4)), x.amax((2, 3, 4))),
        lambda x: noise(x, probability=0.75),
        lambda x: soft_mask(x, block=2),
        lambda x: noisy(x, 0.1),
    ],
    ids=["gamma", "noise", "soft_mask", "noisy"],
)
def test_augmentation_in_rows_is_that_of_the_batch(augment, channels, size):
    images = torch.randn(channels, 4, 6, 5, 4).transpose(0, 1)  # as crops lie in memory

    def seeded(group):
        torch.manual_seed(3)
        with acting_as(group):
            return augment(group.rows(images)), torch.get_rng_state()

    whole, after = seeded(ALONE)
    parts = [seeded(Group(rank, size)) for rank in range(size)]
    assert (torch.cat([part for part, _ in parts]) - whole).abs().max() < 1e-6  # powers are rounded by layout
    assert all(torch.equal(state, after) for _, state in parts)
    assert not torch.equal(whole, images)


@pytest.mark.parametrize("channels", [1, 3])
def test_noise_alone_is_what_randn_like_draws(channels):
    images = torch.zeros(channels, 2, 6, 5, 4).transpose(0, 1)
    torch.manual_seed(3)
    drawn = noise(images, probability=1.0)
    torch.manual_seed(3)
    amount = torch.rand(2, 1, 1, 1, 1) * 0.1
    torch.rand(2, 1, 1, 1, 1)
    assert torch.equal(drawn, images + amount * torch.randn_like(images))


def test_bad_input_travels_between_processes():
    error = pickle.loads(pickle.dumps(BadInput("scan.nii", "is empty", "send it again")))
    assert str(error) == "scan.nii: is empty; send it again"
    assert error.remedy == "send it again"


def test_boxes_are_scored_over_the_batch_of_the_group():
    attention, patch, parts = torch.rand(2, 1, 7, 7, 5), torch.Size((112, 112, 80)), []

    class Adding(Group):
        def sum(self, part):
            parts.append(part)
            return sum(parts)

    with acting_as(Adding()):
        box_scores(attention[:1], patch)
        both = box_scores(attention[1:], patch)
    assert (both - box_scores(attention, patch)).abs().max() < 1e-5
    assert (both - box_scores(attention[1:], patch)).abs().max() > 1e-2


def test_a_place_holds_for_a_block_and_is_given_back():
    with acting_as(Group(1, 3)) as group:
        assert current() is group
        with acting_as(Group(2, 3)):
            assert current().rank == 2
        assert current() is group
    assert current() is ALONE


def test_a_size_without_a_rank_is_no_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with joined() as group:
        assert group is ALONE
