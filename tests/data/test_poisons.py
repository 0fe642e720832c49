"""Malicious clients: only theirs is spoiled, and a result says what their attack came to."""

import json
from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.core.spec import spec
from cutlayer.data import Digits
from cutlayer.data.base import Samples
from cutlayer.data.poisons import BadNets, LabelFlip
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.local.start import train
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import Vanilla


def run_of(**changes) -> LocalRun:
    return LocalRun(tiny_plan(clients=4, batch_size=6, epochs=1, **changes), tiny_parts(), classes=TASK.classes)


@pytest.mark.parametrize("poison", [BadNets(clients=0.25), BadNets(clients=2, share=1.0), LabelFlip(clients=1)])
def test_only_malicious_clients_have_other_samples(poison):
    plain, spoiled = run_of(), run_of(poison=poison)
    bad = poison.members(4, 0)
    assert len(bad) == poison.count(4)
    for number, (ours, theirs) in enumerate(zip(plain.samples, spoiled.samples, strict=True)):
        same = torch.equal(ours.x, theirs.x) and torch.equal(ours.y, theirs.y)
        assert same == (number not in bad)
    assert torch.equal(plain.parts.private.x, tiny_parts().private.x)  # nothing of the pool was written to
    assert spoiled.timetable.batches == plain.timetable.batches


@pytest.mark.parametrize("corner", ["top left", "top right", "bottom left", "bottom right"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_badnets_is_a_white_square_and_the_target(corner, dtype):
    x = torch.zeros(20, 2, 8, 8, dtype=dtype)
    found = BadNets(patch=2, corner=corner, target=3, share=0.35).spoiled(Samples(x, torch.ones(20).long()), seed=5)
    touched = found.x.flatten(1).amax(1) > 0
    assert touched.sum() == 7 and torch.equal(found.y == 3, touched)
    image = found.x[touched][0]
    rows, columns = image[1].nonzero().T
    assert set(rows.tolist()) == ({0, 1} if corner.startswith("top") else {6, 7})
    assert set(columns.tolist()) == ({0, 1} if corner.endswith("left") else {6, 7})
    assert image.max() == (255 if dtype == torch.uint8 else 1.0) and (image > 0).sum() == 2 * 2 * 2
    assert not x.any()


def test_what_the_attacker_wants_is_asked_of_other_classes_alone():
    test = samples(30)
    attack = BadNets(target=1)
    shown, plain = attack.attacked(test), attack.plain(test)
    assert len(shown) == len(plain) == int((test.y != 1).sum()) and (shown.y == 1).all() and (plain.y == 1).all()
    assert torch.equal(plain.x, test.x[test.y != 1])
    assert (shown.x[..., -3:, -3:] == 1).all() and torch.equal(shown.x[..., :-3, :], plain.x[..., :-3, :])


def test_label_flip_leaves_images_and_other_classes():
    some = samples(30)
    found = LabelFlip(source=2, target=0, share=0.5).spoiled(some, seed=1)
    changed = found.y != some.y
    assert torch.equal(found.x, some.x) and changed.sum() == 5
    assert (some.y[changed] == 2).all() and (found.y[changed] == 0).all()
    assert (LabelFlip(source=2).attacked(some).y == 0).all() and len(LabelFlip(source=2).attacked(some)) == 10


def test_it_is_private():
    plan = Plan(clients=10, poison=BadNets())
    assert plan.fingerprint() == Plan(clients=10).fingerprint()
    assert plan.public().poison is None and spec(repr(plan), "plans") == plan


def test_who_is_malicious_is_drawn_by_the_seed():
    drawn = {BadNets().members(10, seed) for seed in range(30)}
    assert len(drawn) > 5 and all(len(one) == 1 for one in drawn)
    assert BadNets(clients=3).members(10, 1) == BadNets(clients=0.3).members(10, 1)


def test_a_result_says_what_the_attack_came_to(tmp_path):
    plan = Plan(data=Digits(limit=200), clients=4, epochs=1, batch_size=32, poison=BadNets(clients=1, target=7))
    plan = replace(plan, private_seed=3)
    result = train(plan, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "result.json").read_text())["poison"]
    assert told == result["poison"] and told["clients"] == list(plan.poison.members(4, 0))
    assert told["clean_accuracy"] == result["accuracy"]
    assert 0 <= told["success_without"] <= 1 and 0 <= told["success_rate"] <= 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Plan(clients=4, poison=BadNets()),
            r"makes 0 of 4 .* take BadNets\(clients=1\) for one of them",
        ),
        (
            lambda: Plan(clients=3, poison=LabelFlip(clients=5, share=0.5)),
            "LabelFlip\\(clients=2, share=0.5\\) or fewer",
        ),
        (lambda: Plan(clients=4, poison=BadNets(clients=4)), "makes 4 of 4"),
        (lambda: Plan(poison=BadNets()), "give the plan two clients or more, --clients 2"),
        (lambda: Plan(clients=4, poison="BadNets"), "list poisons"),
        (lambda: BadNets(clients=0), "in \\(0, 1\\), or how many"),
        (lambda: BadNets(clients=1.5), "whole number"),
        (lambda: BadNets(patch=0), "at least 1 pixel"),
        (lambda: BadNets(corner="middle"), "bottom right"),
        (lambda: BadNets(share=0.0), "in \\(0, 1\\]"),
        (lambda: BadNets(target=-1), "from 0 up"),
        (lambda: LabelFlip(source=0), "other than target=0"),
        (lambda: BadNets(target=10).refuse_unfit(Task((1, 28, 28), 10)), "it has 0 to 9"),
        (lambda: BadNets(patch=9).refuse_unfit(Task((1, 8, 12), 10)), "8x12 pixels: patch is at most 8"),
        (lambda: BadNets().refuse_unfit(Task((30,), 10)), "images"),
        (lambda: LabelFlip(source=12).refuse_unfit(Task((30,), 10)), "source=12"),
        (lambda: run_of(poison=BadNets(clients=1, patch=13)), "patch is at most 12"),
        (lambda: run_of(poison=BadNets(clients=1, target=3), protocol=Vanilla()), "0 to 2"),
    ],
)
def test_refusals_name_the_fix(make, says):
    with pytest.raises(ValueError, match=says):
        make()
