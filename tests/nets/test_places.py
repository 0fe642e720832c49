"""Where a network can be cut: places in order, figures that follow from the parts, and why others are none."""

from pathlib import Path

import pytest
from named_files import nothing_named as nothing_named
from torch import nn

from cutlayer.core.batch import Task
from cutlayer.nets import (
    MLP,
    LeNet,
    MnistNet,
    Own,
    ResNet18,
    Segmenter,
    TextDecoder,
    Whole,
    count_macs,
    count_parameters,
)
from cutlayer.nets.places import places
from cutlayer.training.facts.memory import breakdown, total
from cutlayer.training.facts.places import costs
from cutlayer.training.plan.plan import Plan

HERE = f"{Path(__file__).parent}/own_models.py"
PICTURE = (1, 12, 12)


def names(net, shape=PICTURE, **more):
    return [one.name for one in places(net, shape, None, **more)]


def reasons(net, shape=PICTURE, **more):
    return {one.name: one.why_not for one in places(net, shape, None, **more) if one.parts is None}


def test_places_come_in_the_order_of_the_computation():
    assert names(Own(f"{HERE}:ViT(blocks=2)")) == ["patch", "blocks.0", "blocks.1", "norm", "head"]
    assert names(Own(f"{HERE}:Text"), (6,))[:4] == ["words", "places", "drop", "layers.0"]
    assert names(Own(lambda: nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), nn.Flatten()))) == [
        "0.0", "0.1", "0", "1"
    ]  # fmt: skip


def test_layers_of_blocks_are_named_where_they_are_asked_for():
    found = reasons(Own(f"{HERE}:ViT(blocks=2)"), inside_blocks=True)
    assert found["blocks.1.norm1"] == "a skip connection from 'blocks.0' passes over the cut"
    assert "blocks.1" not in found and "blocks.1.norm1" not in names(Own(f"{HERE}:ViT(blocks=2)"))


def test_why_a_place_is_none():
    tied = reasons(Own(f"{HERE}:Text(tied=True)"), (6,))
    assert tied["layers.0"].startswith("'words.weight' and 'classifier.weight' are tied, one tensor by two names")
    assert "head" not in names(Own(f"{HERE}:ViT", back="head")), "what comes back there is no cut"
    with pytest.raises(ValueError, match=r"no module 'heat'; did you mean 'head'"):
        names(Own(f"{HERE}:ViT", back="heat"))


@pytest.mark.parametrize(
    ("net", "shape", "expected"),
    [
        (MnistNet(), (1, 28, 28), ["cut=2", "cut=4"]),
        (ResNet18(extra=True, depth=2), (3, 32, 32), ["depth=2"]),
        (ResNet18(), (3, 32, 32), [f"depth={depth}" for depth in range(1, 7)]),
        (LeNet(), (1, 28, 28), ["as it is"]),
        (MLP(), (9,), ["as it is"]),
        (Whole(), (1, 28, 28), ["as it is"]),
    ],
    ids=repr,
)
def test_reference_networks_are_cut_where_their_options_say(net, shape, expected):
    assert names(net, shape) == expected


def test_figures_are_those_of_the_parts():
    task, batch = Task((1, 28, 28), 10), 8
    rows = {row["name"]: row for row in costs(MnistNet(), task, batch)}
    for cut, row in zip((2, 4), rows.values(), strict=True):
        net = MnistNet(cut=cut)
        head, tail = net.head(task.shape), net.tail(task.shape, 10)
        assert row["parameters"] == count_parameters(head) + count_parameters(tail)
        assert row["macs"] == count_macs(head, task.shape) + count_macs(tail, (84,))
        z = row["z"][0] * row["z"][1] * row["z"][2]
        assert row["bytes_up"] == row["bytes_down"] == 4 * batch * (z + 84)


@pytest.mark.parametrize("batch", [2, 3, 64])
def test_memory_is_that_of_the_command_memory_for_any_batch_without_an_optimizer(batch):
    """What a normalisation keeps of its batch does not grow with it."""
    task = Task((3, 32, 32), 10)
    row = next(iter(costs(ResNet18(), task, batch)))
    assert row["memory"] == total(
        breakdown(Plan(net=ResNet18(), batch_size=batch), task)["active"] | {"optimizer": 0}
    )


@pytest.mark.parametrize("batch", [2, 9, 64, 512])
def test_a_layer_that_reads_no_sample_works_with_as_much_for_any_batch(batch):
    """A table of 500 positions of 8 numbers goes into one layer and comes out, of a large batch others have more."""
    rows = {row["name"]: row for row in costs(Own(f"{HERE}:Placed"), Task((16,), 0), batch)}
    table, samples, weights = 4 * 500 * 8, 4 * batch, 2 * 4 * (16 * 8 + 8 + 500 * 8 + 2 * (8 * 8 + 8))
    kept = table + samples * (16 + 8)  # for the gradients of the weights that read them
    assert rows["last"]["memory"] == weights + max(kept, 2 * table)
    assert 2 * table > kept or batch == 512


@pytest.mark.parametrize(
    ("net", "task"),
    [
        (Segmenter(norm="group"), Task((3, 16, 16), 4)),
        (TextDecoder(layers=1, width=8, at=0, vocabulary=30), Task((6,), 30, vocabulary=30)),
    ],
    ids=repr,
)
def test_networks_that_name_a_class_for_every_pixel_or_place_have_figures(net, task):
    (row,) = costs(net, task, 4)
    assert "why_not" not in row
    plan = Plan(net=net, batch_size=4)
    assert row["memory"] == total(breakdown(plan, task)["active"] | {"optimizer": 0})


def test_labels_of_every_pixel_travel_where_the_server_has_the_last_layer():
    model = Own(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 5, 1)))
    row = next(iter(costs(model, Task((1, 8, 8), 0), 4)))
    assert row["bytes_up"] - row["bytes_down"] == 4 * 8 * 64


def test_with_the_last_layers_at_the_server_labels_travel():
    row = next(iter(costs(Own(f"{HERE}:ViT"), Task(PICTURE, 0), 4)))
    assert row["name"] == "patch" and row["bytes_up"] - row["bytes_down"] == 8 * 4


def test_inputs_that_a_network_cannot_read():
    rows = list(costs(Own(f"{HERE}:ConvNeXt"), Task((3, 12, 12), 0), 4))
    assert all("why_not" in row for row in rows)
