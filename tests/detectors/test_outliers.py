"""OutlierGradients against a second local outlier factor, and what its rehearsal leaves behind."""

import numpy as np
import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.detectors import ClientContext, OutlierGradients, StepView
from cutlayer.detectors.outliers import LocalOutlierFactor
from cutlayer.engines.local.run import LocalRun


def context(rows):
    return ClientContext(
        TASK, 6, 0, lambda steps: (StepView(n, torch.zeros(1), None, row) for n, row in enumerate(rows[:steps]))
    )


@pytest.mark.parametrize(("count", "size"), [(10, 2), (60, 40)])
def test_the_factor_is_that_of_another_implementation(count, size):
    draw = np.random.default_rng(count)
    known = draw.normal(size=(count, size))
    asked = np.concatenate([draw.normal(size=(8, size)), 6 * draw.normal(size=(8, size)), known[:2]])
    from sklearn.neighbors import LocalOutlierFactor as Reference  # seconds, of who needs it

    reference = Reference(n_neighbors=count - 1, novelty=True).fit(known)
    ours = LocalOutlierFactor(known)
    np.testing.assert_allclose([ours(one) for one in asked], -reference.score_samples(asked), rtol=1e-9)
    assert reference.offset_ == -1.5


def test_the_factor_of_points_on_a_line():
    """0, 1, 2 with two neighbours each: reach 2, 1, 2. Of 10, its nearest two are 2 and 1, at 8 and 9."""
    # Densities: 0: 2/(1+2); 1: 2/(2+2); 2: 2/(1+2). Of 10: 2/(8+9).
    expected = ((2 / 3) + (2 / 4)) / 2 / (2 / 17)
    assert LocalOutlierFactor(np.array([[0.0], [1.0], [2.0]]))(np.array([10.0])) == pytest.approx(expected)


def test_it_calls_when_most_of_a_window_is_unlike_the_rehearsal():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 5, generator=draw)
    watch = OutlierGradients(rehearsal=20, window=4).watch(context(rows))
    for step in range(8):
        watch.look(StepView(step, torch.zeros(1), None, torch.randn(5, generator=draw)))
        watch.look(
            StepView(step, torch.zeros(1), None, torch.full((5,), 99.0), fake=True)
        )  # a probe is meant to differ
    assert watch.score == 1.0 and not watch.alarm
    for step, score in ((8, 0.75), (9, 0.5), (10, 0.25)):
        assert not watch.alarm
        watch.look(StepView(step, torch.zeros(1), None, torch.full((5,), 20.0)))
        assert watch.score == score
    assert "75%" in watch.alarm


def test_gradients_that_are_no_numbers_are_outliers():
    watch = OutlierGradients(rehearsal=20, window=1).watch(context(torch.randn(20, 5)))
    watch.look(StepView(0, torch.zeros(1), None, torch.full((5,), torch.nan)))
    assert watch.alarm


def test_the_rehearsal_changes_nothing_and_its_server_learns():
    """Bit by bit the run of a plan that nobody watches; and the rehearsed body does not stay where it started."""
    runs = [
        LocalRun(tiny_plan(epochs=2, batch_size=6, client_detectors=watch), tiny_parts(), classes=TASK.classes)
        for watch in ((), (OutlierGradients(threshold=0.99, rehearsal=12),))
    ]
    for run in runs:
        assert run.train()
    plain, watched = (
        {name: t for name, t in run.tensors().items() if "/watch." not in name} for run in runs
    )  # fmt: skip
    assert plain.keys() == watched.keys() and all(torch.equal(plain[name], watched[name]) for name in plain)
    losses = list(_rehearsed(runs[1].clients[0], 60))
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])


def _rehearsed(party, steps):
    from cutlayer.training.rehearsal import Party, honest_steps
    from cutlayer.training.step import learn

    own = Party(party.plan, party.task, party.number, party.device)
    for client, batch in honest_steps(own, steps, party.samples, party.order):
        yield learn(client, batch)["task"]


@pytest.mark.parametrize("wrong", [{"threshold": 1.0}, {"rehearsal": 9}, {"window": 0}, {"window": 2.5}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        OutlierGradients(**wrong)
