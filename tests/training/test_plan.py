"""Plans: what they refuse, what the server may see of them, and the schedules they hold."""

import inspect
import re
from dataclasses import fields

import pytest
import torch
from toys import TASK, TinyNet, tiny_plan

from cutlayer.audit import AuditSpec
from cutlayer.data import FashionMNIST
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import WCC, Bottleneck1x1, Chain, LightSplit, SplitFC
from cutlayer.guards.parts.projection import Dense
from cutlayer.nets.base import count_parameters
from cutlayer.training.batches import epoch_batches
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.sides import sides
from cutlayer.training.plan.fields import FIELDS
from cutlayer.training.plan.lr_schedules import Constant, Cosine, Steps
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.roles import AllActive
from cutlayer.training.plan.schedule import Relay, epoch_rounds
from cutlayer.training.plan.shapes import cut_shapes, steps_per_epoch
from cutlayer.training.protocols import Bypass, Cut, Vanilla


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("clients", 0, "clients is a whole number from 1 up"),
        ("batch_size", 1, "batch_size is a whole number from 2 up"),
        ("epochs", 2.5, "epochs is a whole number"),
        ("frozen_parts", ("neck",), "frozen_parts names parts among head, body, tail; got neck"),
        ("val_share", 1.0, "share of training data"),
        ("val_share", "x", "share of training data"),
        ("seed", "a", "seed is a whole number; got 'a'"),
        ("private_seed", 1.5, "private_seed is a whole number; got 1.5"),
    ],
)
def test_impossible_settings_are_refused_at_once(field, value, words):
    with pytest.raises(ValueError, match=words):
        Plan(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guard", 3),
        ("schedule", Adam()),
        ("client_optimizer", Constant()),
        ("net", "SimpleCNN"),
        ("protocol", TinyNet),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} cannot be"):
        Plan(**{field: value})


def test_early_stopping_needs_validation_data():
    with pytest.raises(ValueError, match="early stopping needs validation data"):
        Plan(patience=3, val_share=0.0)


def test_a_guard_that_does_not_fit_the_cut_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match="1 to 100 here"):
        cut_shapes(tiny_plan(guard=LightSplit(ratio=500)), TASK)
    with pytest.raises(ValueError, match="TinyNet reads images"):
        cut_shapes(tiny_plan(), Task((5,), 3))


def test_the_fingerprint_covers_the_public_part_and_nothing_else():
    plan = tiny_plan(guard=Chain(LightSplit(ratio=4), WCC(weight=0.1)))
    assert plan.fingerprint() == tiny_plan(guard=LightSplit(ratio=4), private_seed=9).fingerprint()
    assert plan.fingerprint() != tiny_plan(guard=LightSplit(ratio=5)).fingerprint()
    own = {"data": FashionMNIST(), "partition": Dirichlet(alpha=1.0), "val_share": 0.3, "aux_samples": 7}
    assert plan.fingerprint() == tiny_plan(guard=LightSplit(ratio=4), **own).fingerprint()
    assert plan.public().private_seed is None


def test_a_client_without_a_secret_is_refused():
    with pytest.raises(ValueError, match="with_secrets"):
        build_client(tiny_plan(private_seed=None), TASK, 0, lambda message: message)
    drawn = {tiny_plan(private_seed=None).with_secrets().private_seed for _ in range(3)}
    assert len(drawn) == 3


def test_shapes_along_a_bypass():
    cut = cut_shapes(tiny_plan(protocol=Bypass(home=0.25), guard=Bottleneck1x1(ratio=3)), TASK)
    assert cut == Cut((4, 5, 5), (3, 5, 5), (1, 5, 5), (7,))


