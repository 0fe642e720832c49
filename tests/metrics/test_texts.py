"""Figures of recovered texts: against slow twins, at their bounds, and what padding earns."""

import pytest
import torch

from cutlayer.metrics.texts import names, rouge_l, scores, striking_tokens, token_accuracy


def drawn(seed, count=12, length=9, vocabulary=7):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, vocabulary, (count, length), generator=draw)
    ends = torch.randint(1, length + 1, (count,), generator=draw)
    return torch.where(torch.arange(length) < ends[:, None], rows, 0)


def common_slowly(one, other):
    one, other = ([token for token in row.tolist() if token] for row in (one, other))
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if a == b else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1], len(one), len(other)


@pytest.mark.parametrize("seed", range(5))
def test_rouge_is_that_of_the_textbook(seed):
    truth, guess = drawn(seed), drawn(seed + 50)
    for value, one, other in zip(rouge_l(truth, guess), truth, guess, strict=True):
        common, wanted, written = common_slowly(one, other)
        assert float(value) == pytest.approx(2 * common / (wanted + written))


def test_a_word_more_at_the_front_costs_every_place_and_rouge_little():
    truth = torch.arange(1, 11)[None]
    guess = torch.cat([torch.tensor([[11]]), truth[:, :-1]], 1)
    assert float(token_accuracy(truth, guess)) == 0 and float(rouge_l(truth, guess)) == pytest.approx(0.9)


def test_the_truth_scores_one_and_nothing_scores_nothing():
    truth = drawn(1)
    for guess, least in ((truth, 1.0), (torch.zeros_like(truth), 0.0)):
        found = scores(truth, guess, torch.ones(7, dtype=torch.bool))
        assert all(value == least for value in found.values())


def test_padding_earns_nothing():
    truth = torch.tensor([[3, 4, 0, 0]])
    assert float(token_accuracy(truth, torch.tensor([[3, 5, 0, 0]]))) == 0.5
    assert float(token_accuracy(truth, torch.tensor([[3, 5, 6, 6]]))) == 0.5
    assert float(token_accuracy(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))) == 0


def test_names_count_at_their_own_place():
    striking = torch.tensor([False, False, True, True])
    truth = torch.tensor([[2, 1, 2, 3], [1, 1, 1, 0]])
    found = names(truth, torch.tensor([[1, 2, 2, 3], [2, 2, 2, 2]]), striking)
    assert found.there.tolist() == [True, False], "a text without a name has nothing to find"
    assert found.found.tolist() == pytest.approx([2 / 3])
    assert names(truth, truth, striking).found.tolist() == [1]
    assert scores(truth[1:], truth[1:], striking)["names_found"] == 0, "where there is none, none was found"


def test_names_have_capitals_and_numbers_digits():
    known = torch.tensor([[1, 1, 2, 3, 4]])
    told = striking_tokens(5, known, ["<pad>", "[UNK]", "Anna", "1984", "b2b"])
    assert told.tolist() == [False, False, True, True, True], "a sign for unknown words is no name"


def test_rare_tokens_stand_for_names_where_no_word_shows_one():
    known = torch.tensor([[1] * 60 + [2] * 37 + [3] * 3])
    assert striking_tokens(5, known).tolist() == [False, False, False, True, True]
    lowered = striking_tokens(5, known, ["<pad>", "the", "4th", "anna", "b"])
    assert lowered.tolist() == [False, False, True, True, True], "what is lowered hides its names"


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"rows of token ids.*\(2, 3\); got \(2, 4\)"):
        token_accuracy(torch.zeros(2, 3), torch.zeros(2, 4))
