"""Membership: memorised samples stand out, others do not; rows, batches and protocols are told apart rightly."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import TASK, samples, tiny_plan

from cutlayer.attacks import Knowledge, Membership
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind, Message
from cutlayer.data.base import Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import KAnonymous, NoGuard
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.protocols import UShaped, Vanilla


def noisy(count, seed):
    """Samples whose labels mean nothing: whoever predicts them has memorised them."""
    pool = samples(count, seed)
    y = torch.randint(TASK.classes, (count,), generator=torch.Generator().manual_seed(seed))
    return type(pool)(pool.x, y, {"odd": y % 2})


def memorised(protocol, guard=None, epochs=40):
    plan = tiny_plan(
        protocol=protocol, guard=guard or NoGuard(), epochs=epochs, batch_size=8,
        client_optimizer=Adam(lr=0.01), server_optimizer=Adam(lr=0.01),
    )  # fmt: skip
    run = LocalRun(plan, Parts(noisy(32, 1), noisy(32, 2), noisy(60, 3), noisy(30, 4)), classes=TASK.classes)
    run.train()
    return run


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_memorised_samples_stand_out(protocol):
    run = memorised(protocol)
    row, pictures = judge(Membership(), Victim(run, 32), run.parts, seed=0)
    assert pictures is None and row["metric"] == "auc" and row["chance"] == 0.5 and row["value"] > 0.75


def test_an_untrained_network_tells_nothing():
    run = memorised(UShaped(), epochs=0)
    row, _ = judge(Membership(), Victim(run, 32), run.parts, seed=0)
    assert 0.3 < row["value"] < 0.7


def test_calibration_knows_hard_samples_from_strangers():
    run = memorised(Vanilla())
    row, _ = judge(Membership(calibrated=True, steps=100, hidden=32), Victim(run, 32), run.parts, seed=0)
    assert row["value"] > 0.75
    stays = memorised(UShaped(), epochs=0)
    with pytest.raises(ValueError, match="needs labels that travel"):
        judge(Membership(calibrated=True, steps=10), Victim(stays, 32), stays.parts, seed=0)


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_samples_that_share_a_row_share_a_score(protocol):
    run = memorised(protocol, KAnonymous(k=2), epochs=1)
    row, _ = judge(Membership(), Victim(run, 32), run.parts, seed=0)
    assert 0 <= row["value"] <= 1


def test_the_score_is_the_gradient_a_sample_would_have_alone():
    du = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.6, 0.8]])
    body = nn.Linear(2, 2)
    attacker = Membership().attacker(Knowledge(body=body), 0)
    upload, answer = Message(Kind.FORWARD, 0, 7, {"z": torch.zeros(3, 2)}), Message(Kind.BACKWARD, 0, 7, {"du": du})
    other = Message(Kind.BACKWARD, 1, 7, {"du": du + 100})  # somebody else's
    score = attacker.infer([upload, other, answer])
    assert score[0] == pytest.approx(-torch.tensor(15.0).log().item())
    assert score[0] < score[2] < score[1] and torch.isfinite(score).all()
    # The loss is a mean over the batch: twice the batch halves every gradient, and the score stays.
    twice = Message(Kind.FORWARD, 0, 8, {"z": torch.zeros(6, 2)})
    halved = Message(Kind.BACKWARD, 0, 8, {"du": torch.cat([du, du]) / 2})
    torch.testing.assert_close(attacker.infer([twice, halved])[:3], score)
    with pytest.raises(ValueError, match="no gradient to go with it"):
        attacker.infer([upload, other])


def test_where_labels_travel_the_score_is_the_loss_and_rows_are_means():
    torch.manual_seed(0)
    body, z, y = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.randn(2, 4), torch.tensor([0, 2, 1])
    attacker = Membership().attacker(Knowledge(body=body), 0)
    rows = torch.tensor([1, 0, 1])
    score = attacker.infer([Message(Kind.LOSS, 0, 0, {"z": z, "y": y, "rows": rows})])
    losses = cross_entropy(body[0](z)[rows], y, reduction="none").double()
    torch.testing.assert_close(score, -torch.stack([losses[1], (losses[0] + losses[2]) / 2]))
    one = attacker.infer([Message(Kind.LOSS, 0, 0, {"z": z, "y": y[:2]})])
    torch.testing.assert_close(one, -cross_entropy(body[0](z), y[:2], reduction="none").double())


def test_scoring_leaves_the_body_as_it_is_and_can_be_written_down():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).eval()
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    attacker = Membership().attacker(Knowledge(body=body), 0)
    message = Message(Kind.LOSS, 0, 0, {"z": torch.randn(5, 1, 4, 4), "y": torch.tensor([0, 1, 2, 0, 1])})
    first = attacker.infer([message])
    assert torch.equal(first, attacker.infer([message]))
    assert torch.equal(first, pickle.loads(pickle.dumps(attacker)).infer([message]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())
    assert not body.training


def test_an_audit_calibrates_where_labels_travel():
    assert Membership.suite("paper", TASK, True) == Membership.suite("quick", TASK, False) == [Membership()]
    assert Membership.suite("paper", TASK, False) == [Membership(), Membership(calibrated=True)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"calibrated": 1}, "calibrated is True or False"), ({"steps": 0}, "whole numbers from 1 up")],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Membership(**arguments)