def test_each_side_builds_only_its_own_part():
    class Counting(TinyNet):
        built: list[str] = []  # noqa: RUF012

        def head(self, shape):
            Counting.built.append("head")
            return super().head(shape)

        def body(self, shape):
            Counting.built.append("body")
            return super().body(shape)

        def tail(self, shape, classes):
            Counting.built.append("tail")
            return super().tail(shape, classes)

    plan = tiny_plan(net=Counting())
    on_meta = ["head", "body"]  # shapes are computed on parts without storage
    build_server(plan, TASK)
    assert Counting.built == [*on_meta, "body"]
    Counting.built.clear()
    build_client(plan, TASK, 0, lambda message: message)
    assert Counting.built == ["head", "tail"], "the shapes are known by now"


def test_sides_say_who_computes_what():
    u_shaped, vanilla = sides(tiny_plan(), TASK), sides(tiny_plan(protocol=Vanilla()), TASK)
    tail = count_parameters(TinyNet().tail(TASK.shape, 3))
    assert u_shaped["client"]["parameters"] - vanilla["client"]["parameters"] == tail == 24
    assert vanilla["server"]["macs"] - u_shaped["server"]["macs"] == 21
    assert u_shaped["client"]["macs"] == 10 * 10 * 4 * 9 + 21
    guarded = sides(tiny_plan(guard=LightSplit(ratio=4, projection=Dense())), TASK)
    assert guarded["client"]["macs"] - u_shaped["client"]["macs"] == 100 * 25, "a dense projection costs d x k"
    assert guarded["sent"] == [25] and guarded["cut"] == [4, 5, 5]
    packed = sides(tiny_plan(guard=SplitFC(ratio=4, budget=0.5)), TASK)
    assert packed["client"]["macs"] == u_shaped["client"]["macs"], "two samples are too few for it"


def turns(batches, length):
    return [turn[:3] for (turn,) in epoch_rounds(Relay(), AllActive(), batches, length)]


def test_turns_are_round_robin_until_all_batches_are_used():
    assert turns([3, 1, 2], 1) == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
        (0, 1, 2),
        (2, 1, 2),
        (0, 2, 3),
    ]
    assert turns([3, 1, 2], 2) == [(0, 0, 2), (1, 0, 1), (2, 0, 2), (0, 2, 3)]
    assert turns([3, 0, 2], 0) == [(0, 0, 3), (2, 0, 2)]


@pytest.mark.parametrize(("count", "sizes"), [(10, [4, 4, 2]), (9, [4, 5]), (1, [1]), (8, [4, 4]), (3, [3])])
def test_a_last_batch_of_one_joins_the_one_before(count, sizes):
    batches = epoch_batches(count, 4, seed=1)
    assert [len(batch) for batch in batches] == sizes
    assert torch.cat(batches).sort().values.tolist() == list(range(count))
    assert steps_per_epoch([count], 4) == len(batches)


def test_schedules():
    assert Constant().factor(7, 10) == 1
    assert Cosine().factor(0, 10) == 1 and Cosine().factor(10, 10) == pytest.approx(0)
    assert Cosine(floor=0.1).factor(10, 10) == pytest.approx(0.1)
    assert [Steps(every=2).factor(epoch, 9) for epoch in (0, 1, 2, 4)] == pytest.approx([1, 1, 0.1, 0.01])


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_learning_rate_must_be_positive(kind):
    with pytest.raises(ValueError, match="learning rate"):
        kind(lr=0)


def told_by_help(kind):
    return dict(re.findall(r"^    (\w+): (.*)", inspect.getdoc(kind), re.MULTILINE))


@pytest.mark.parametrize("kind", [Plan, AuditSpec])
def test_help_says_what_each_field_is(kind):
    assert list(told_by_help(kind)) == [field.name for field in fields(kind)]


def test_help_of_a_plan_says_which_list_values_are_in():
    told = told_by_help(Plan)
    kinds = {name: field.kind for name, field in FIELDS.items() if field.kind}
    assert [name for name, kind in kinds.items() if f"({kind})." not in told[name]] == []


def test_text_where_an_object_belongs_is_told_what_to_write():
    with pytest.raises(
        ValueError, match=re.escape("cannot be text: write LightSplit(ratio=8) without the quotes, or")
    ):
        Plan(guard="LightSplit(ratio=8)")
