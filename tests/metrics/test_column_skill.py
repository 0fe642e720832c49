"""Skill of a table's columns: 0 for what needs no look, 1 for everything, and no column outweighs another."""

import pytest
import torch

from cutlayer.core.columns import Column, features, unnamed
from cutlayer.metrics.columns import Limits, by_column, cells, scores, skill

TABLE = (Column("age", 0), Column("town", 1, ("a", "b", "c")), Column("fixed", 4))


def table(count=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    town = torch.nn.functional.one_hot((torch.rand(count, generator=draw) * 4).long().clamp_max(2), 3).float()
    return torch.cat([torch.randn(count, 1, generator=draw), town, torch.ones(count, 1)], 1)


def found(truth, guess, columns=TABLE, known=None):
    return cells(truth, guess, Limits.of(truth if known is None else known, columns))


def figures(truth, guess, **others):
    return {one["name"]: one for one in by_column(found(truth, guess, **others))}


def test_an_exact_copy_has_skill_1_in_every_column_that_varies():
    truth = table()
    whole = found(truth, truth)
    assert scores(whole) == {"skill": 1.0, "skill_p90": 1.0}
    assert whole.still == ("fixed",) and [one["skill"] for one in by_column(whole)] == [1.0, 1.0]


def test_the_mean_and_the_commonest_value_have_skill_0():
    truth = table()
    guess = truth.mean(0).expand_as(truth)
    told = figures(truth, guess)
    assert told["town"]["skill"] == pytest.approx(0, abs=1e-9) and told["town"]["accuracy"] == pytest.approx(
        told["town"]["chance"]
    )
    assert told["age"]["skill"] == pytest.approx(0, abs=0.02), "but for the outliers that are cut off"


def test_the_mean_over_records_is_the_mean_over_columns():
    truth = table()
    guess = truth + torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    whole = found(truth, guess)
    assert scores(whole)["skill"] == pytest.approx(sum(one["skill"] for one in by_column(whole)) / 2)


def test_a_number_has_its_coefficient_of_determination():
    truth, known = torch.tensor([[0.0], [1.0], [2.0], [5.0]]), torch.tensor([[-100.0], [100.0]])
    guess = torch.tensor([[0.5], [1.0], [1.0], [4.0]])
    r2 = 1 - (0.25 + 0 + 1 + 1) / (4 + 1 + 0 + 9)
    assert figures(truth, guess, columns=(Column("x", 0),), known=known)["x"]["skill"] == pytest.approx(r2)


def test_neither_scale_nor_offset_of_a_column_changes_its_skill():
    truth = table()
    guess = truth + 0.3 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    far = [torch.cat([1000 * one[:, :1] - 7, one[:, 1:]], 1) for one in (truth, guess)]
    before, after = figures(truth, guess)["age"], figures(*far)["age"]
    assert after["skill"] == pytest.approx(before["skill"], abs=1e-4)


def test_one_outlier_is_not_most_of_a_column():
    """Its variance would be: 199 of 200 numbers read exactly would then count for nothing."""
    known = table(seed=1)
    truth = table()
    truth[0, 0] = known[0, 0] = 1e4
    guess = truth.clone()
    guess[0, 0] = 0
    assert figures(truth, guess, known=known)["age"]["skill"] > 0.9


def test_the_best_read_column_comes_first_and_has_an_interval_that_holds_for_all():
    draw = torch.Generator().manual_seed(0)
    truth, noise = torch.randn(100, 400, generator=draw), torch.randn(100, 400, generator=draw)
    guess = 0.02 * noise
    guess[:, 7] = truth[:, 7]
    best, *others = by_column(found(truth, guess, columns=unnamed(400)))
    assert best["name"] == "feature 7" and best["interval"][0] > 0.99
    # Of 400 columns that nobody read, some would seem to be read if each had an interval of its own.
    assert not any(one["interval"][0] > 0 for one in others)


def test_an_interval_is_as_wide_as_the_skill_varies_from_sample_to_sample():
    """Against a slow twin: other records of the same table, read as well."""
    draw, seen, widths = torch.Generator().manual_seed(0), {"age": [], "town": []}, {"age": [], "town": []}
    for seed in range(400):
        truth = table(150, seed)
        guess = truth + 0.8 * torch.randn(truth.shape, generator=draw)
        for name, one in figures(truth, guess, known=table(seed=999)).items():
            seen[name].append(one["skill"])
            widths[name].append(one["skill"] - one["interval"][0])
    far = 2.2414  # standard errors, for two columns together
    for name, skills in seen.items():
        told, real = sum(widths[name]) / len(widths[name]) / far, float(torch.tensor(skills).std())
        assert 0.88 * real < told < 1.14 * real


def test_records_that_shared_a_message_are_one_observation():
    truth = table(40)
    guess = truth + torch.randn(40, 1, generator=torch.Generator().manual_seed(1)) * 0.5
    twice = [torch.cat([one, one]) for one in (truth, guess)]
    known = table(seed=2)
    whole = found(*twice, known=known)
    alone, shared = (by_column(whole, units)[-1]["interval"] for units in (None, [*range(40)] * 2))
    once = by_column(found(truth, guess, known=known))[-1]["interval"]
    assert shared == pytest.approx(once, abs=1e-6) and alone[0] > shared[0]


def test_a_table_in_which_nothing_changes_cannot_be_scored():
    with pytest.raises(ValueError, match="none of the 3 columns changes"):
        found(table()[:1].expand(5, -1), table(5))
    with pytest.raises(ValueError, match="shape of its truth"):
        found(table(5), table(6))


def test_rows_without_names_are_scored_feature_by_feature():
    truth = table()[:, :1]
    assert skill(truth, truth, truth).tolist() == [1.0] * 200
    assert float(skill(truth, truth.mean().expand_as(truth), truth).mean()) == pytest.approx(0, abs=0.02)
    assert skill(torch.ones(3, 2), torch.zeros(3, 2), torch.ones(3, 2)).tolist() == [0.0] * 3, "nothing varies"


def test_a_rare_mark_is_no_outlier():
    """Cut to the quantiles, a value that one record in 200 has could never be read."""
    truth = torch.zeros(200, 1)
    truth[3] = 1
    assert float(skill(truth, truth, truth).mean()) == 1


def test_a_column_says_what_a_row_holds_as_the_table_has_it():
    row = torch.tensor([0.5, 0.1, 0.7, 0.2, 1.0])
    assert TABLE[1].shown(row) == "b" and Column("age", 0, mean=40, spread=10).shown(row) == "45"
    assert features(TABLE) == 5 and [one.name for one in unnamed(2)] == ["feature 0", "feature 1"]
