"""Epochs that an audit records for attackers who read several of them, and what it leaves as it was."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import SDAR, Decoder, Linked
from cutlayer.audit.matrix import audit
from cutlayer.audit.passes import one_pass
from cutlayer.audit.spec import AuditSpec
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit, Noise
from cutlayer.training.plan.schedule import SplitFed

LOADED = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
FEW = {"steps": 10, "hidden": 16, "readers": ("ridge", "mlp")}
READER, LINKED = Decoder(**FEW), Linked(epochs=3, **FEW)
GUARDS = [Noise(scale=0.5), LightSplit(ratio=4)]


def ran(*attacks, guards=GUARDS):
    plan = tiny_plan(epochs=2, batch_size=16)
    return audit(AuditSpec(plan, guards, attacks, images=20, alone=False), LOADED).rows


def test_it_meets_guards_that_draw_anew_and_the_open_cut_and_changes_no_other_row():
    rows = ran(READER, LINKED)
    met = [(row["guard"], row["linked_by"], row["epochs"], row["ceiling"]) for row in rows if "linked_by" in row]
    noise = repr(GUARDS[0])
    assert met == [("none", "neighbours", 2, False), (noise, "neighbours", 2, False), (noise, "order", 2, True)]
    assert {row["guard"]: row["draws_anew"] for row in rows} == {"none": False, noise: True, repr(GUARDS[1]): False}
    alone = ran(READER, guards=GUARDS[:1])
    others = [row for row in rows if "linked_by" not in row]
    assert [(row["value"], row["accuracy"]) for row in others[:2]] == [
        (row["value"], row["accuracy"]) for row in alone
    ]


def test_sdar_beside_the_training_has_its_messages_and_the_bodies_of_every_epoch():
    attack = SDAR(steps=6, width=4, hidden=16, batch=8, alongside=True)
    beside, after = ran(attack, guards=[])[0], ran(replace(attack, alongside=False), guards=[])[0]
    assert "its own network as it was at the end of every epoch" in beside["knows"]
    assert beside["accuracy"] == after["accuracy"] and beside["ssim"] != after["ssim"]


@pytest.mark.parametrize("changes", [{}, {"clients": 2, "rounds": SplitFed(version=2)}], ids=["one", "two clients"])
def test_to_record_a_pass_leaves_the_training_alone(changes):
    plan = tiny_plan(epochs=2, batch_size=8, guard=Noise(scale=0.1), **changes)
    runs = [LocalRun(plan, tiny_parts(), classes=TASK.classes) for _ in range(2)]
    runs[0].train()
    recorded = []
    runs[1].train(on_epoch=lambda: recorded.append(one_pass(runs[1], runs[1].progress.epoch, 4)))
    one, other = (run.tensors() for run in runs)
    assert len(recorded) == 2 and one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    # The head of each epoch is its own.
    x, y = tiny_parts().aux.images(), tiny_parts().aux.y
    assert not torch.equal(*(passed.told.encode(x, y) for passed in recorded))
