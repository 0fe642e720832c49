"""Attribute inference: reads what is in the messages, names the commonest value where nothing is, knows its data."""

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import AttributeInference, Knowledge
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.batch import Task
from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import SEAL, Chain, KAnonymous, LightSplit, NoGuard

TINY = {"steps": 150, "width": 8, "hidden": 32}


def right(encode, spec, count=300):
    public, private = samples(count, 1), samples(90, 2)
    known = Knowledge(aux=public.x, aux_labels=public.y, aux_attributes={"odd": public.s["odd"]}, encode=encode)
    attacker = spec.attacker(known.only(spec.needs), seed=0)
    seen = encode(private.x, private.y)
    messages = [
        Message(Kind.FORWARD, 0, 0, {"z": seen[:40]}),
        Message(Kind.BACKWARD, 0, 0, {"du": torch.zeros(40, 7)}),
        Message(Kind.FORWARD, 0, 1, {"z": seen[40:]}),
    ]
    found = attacker.infer(messages)
    assert found.shape == (90,)
    return (found == private.s["odd"]).double().mean().item(), attacker


@pytest.mark.parametrize("reader", ["ridge", "conv", "mlp"])
def test_every_reader_finds_what_the_messages_show(reader):
    accuracy, attacker = right(lambda x, y: x, AttributeInference("odd", readers=(reader,), **TINY))
    assert accuracy > 0.9 and attacker.remarks()["reader"] == reader


def test_what_is_not_in_the_messages_is_not_found():
    accuracy, _ = right(lambda x, y: torch.randn(len(x), 1, 6, 6), AttributeInference("odd", **TINY))
    assert accuracy < 2 / 3 + 0.1  # two thirds are even


def test_the_best_reader_is_chosen_on_held_out_data():
    _, attacker = right(lambda x, y: x.flatten(1), AttributeInference("odd", **TINY))
    scores = attacker.remarks()["readers"]
    assert set(scores) == {"ridge", "mlp"} and scores[attacker.remarks()["reader"]] == max(scores.values())
    with pytest.raises(ValueError, match="add 'mlp' or 'ridge'"):
        right(lambda x, y: x.flatten(1), AttributeInference("odd", readers=("conv",), **TINY))


@pytest.mark.parametrize(
    "guard", [NoGuard(), LightSplit(ratio=4), KAnonymous(k=2), Chain(LightSplit(ratio=4), KAnonymous(k=2))], ids=repr
)
def test_it_answers_for_every_sample_behind_a_guard(guard):
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    run.train()
    row, pictures = judge(AttributeInference("odd", **TINY), Victim(run, 24), run.parts, seed=0)
    assert pictures is None and row["metric"] == "accuracy" and row["secret"] == "attribute"
    assert row["chance"] == pytest.approx(2 / 3, abs=0.1) and row["value"] >= 0.5


def test_against_a_key_it_comes_in_four_forms():
    forms = AttributeInference("odd").against(SEAL(), (4, 5, 5))
    assert [form.keys for form in forms] == ["own", "mixture", "recovered", "true"]
    assert all(form.attribute == "odd" for form in forms)
    assert AttributeInference("odd", keys="mixture").against(NoGuard(), (4, 5, 5)) == [AttributeInference("odd")]


def test_an_attribute_that_is_not_there_is_refused_and_those_that_are_get_named():
    known = Knowledge(aux=torch.rand(20, 1, 4, 4), aux_labels=torch.zeros(20), aux_attributes={"b": 1, "a": 2},
                      encode=lambda x, y: x)  # fmt: skip
    with pytest.raises(ValueError, match="no attribute 'gender'; it has a, b"):
        AttributeInference("gender").attacker(known, 0)
    with pytest.raises(ValueError, match="sensitive attributes of the auxiliary images"):
        Knowledge(aux=torch.zeros(1), aux_labels=torch.zeros(1), encode=lambda x, y: x).only(
            AttributeInference("gender").needs
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"attribute": ""}, "attribute names what to find out"),
        ({"attribute": 3}, "attribute names what to find out"),
        ({"attribute": "odd", "steps": 0}, "whole numbers from 1 up"),
        ({"attribute": "odd", "readers": ("tea",)}, "readers are among ridge, conv, mlp"),
        (
            {"attribute": "odd", "keys": "stolen"},
            "keys says whose key .* one of 'own', 'cosine', 'mixture', 'recovered', 'true'",
        ),
    ],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        AttributeInference(**arguments)


def test_an_audit_takes_every_attribute_that_is_a_kind():
    task = Task((1, 12, 12), 3, {"odd": 2, "age": 120})
    for budget in ("quick", "standard", "paper"):
        assert [attack.attribute for attack in AttributeInference.suite(budget, task, True)] == ["odd"]
    assert AttributeInference.suite("quick", Task((1, 12, 12), 3), True) == []
