"""The memory of vectors by class: rings, random draws without repetition, and the choice of voxels by their scores."""

import pytest
import torch

from fheat.methods.ring_memory import RingMemory, choose, class_scores
from fheat.system.processes import Group, acting_as


def stored(memory, k):
    """Return the first channel of everything that is remembered of a class."""
    return sorted(memory.vectors[k, : min(int(memory.written[k]), memory.capacity), 0].tolist())


def rows(*values):
    """Return vectors with two channels, (1, n, 2)."""
    return torch.tensor(values).view(1, -1, 1).expand(1, -1, 2)


def test_the_oldest_is_overwritten_first():
    memory, expected = RingMemory(1, 5, 2), []
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        kept = torch.rand(1, 3, generator=generator) > 0.4
        new = [10.0 * step + place for place in range(3)]
        memory.write(rows(*new), kept)
        expected = (expected + [value for value, keep in zip(new, kept[0], strict=True) if keep])[-5:]
        assert stored(memory, 0) == expected
    assert memory.written > 5


def test_classes_have_rings_of_their_own():
    memory = RingMemory(2, 4, 1)
    memory.write(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[True, True], [False, True]]))
    assert (stored(memory, 0), stored(memory, 1)) == ([1, 2], [4])
    assert memory.written.tolist() == [2, 1]


def test_draws_do_not_repeat_and_are_uniform():
    memory = RingMemory(2, 8, 1)
    memory.write(torch.arange(12.0).view(2, 6, 1), torch.ones(2, 6, dtype=torch.bool))
    memory.write(torch.zeros(2, 1, 1), torch.tensor([[False], [True]]))
    seen = torch.zeros(6)
    for _ in range(2000):
        found, enough = memory.sample(3)
        assert len(set(found[0, :, 0].tolist())) == 3
        assert enough.all()
        seen[found[0, :, 0].long()] += 1
    assert (seen / 2000 - 0.5).abs().max() < 0.05
    assert memory.sample(7)[1].tolist() == [False, True]
    assert torch.equal(memory.sample(7)[0][1].sort(dim=0).values.flatten(), torch.tensor([0.0, 6, 7, 8, 9, 10, 11]))


def test_the_highest_scores_of_each_class_are_chosen():
    scores, labels = torch.rand(50), torch.randint(3, (50,))
    eligible = (torch.rand(50) > 0.5) & (labels < 2)
    places, kept = choose(class_scores(scores, labels, eligible, 3), 8)
    assert places.shape == kept.shape == (3, 8)
    for k in range(3):
        able = [(scores[v].item(), v) for v in range(50) if labels[v] == k and eligible[v]]
        expected = [v for _, v in sorted(able, reverse=True)[:8]]
        assert sorted(places[k][kept[k]].tolist()) == sorted(expected)
    assert choose(class_scores(scores, labels, eligible, 3), 99).places.shape == (3, 50)


class Pretended(Group):
    """One of two processes; what the other one sends is known beforehand."""

    def __init__(self, rank, sent):
        super().__init__(rank, 2)
        vars(self)["sent"] = list(sent)

    def gather(self, part):
        other = self.sent.pop(0).to(part.dtype)
        return torch.cat([other, part] if self.rank else [part, other])


@pytest.mark.parametrize("count", [3, 6])
def test_two_processes_choose_and_remember_what_one_would(count):
    scores = class_scores(torch.rand(20), torch.randint(2, (20,)), torch.rand(20) > 0.2, 2)
    whole = choose(scores, count)
    expected = [set(places[kept].tolist()) for places, kept in zip(*whole, strict=True)]
    parts, choices = scores.split(10, dim=1), []
    for rank in range(2):
        with acting_as(Pretended(rank, [parts[1 - rank].topk(count).values.T])):
            places, kept = choose(parts[rank], count)
        choices.append(((10 * rank + places[:, :, None]).float(), kept))
    found = [{value for vectors, kept in choices for value in vectors[k][kept[k]].flatten().tolist()} for k in range(2)]
    assert found == expected
    memories = []
    for rank in range(2):
        memory = RingMemory(2, 6, 1)
        vectors, kept = choices[1 - rank]
        with acting_as(Pretended(rank, [vectors.transpose(0, 1), kept.T])):
            memory.write(*choices[rank])
        memories.append(memory)
        assert [set(stored(memory, k)) for k in range(2)] == expected
    assert torch.equal(*(memory.vectors for memory in memories))
