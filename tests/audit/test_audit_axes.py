"""What an audit can be told of the attacker's data, and what an interrupted one keeps."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

import cutlayer.audit.matrix as room
import cutlayer.audit.scene as scene
from cutlayer.attacks import FORA, Decoder, suite
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.core.batch import Task
from cutlayer.data.auxiliary import Auxiliary
from cutlayer.data.base import Loaded, Samples
from cutlayer.guards import WCC, LightSplit
from cutlayer.training.facts.link import Link

READER = Decoder(readers=("ridge",))  # it needs no steps and passes its control
LOADED = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))

ROWS = Samples(torch.rand(9, 5), torch.zeros(9).long())
TABLE = Loaded(ROWS, ROWS, ("a",))


def ran(resources=None, **changes):
    given = {"guards": [LightSplit(ratio=4)], "attacks": [READER], "images": 30, "alone": False, **changes}
    return audit(AuditSpec(tiny_plan(epochs=1, batch_size=16), **given), LOADED, resources)


# ------------------------------------------------------------------ the attacker's data
def test_absent_classes_are_absent():
    aux = Auxiliary(without=(1,)).apply(tiny_parts(), TASK).aux
    assert set(aux.y.tolist()) == {0, 2} and 0 < len(aux) < 60


def test_another_set_takes_the_shape_of_this_one():
    other = Loaded(samples(40, 9, Task((3, 20, 16), 7)), samples(5, 8, Task((3, 20, 16), 7)), tuple("abcdefg"))
    parts = Auxiliary(other=other).apply(tiny_parts(), TASK)
    assert tuple(parts.aux.x.shape) == (40, *TASK.shape) and parts.aux.y.max() < TASK.classes
    assert parts.aux.x.min() >= 0 and parts.aux.x.max() <= 1
    assert parts.private is not parts.aux and len(parts.private) == 48


@pytest.mark.parametrize(
    ("auxiliary", "words"),
    [
        (Auxiliary(without=(3,)), "labels are 0 to 2"),
        (Auxiliary(without=(0, 1, 2)), "left without any image"),
        (Auxiliary(other=TABLE), "must be images"),
    ],
)
def test_impossible_data_is_refused(auxiliary, words):
    with pytest.raises(ValueError, match=words):
        auxiliary.apply(tiny_parts(), TASK)


def test_the_overlap_of_another_set_is_still_refused():
    with pytest.raises(ValueError, match="also private"):
        ran(auxiliary=Auxiliary(other=LOADED))


# ------------------------------------------------------------------ interrupted and resumed
def comparable(result):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result.rows]


def test_a_resumed_audit_is_the_undisturbed_one_and_repeats_nothing(tmp_path, monkeypatch):
    whole = ran()
    seen = []

    def stop(event):
        seen.append(event.what)
        if event.what.startswith("Decoder") and "LightSplit" in event.what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(Resources(store=ResultStore(tmp_path / "cells", "this one"), on_event=stop))
    trained = []
    real = scene.LocalRun
    monkeypatch.setattr(scene, "LocalRun", lambda plan, *a, **k: trained.append(plan.guard) or real(plan, *a, **k))
    resumed = ran(Resources(store=ResultStore(tmp_path / "cells", "this one")))
    assert trained == [LightSplit(ratio=4)], "the open cut was finished: neither trained nor attacked again"
    assert comparable(resumed) == comparable(whole) and resumed.floors == whole.floors
    assert resumed.pictures.keys() == whole.pictures.keys()
    assert all(torch.equal(resumed.pictures[name], picture) for name, picture in whole.pictures.items())
    assert torch.equal(resumed.truth, whole.truth) and torch.equal(resumed.labels, whole.labels)


def test_cells_of_another_audit_are_refused(tmp_path):
    ResultStore(tmp_path / "cells", "one").put("a cell", {})
    with pytest.raises(ValueError, match="other options"):
        ResultStore(tmp_path / "cells", "two")


def test_what_all_cells_hang_on_tells_audits_apart():
    """Guard, attack and seed are in the name of a cell: an audit may go on without a guard that failed."""
    spec = AuditSpec(tiny_plan(), [LightSplit(ratio=4)], [READER])
    assert replace(spec, guards=[], attacks=[FORA()], seeds=range(3)).identity == spec.identity
    changes = [
        {"plan": tiny_plan(epochs=9)}, {"images": 30}, {"link": Link.parse("1mbit,10ms")},
        {"auxiliary": Auxiliary(without=(1,))}, {"auxiliary": Auxiliary(LOADED, name="CIFAR10()")},
    ]  # fmt: skip
    assert len({spec.identity, *(replace(spec, **change).identity for change in changes)}) == 6


# ------------------------------------------------------------------ controls and budgets
def test_an_attack_that_fails_its_control_is_tried_again(monkeypatch):
    tried = []
    real = room.why_control_failed

    def first_two_fail(attack, row, mean, plan):
        tried.append(row["tries"])
        return "bad luck" if len(tried) < 3 else real(attack, row, mean, plan)

    monkeypatch.setattr(room, "why_control_failed", first_two_fail)
    result = ran()
    assert tried == [1, 2, 3]
    assert {row["tries"] for row in result.rows} == {3}, "guards face the attacker that passed"
    assert all(row["valid"] for row in result.rows)


def test_how_often_it_is_tried_may_be_said_and_cells_hang_on_it(monkeypatch):
    monkeypatch.setattr(room, "why_control_failed", lambda *given: "bad luck")
    assert {row["tries"] for row in ran(tries=1).rows} == {1}
    spec = AuditSpec(tiny_plan())
    assert replace(spec, tries=1).identity != spec.identity
    with pytest.raises(ValueError, match="--tries is at least 1"):
        replace(spec, tries=0)


def test_budgets():
    with pytest.raises(ValueError, match="quick, standard, paper"):
        suite("huge", TASK, True)
    quick, paper = suite("quick", TASK, True), suite("paper", TASK, True)
    assert any(isinstance(attack, Decoder) for attack in quick)
    assert {type(attack) for attack in quick} < {type(attack) for attack in paper}, "the active one comes with time"


def test_fora_learns_alongside_the_training_from_what_was_recorded():
    attack = FORA(steps=12, reader_steps=10, width=4, reader_width=8, hidden=16, alongside=True)
    (row,) = ran(guards=[], attacks=[attack], images=12).rows
    assert "all messages of the client's training, in the order they came" in row["knows"]
    (other,) = ran(guards=[], attacks=[replace(attack, alongside=False)], images=12).rows
    assert row["accuracy"] == other["accuracy"]  # nobody but the attacker learnt anything else
    assert row["ssim"] != other["ssim"]


def test_a_guard_that_cannot_be_trained_is_named_and_the_others_stay(tmp_path):
    """Training with it ends in NaN; a resumed audit does not try it again."""
    lost, kept = WCC(weight=1e38), LightSplit(ratio=4)
    found = ran(Resources(store=ResultStore(tmp_path / "cells", "x")), guards=[lost, kept])
    assert "did it" in found.left_out[repr(lost)] and "seed 0" in found.left_out[repr(lost)]
    assert {row["guard"] for row in found.rows} == {"none", repr(kept)}
    trained = []
    again = ran(
        Resources(store=ResultStore(tmp_path / "cells", "x"), on_event=lambda event: trained.append(event.what)),
        guards=[lost, kept],
    )
    assert again.left_out == found.left_out and not any("training" in what for what in trained)


def test_cells_of_another_schema_are_not_taken_for_ours(tmp_path, monkeypatch):
    """Rows that an older version kept lack fields that a verdict looks at."""
    wanted = AuditSpec(tiny_plan(), guards=[LightSplit(ratio=4)])
    ResultStore(tmp_path / "cells", wanted.identity).open()
    ResultStore(tmp_path / "cells", wanted.identity)
    monkeypatch.setattr("cutlayer.audit.spec.SCHEMA", 3)
    with pytest.raises(ValueError, match="with code that was another then"):
        ResultStore(tmp_path / "cells", wanted.identity)
