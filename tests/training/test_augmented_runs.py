"""Augmented images are what clients learn from, step by step the same; nobody else ever sees them."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.audit.recording import Recorded
from cutlayer.data import CIFAR10
from cutlayer.data.augment import augmented
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.batches import as_batch, training_batch
from cutlayer.training.evaluation import classes_of
from cutlayer.training.step import learn

VARIED = tiny_plan(epochs=2, batch_size=8, clients=2, data=CIFAR10(augment="crop+flip"))


def start(plan):
    return LocalRun(plan, tiny_parts(), classes=TASK.classes)


def trained(plan):
    run = start(plan)
    assert run.train()
    return run


def equal(one, other):
    ours, theirs = one.tensors(), other.tensors()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_step_varies_its_images_anew_and_a_resumed_run_alike(micro_batches):
    plan = tiny_plan(epochs=2, batch_size=8, micro_batches=micro_batches, data=VARIED.data)
    whole, first, stops = trained(plan), start(plan), iter([False] * 3 + [True])
    assert not first.train(stop=lambda: next(stops))
    second = start(plan)
    second.restore(*first.snapshot())
    assert second.train() and equal(whole, second)
    assert not equal(whole, trained(tiny_plan(epochs=2, batch_size=8, micro_batches=micro_batches)))


def test_a_step_has_images_of_its_own_and_the_samples_stay_as_they_are():
    client = start(VARIED).clients[0]
    index, before = client.order(0)[0], client.samples.x.clone()
    first, again = client.batch(index), client.batch(index)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, client.samples.y[index])
    assert not torch.equal(first.x, client.samples.images(index)) and torch.equal(client.samples.x, before)
    learn(client.network, first)
    assert not torch.equal(client.batch(index).x, first.x)


def test_evaluation_sees_the_images_themselves(monkeypatch):
    monkeypatch.setattr("cutlayer.training.batches.augmented", None)  # whoever calls it fails
    run = start(VARIED)
    found, _ = classes_of(run.networks[0], VARIED, run.parts.test, seed=lambda number: number)
    assert len(found) == len(run.parts.test)
    assert torch.equal(as_batch(run.parts.aux, torch.arange(5)).x, run.parts.aux.images(torch.arange(5)))
    with pytest.raises(TypeError):
        run.clients[0].batch(torch.arange(4))


def test_a_recording_of_varied_images_is_left_to_an_audit():
    with pytest.raises(ValueError, match=r"crops or mirror images of CIFAR10\(augment='crop\+flip'\)"):
        Recorded(start(VARIED), [], images=4)


def test_the_draw_is_not_that_of_the_guard():
    pool, seed = tiny_parts().private, 5
    batch = training_batch(VARIED, pool, torch.arange(8), seed)
    assert batch.seed == seed
    assert not torch.equal(batch.x, augmented(pool.images(torch.arange(8)), "crop+flip", seed))
