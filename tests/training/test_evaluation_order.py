"""Samples that are predicted after every epoch pass in another order each time, and are counted as before."""

import torch
from torch.nn.functional import one_hot
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.engines.local.run import LocalRun
from cutlayer.training import evaluation


def sent_in(run, heard, epoch):
    heard.clear()
    run.clients[0].evaluate("test", epoch)
    return torch.cat([message["z"].flatten(1) for message in heard if message.kind is Kind.PREDICT])


def test_the_server_cannot_tell_by_the_place_which_sample_it_sees_again():
    heard = []

    def listen(message, handle):
        heard.append(message)
        return handle(message)

    run = LocalRun(tiny_plan(batch_size=8), tiny_parts(), classes=TASK.classes, at_server=[listen])
    first, second = (sent_in(run, heard, epoch) for epoch in (0, 1))
    assert first.shape == second.shape and not torch.allclose(first, second)
    torch.testing.assert_close(first.sum(0), second.sum(0))  # the same samples


def test_each_sample_gets_its_own_class(monkeypatch):
    run = LocalRun(tiny_plan(batch_size=8), tiny_parts(), classes=TASK.classes)
    brightness = run.parts.test.images().sum((1, 2, 3))
    monkeypatch.setattr(evaluation, "predict", lambda network, batches: _by_brightness(batches[0].x, brightness))
    found, _ = evaluation.classes_of(run.networks[0], run.plan, run.parts.test, lambda number: number)
    assert torch.equal(found, (brightness[:, None] >= brightness).sum(1) - 1)


def _by_brightness(x, known):
    """Scores that name as class how many of the known images are darker."""
    return one_hot((x.sum((1, 2, 3))[:, None] >= known).sum(1) - 1, len(known)).float()
