"""GradientScrutinizer against its formula, written again, and against values that are known."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.detectors import ClientContext, Detector, GradientScrutinizer, StepView
from cutlayer.detectors.scrutinizer import score, similarities
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import C3, KAnonymous

NOWHERE = ClientContext(TASK, 6, 0, lambda steps: iter(()))


def by_the_formula(steps):
    """Every step's (dz, y), pair by pair; the score after the last (Fu et al. 2023)."""
    courses = {True: [], False: []}
    for dz, y in steps:
        found = {True: [], False: []}
        for i, j in permutations(range(len(y)), 2):
            a, b = dz[i].ravel(), dz[j].ravel()
            cosine = a @ b / np.sqrt((a @ a) * (b @ b))
            found[y[i] == y[j]].append((1 + cosine) / 2)
        for alike, values in found.items():
            courses[alike].append((np.mean(values), np.sqrt(np.mean((values - np.mean(values)) ** 2))))
    (mean_s, dev_s), (mean_d, dev_d) = courses[True][-1], courses[False][-1]
    gap = (mean_s - mean_d) / (mean_s + mean_d)
    errors = []
    for course in courses.values():
        means = np.array([mean for mean, _ in course])
        t = np.arange(len(means), dtype=float)
        design = np.stack([t**2, t, np.ones_like(t)], 1)
        left = means - design @ np.linalg.lstsq(design, means, rcond=None)[0]
        errors.append(np.sqrt(np.mean(left**2)))
    ends = sorted([mean_s - dev_s, mean_s + dev_s, mean_d - dev_d, mean_d + dev_d])
    disjoint = mean_s - dev_s > mean_d + dev_d or mean_d - dev_d > mean_s + dev_s
    overlap = 0 if disjoint else (ends[2] - ends[1]) / (ends[3] - ends[0])
    inside = (
        np.sign(gap) * abs(gap) ** 0.4 * -np.log(7 * np.mean(errors) + np.exp(-2)) * -np.log(overlap + np.exp(-1))
    )
    return 1 / (1 + np.exp(-5 * (inside - 0.7)))


def steps_of(seed, count=9, apart=1.0, rows=8, classes=3):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(classes, 2, 3))
    labels = [draw.permutation(np.arange(rows) % classes) for _ in range(count)]
    return [(apart * centres[y] + draw.normal(size=(rows, 2, 3)), y) for y in labels]


@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_score_is_that_of_the_formula(seed, apart):
    steps = steps_of(seed, apart=apart)
    watch = GradientScrutinizer(threshold=1e-6, every=1, warm=3, vote=2, until=8).watch(NOWHERE)
    marks = []
    for number, (dz, y) in enumerate(steps):
        watch.look(StepView(number, torch.tensor(y), torch.tensor(dz), torch.zeros(1)))
        if 2 <= number < 8:
            marks.append(by_the_formula(steps[: number + 1]))
        if marks:  # the mean of the last two, and nothing after `until`
            assert watch.score == pytest.approx(np.mean(marks[-2:]), rel=1e-9)
    assert len(marks) == 6 < len(steps) - 2


def test_classes_that_do_not_touch_score_high_and_equal_gradients_low():
    """Alike within classes, opposite across: G = 1, E = 0, V = 0, so σ(5 (2·1 − 0.7)). All equal: G = 0."""
    y = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    same, different = similarities(apart, y)
    assert same.tolist() == [1.0] * 4 and different.tolist() == [0.0] * 8
    assert score([1.0] * 5, [0.0] * 5, (0.0, 0.0)) == pytest.approx(1 / (1 + np.exp(-5 * (2 * 1 - 0.7))), rel=1e-6)
    assert score([1.0] * 5, [1.0] * 5, (0.0, 0.0)) == pytest.approx(1 / (1 + np.exp(3.5)))
    # Where another class is nearer than one's own the gap is negative.
    assert score([0.2] * 5, [0.8] * 5, (0.0, 0.0)) < score([0.5] * 5, [0.5] * 5, (0.0, 0.0))


def test_the_overlap_is_measured_from_the_larger_lower_bound():
    """The released code takes the smaller one for honest runs, which widens the overlap of those alone."""
    # [0.6, 1.0] and [0.4, 0.8]: 0.2 of 0.6 in common.
    inside = (0.2 / 1.4) ** 0.4 * 2 * -np.log(0.2 / 0.6 + np.exp(-1)) - 0.7
    assert score([0.8] * 5, [0.6] * 5, (0.2, 0.2)) == pytest.approx(1 / (1 + np.exp(-5 * inside)), rel=1e-6)


def test_it_waits_and_then_scores_now_and_then():
    watch = GradientScrutinizer(threshold=0.999, every=4, warm=6).watch(NOWHERE)
    scored = []
    for number, (dz, y) in enumerate(steps_of(1, count=13)):
        before = watch.score
        watch.look(StepView(number, torch.tensor(y), torch.tensor(dz), torch.zeros(1)))
        if watch.score != before:
            scored.append(number + 1)
    assert scored == [8, 12] and "0.999" in watch.alarm


def test_what_says_nothing_is_not_counted():
    """Probes, steps without rows, batches of one class, and numbers that are none."""
    watch = GradientScrutinizer(every=1, warm=3).watch(NOWHERE)
    dz, y = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    for look in (
        StepView(0, y, dz, torch.zeros(1), fake=True),
        StepView(1, y, None, torch.zeros(1)),
        StepView(2, torch.zeros(6), dz, torch.zeros(1)),
        StepView(3, y, dz * torch.nan, torch.zeros(1)),
        StepView(4, torch.arange(6), dz, torch.zeros(1)),
    ):
        watch.look(look)
    assert len(watch.tensors()["same"]) == 0 and watch.score is None


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_a_batch_too_small_is_refused_with_the_size_that_works(classes):
    task, found = Task((1, 4, 4), classes, {}), GradientScrutinizer()
    sizes = [size for size in range(2, 60) if _fits(found, replace_ground(task, size))]
    least = sizes[0]
    # The expected number of pairs of one class is at least one, and below it is not.
    assert least * (least - 1) / 2 / classes >= 1 > (least - 1) * (least - 2) / 2 / classes
    with pytest.raises(ValueError, match=f"a batch of {least} has such a pair; got batches of {least - 1}"):
        found.refuse_unfit(replace_ground(task, least - 1))


def replace_ground(task, size):
    return NOWHERE._replace(task=task, batch=size)


def _fits(detector: Detector, context: ClientContext) -> bool:
    try:
        detector.refuse_unfit(context)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("guard", [KAnonymous(k=2), C3(ratio=2)], ids=repr)
def test_guards_that_mix_samples_are_refused_before_the_first_step(guard):
    plan = tiny_plan(batch_size=6, guard=guard, client_detectors=(GradientScrutinizer(),))
    with pytest.raises(ValueError, match="take SplitGuard"):
        LocalRun(plan, tiny_parts(), classes=TASK.classes)


def test_a_client_with_too_few_samples_is_refused_before_the_first_step():
    parts = replace(tiny_parts(), private=samples(2))
    with pytest.raises(ValueError, match="got batches of 2"):
        LocalRun(tiny_plan(batch_size=6, client_detectors=(GradientScrutinizer(),)), parts, classes=TASK.classes)


@pytest.mark.parametrize("wrong", [{"threshold": 1.0}, {"threshold": 0.0}, {"every": 0}, {"warm": 2}, {"warm": 3.5}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        GradientScrutinizer(**wrong)
