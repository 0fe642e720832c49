from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data.base import Loaded, Samples, carve, distinct, overlap, parts, stratified


def numbers(samples):
    """Which rows of the toy set these are."""
    return set((samples.x.flatten(1)[:, :4].long() @ 256 ** torch.arange(4)).tolist())


@settings(deadline=None, max_examples=60)
@given(st.data(), st.lists(st.integers(-2, 3), max_size=60))
def test_a_stratified_draw_gives_each_class_its_share(data, values):
    y = torch.tensor(values, dtype=torch.int64)
    count = data.draw(st.integers(0, len(values)))
    rows = stratified(y, count, seed=3)
    assert len(rows) == len(set(rows.tolist())) == count
    assert rows.tolist() == sorted(rows.tolist())
    for label in set(values):
        share = values.count(label) * count / len(values)
        assert abs(int((y[rows] == label).sum()) - share) < 1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=80))
def test_a_carved_set_is_whole_and_a_tenth_is_for_testing(values):
    y = torch.tensor(values)
    train, test = carve(y, seed=1)
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(len(y)))
    assert len(test) == max(1, round(len(y) / 10))
    assert all(abs(int((y[test] == label).sum()) - values.count(label) * len(test) / len(y)) < 1 for label in values)


def test_one_sample_cannot_be_carved():
    with pytest.raises(ValueError, match="one sample cannot be both trained on and tested: give more samples, or a"):
        carve(torch.tensor([0]), seed=0)


def test_parts_are_disjoint_complete_and_of_the_asked_sizes(loaded):
    cut = parts(loaded, aux=150, val=0.1, seed=0)
    assert (len(cut.aux), len(cut.val), len(cut.private)) == (150, 45, 405)
    assert numbers(cut.aux) | numbers(cut.val) | numbers(cut.private) == set(range(600))
    assert cut.test is loaded.test


def test_parts_keep_the_mixture_of_classes(loaded):
    cut = parts(loaded, aux=150, val=0.2, seed=0)
    for part in (cut.aux, cut.val, cut.private):
        shares = part.y.bincount() / len(part)
        torch.testing.assert_close(shares, torch.tensor([1 / 2, 1 / 3, 1 / 6]), rtol=0, atol=0.01)


def test_parts_follow_from_the_seed(loaded):
    first, again, other = (parts(loaded, aux=50, val=0.1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.private.x, again.private.x)
    assert numbers(first.aux) != numbers(other.aux)
    assert numbers(first.val) != numbers(other.val)


def test_nobody_needs_an_attacker_or_a_validation_set(loaded):
    cut = parts(loaded, aux=0, val=0, seed=0)
    assert (len(cut.aux), len(cut.val), len(cut.private)) == (0, 0, 600)
    assert cut.aux.images().shape == (0, 1, 2, 4)


@pytest.mark.parametrize(
    ("aux", "val", "words"),
    [
        (600, 0, "aux_samples is how many of the 600 training samples an attacker holds, 0 to 599; got 600"),
        (-1, 0, "0 to 599; got -1"),
        (0, 1, r"val_share is the share of the remaining samples held out, in \[0, 1\); got 1"),
        (0, -0.1, "got -0.1"),
        (597, 0.1, "val_share=0.1 of the 3 samples that aux_samples=597 leaves is 0 .* set val_share to 0"),
        (598, 0.9, "is 2 for validation and 0 for training: load more samples, lower aux_samples"),
    ],
)
def test_impossible_sizes_are_refused(loaded, aux, val, words):
    with pytest.raises(ValueError, match=words):
        parts(loaded, aux=aux, val=val, seed=0)


def test_overlap_counts_images_in_both(toy):
    samples = toy(20)
    low, high = samples[torch.arange(12)], samples[torch.arange(9, 20)]
    assert overlap(low, high) == overlap(high, low) == 3
    assert overlap(low, samples[torch.arange(12, 20)]) == 0
    twice = samples[torch.tensor([9, 9, 10])]
    assert overlap(low, twice) == 2


def test_overlap_sees_through_floats_and_not_past_shapes(toy):
    samples = toy(20)
    floats = replace(samples, x=samples.images())
    assert overlap(samples, floats) == 20
    assert overlap(samples, replace(samples, x=samples.x.reshape(20, 1, 4, 2))) == 0


def test_copies_can_be_left_out(toy):
    samples = toy(30)
    twice = samples[torch.tensor([0, 1, 2, 1, 3, 0, 4, 1])]
    left = distinct(Loaded(twice, samples[torch.tensor([3, 3, 9])], ("a", "b", "c")))
    assert left.train.identity.tolist() == samples.identity[[0, 1, 2, 4]].tolist()
    assert left.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 4]
    assert left.test.x[:, 0, 0, 0].tolist() == [3, 3, 9]


def test_floats_that_differ_in_one_bit_are_different_images():
    a, b = (Samples(torch.tensor([[value]]), torch.tensor([0])) for value in (0.5, 0.5 + 2**-24))
    assert overlap(a, a) == 1
    assert overlap(a, b) == 0


def test_parts_of_one_set_do_not_overlap(loaded):
    cut = parts(loaded, aux=100, val=0.1, seed=0)
    assert overlap(cut.private, cut.aux) == overlap(cut.private, cut.val) == overlap(cut.val, cut.aux) == 0
