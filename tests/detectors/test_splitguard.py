"""SplitGuard against its formula, written again; what a probe is, and what it leaves alone."""

import numpy as np
import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.core.message import Kind
from cutlayer.core.seeds import derive, generator
from cutlayer.detectors import ClientContext, SplitGuard, StepView
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.protocols import Vanilla

PROBES = SplitGuard(threshold=1e-6, share=0.4, warm=2)
CONTEXT = ClientContext(Task((1, 4, 4), 10, {}), 6, 7, lambda steps: iter(()))


def by_the_formula(fakes, ones, others):
    def mean_norm(rows):
        return np.mean([np.sqrt(np.sum(row**2)) for row in rows])

    def angle(a, b):
        return np.arccos(np.clip(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b), -1, 1))

    f, r1, r2 = (np.mean(rows, 0) for rows in (fakes, ones, others))
    m_f, m_1, m_2 = map(mean_norm, (fakes, ones, others))
    d_f, d_r = abs(m_f - (m_1 + m_2) / 2), abs(m_1 - m_2)
    s = angle(f, (r1 + r2) / 2) * d_f / (d_f + d_r) - angle(r1, r2) * d_r / (d_f + d_r)
    return (1 / (1 + np.exp(-5 * s))) ** 2


def half(step):
    return "one" if float(torch.rand((), generator=generator(derive(7, "half", step)))) < 0.5 else "other"


@pytest.mark.parametrize("honest", [True, False])
def test_the_score_is_that_of_the_formula(honest):
    watch = SplitGuard(threshold=1e-6, warm=2, vote=1).watch(CONTEXT)
    draw = np.random.default_rng(3)
    kinds = {"fake": [], "one": [], "other": []}
    for step in range(40):
        fake = step > 5 and step % 3 == 0
        row = draw.normal(size=12) + (np.array([-4.0, 2] * 6) if fake and honest else 1.0)
        if step >= 2:  # before the first fake may come nothing is compared
            kinds["fake" if fake else half(step)].append(row)
        watch.look(StepView(step, torch.zeros(2), None, torch.tensor(row), fake))
        if fake and min(len(kinds[one]) for one in ("one", "other")) >= 5:
            assert watch.score == pytest.approx(by_the_formula(*kinds.values()), rel=1e-9)
    assert min(len(rows) for rows in kinds.values()) > 5
    assert (watch.score > 0.95) is honest


def test_fakes_that_are_answered_like_the_rest_score_a_quarter():
    """The same gradients for all: no angle, so σ(0)² = ¼."""
    watch = SplitGuard(warm=2, vote=2).watch(CONTEXT)
    for step in range(34):
        watch.look(StepView(step, torch.zeros(2), None, torch.ones(5), fake=step in (31, 33)))
    assert watch.score == pytest.approx(0.25) and "below 0.45" in watch.alarm


def test_it_calls_only_when_as_many_as_vote_agree():
    watch = SplitGuard(warm=2, vote=3).watch(CONTEXT)
    for step in range(36):
        watch.look(StepView(step, torch.zeros(2), None, torch.ones(5), fake=step in (8, 31, 33, 35)))
        assert bool(watch.alarm) == (step >= 35)  # after the first there were too few honest ones to compare with


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_no_label_of_a_probe_is_right_and_nobody_knows_when_it_comes(classes):
    spec = SplitGuard(share=0.3, warm=5)
    watch = spec.watch(CONTEXT._replace(task=Task((1, 4, 4), classes, {})))
    y = torch.arange(4 * classes) % classes
    probes = {step: fake for step in range(400) if (fake := watch.probe(step, y)) is not None}
    shifts = {int((fake[0] - y[0]) % classes) for fake in probes.values()}
    for fake in probes.values():
        assert not (fake == y).any() and fake.dtype == y.dtype and fake.min() >= 0 and fake.max() < classes
        assert len({int(s) for s in (fake - y) % classes}) == 1
    assert min(probes) >= 5 and 0.22 < len(probes) / 395 < 0.38
    assert shifts == set(range(1, classes - 1)) or classes == 3
    other = spec.watch(CONTEXT._replace(task=Task((1, 4, 4), classes, {}), seed=8))
    assert {step for step in range(400) if other.probe(step, y) is not None} != set(probes)


@pytest.mark.parametrize("protocol", [Vanilla(), None], ids=["Vanilla", "UShaped"])
def test_a_probe_leaves_weights_statistics_and_optimizer_as_they_were(protocol):
    changes = {"protocol": protocol} if protocol else {}
    plan = tiny_plan(epochs=3, batch_size=6, client_optimizer=Adam(), client_detectors=(PROBES,), **changes)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    client, moved = run.clients[0], {True: 0, False: 0}
    last = [{name: t.clone() for name, t in client.own_state().items() if name[:6] != "watch."}]

    def after(progress):
        now = {name: t.clone() for name, t in client.own_state().items() if name[:6] != "watch."}
        fake = "task" not in progress.terms  # a probe's loss says nothing, and is not in the history
        same = now.keys() == last[0].keys() and all(torch.equal(now[name], last[0][name]) for name in now)
        assert same is fake
        moved[fake] += 1
        last[0] = now

    run.train(on_step=after)
    assert min(moved.values()) > 3
    assert client.network.steps == 24  # and its steps are counted as any others


def test_the_true_labels_never_travel_with_a_probe():
    """In vanilla split learning the server sees labels: those of probes are all wrong, those of others right."""
    plan = tiny_plan(epochs=3, batch_size=6, protocol=Vanilla(), client_detectors=(PROBES,))
    seen = {}

    def listen(message, handle):
        if message.kind is Kind.LOSS:
            seen[message.step] = message["y"]
        return handle(message)

    run = LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=[listen])
    run.train()
    right = [float((y == run.samples[0].y[run.batch_of(0, step)]).double().mean()) for step, y in seen.items()]
    assert set(right) == {0.0, 1.0} and len(right) == 24


@pytest.mark.parametrize("classes", [1, 2])
def test_too_few_classes_are_refused_with_the_number_that_works(classes):
    with pytest.raises(ValueError, match=f"3 classes or more; this task has {classes}"):
        SplitGuard().refuse_unfit(CONTEXT._replace(task=Task((1, 4, 4), classes, {})))


@pytest.mark.parametrize("wrong", [{"threshold": 1.0}, {"share": 0.0}, {"share": 1.0}, {"warm": 1}, {"vote": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        SplitGuard(**wrong)
