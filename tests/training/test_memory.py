"""Client memory by purpose, against hand counts."""

import json
from functools import reduce
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import GUARDS, TASK, LinearNet, TinyNet, batches, split_and_whole, tiny_plan

from cutlayer.cli import app as cli
from cutlayer.cli.memory import picture, table
from cutlayer.core.batch import Batch, Task
from cutlayer.core.remote import Remote
from cutlayer.core.split import UShapedNetwork
from cutlayer.guards import DPSGD, Chain, Clip
from cutlayer.nets.lenet import LeNet
from cutlayer.nets.resnet import ResNet18
from cutlayer.training.build import build_client
from cutlayer.training.facts.memory import breakdown, by_role, client_memory, total
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import ClientNetwork, learn


def measured(**changes):
    client, server, *_ = split_and_whole(tiny_plan(**changes))
    learn(client, batches(1)[0])
    before = {name: t.clone() for name, t in client.split.state_dict().items()}
    sizes = client_memory(client, batches(1)[0], (7,))
    assert all(torch.equal(t, before[name]) for name, t in client.split.state_dict().items()), (
        "measuring changes nothing"
    )
    assert server.bodies.updates == 1
    return sizes


def test_parameters_gradients_and_optimizer_state():
    count = (4 * 9 + 4) + 8 + (7 * 3 + 3)  # conv, BatchNorm, tail
    sgd = measured(client_optimizer=SGD())
    assert (sgd["parameters"], sgd["gradients"], sgd["optimizer"]) == (4 * count, 4 * count, 4 * count)
    adam = measured(client_optimizer=Adam())
    tensors = 6  # each with a step counter of one float
    assert adam["optimizer"] == 2 * 4 * count + 4 * tensors


def test_a_gradient_for_every_sample_is_counted_where_a_guard_takes_them_apart():
    for guard in (DPSGD(noise=1.0), Chain(Clip(), DPSGD(noise=1.0))):
        found = breakdown(tiny_plan(net=TinyNet(norm="none"), guard=guard, batch_size=8), TASK)
        assert found["active"]["gradients"] == (1 + 8) * found["active"]["parameters"]
        assert found["frozen"]["gradients"] == 0


def test_a_frozen_head_needs_no_gradients_and_hardly_any_activations():
    full, frozen = measured(), measured(frozen_parts=("head",))
    assert frozen["gradients"] < full["gradients"]
    assert frozen["activations"] < 0.5 * full["activations"]


def test_activations_are_counted_once():
    # The second layer's weight is saved for backward as well, but it is a parameter, not an activation.
    split = UShapedNetwork(nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh()), nn.Identity())
    client = ClientNetwork(0, split, None, Remote(0, lambda message: message))
    batch = Batch(torch.randn(8, 10), torch.zeros(8, dtype=torch.long))
    sizes = client_memory(client, batch, (TASK.classes,))
    kept = 8 * 10 + 20 * 8 + 20 * 8  # the input and each tanh's output
    logits_and_labels = 8 * TASK.classes + 2 * 8 + 1  # log-softmax, int64 labels, the loss's weight
    assert 4 * kept <= sizes["activations"] <= 4 * (kept + logits_and_labels + 8)


# ------------------------------------------------------------------------------------------ modes
def parts_of(**changes):
    return breakdown(tiny_plan(**{"batch_size": 6, **changes}), TASK)


def test_an_active_client_of_a_plan_is_counted_as_one_that_has_learnt():
    for optimizer in (SGD(), Adam(), SGD(momentum=0.0)):
        assert parts_of(client_optimizer=optimizer)["active"] == measured(client_optimizer=optimizer)


def test_a_client_that_is_ahead_keeps_two_batches_before_the_cut_and_copies_of_its_weights():
    net, optimizer = LinearNet(width=5), SGD()
    usual, ahead = (
        by_role(tiny_plan(net=net, batch_size=8, local_steps=0, rounds=rounds, client_optimizer=optimizer), TASK)
        for rounds in (Relay(), Relay(ahead=1))
    )
    assert {**ahead["active"], "activations": 0} == {**usual["active"], "activations": 0}
    # Before the cut: the flat image for the weights' gradient, what ReLU let through. Behind it: u, and log-softmax.
    before, behind = 4 * 8 * (144 + 5), usual["active"]["activations"] - 4 * 8 * (144 + 5)
    assert 0 < behind < before and ahead["active"]["activations"] == 2 * before
    deep = {"net": LinearNet(width=400), "batch_size": 2, "local_steps": 0}
    usual, ahead = (by_role(tiny_plan(**deep, rounds=one), TASK)["active"] for one in (Relay(), Relay(ahead=1)))
    assert ahead["activations"] == usual["activations"] + 4 * 400 * 3  # the tail's weights: a copy for the way back


def test_a_frozen_client_keeps_what_lies_between_u_and_the_loss():
    frozen, active = parts_of()["frozen"], parts_of()["active"]
    assert (frozen["gradients"], frozen["optimizer"]) == (0, 0) and frozen["parameters"] == active["parameters"]
    # u is kept by nobody (the tail's weights want no gradient); log-probabilities, labels, one number of the loss.
    assert 4 * 6 * 3 + 8 * 6 <= frozen["activations"] <= 4 * 6 * 3 + 8 * 6 + 4 * 7 * 6 + 16
    assert parts_of(protocol=Vanilla())["frozen"]["activations"] == 0, "the server takes it from the cut"


class LastAnswer(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(4, 16, batch_first=True)

    def forward(self, x):
        return self.read(x)[0][:, -1].clone()


def test_all_that_a_layer_gives_is_worked_with_also_where_it_gives_several():
    split = UShapedNetwork(LastAnswer(), nn.Linear(5, 3))
    client = ClientNetwork(0, split, None, Remote(0, lambda message: message))
    batch = Batch(torch.randn(8, 30, 4), torch.zeros(8, dtype=torch.long))
    for mode in ("active", "frozen"):
        assert client_memory(client, batch, (5,), mode)["working"] == 4 * 8 * (30 * 4 + 30 * 16 + 2 * 16)


def test_the_largest_layer_is_needed_in_every_mode():
    largest = 2 * 4 * (6 * 4 * 10 * 10)  # what goes into BatchNorm or ReLU, and comes out
    for sizes in parts_of().values():
        assert sizes["working"] == largest
    frozen = parts_of()["frozen"]
    assert total(frozen) == frozen["parameters"] + largest


@pytest.mark.parametrize("net", [TinyNet(), TinyNet(norm="group")], ids=repr)
def test_checkpointing_keeps_as_much_as_torch_does(net):
    """Of all ways to cut the head into segments the cheapest, each counted as torch's own checkpointing has it."""
    plan = tiny_plan(net=net, batch_size=6, protocol=Vanilla(), client_optimizer=SGD(momentum=0.0))
    head = build_client(plan, TASK, 0, lambda message: message).split.head
    x, own = (
        torch.rand(6, *TASK.shape),
        {p.untyped_storage().data_ptr() for p in [*head.parameters(), *head.buffers()]},
    )

    def held(run):
        kept = {}

        def keep(tensor):
            if tensor.untyped_storage().data_ptr() not in own:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = run()
        return out, kept

    def size(kept):
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    def again_later(z, segment):
        return checkpoint(segment, z, use_reentrant=False)

    costs, layers = [], list(head)
    for count in range(1, len(layers) + 1):
        ends = [round(len(layers) * place / count) for place in range(count + 1)]
        segments = [nn.Sequential(*layers[a:b]) for a, b in pairwise(ends)]
        _, inputs = held(lambda segments=segments: reduce(again_later, segments, x))
        z, again = x, []
        for segment in segments:
            out, kept = held(lambda segment=segment, z=z: segment(z))
            again.append(size({place: t for place, t in kept.items() if place != z.untyped_storage().data_ptr()}))
            z = out
        costs.append(size(inputs) + max(again))
    found = breakdown(plan, TASK)
    assert found["checkpointed"]["activations"] <= found["active"]["activations"]
    # x is no segment's output, and both ways hold it; a few bytes are what torch keeps of its own.
    assert abs(found["checkpointed"]["activations"] - min(costs)) <= 64


def test_checkpointing_pays_where_a_head_is_long():
    found = breakdown(Plan(net=ResNet18(depth=4)), Task((3, 32, 32), 10))
    sizes = {mode: total(one) for mode, one in found.items()}
    assert sizes["frozen"] < 0.35 * sizes["active"] and sizes["checkpointed"] < 0.85 * sizes["active"]
    same = ("parameters", "gradients", "optimizer")
    assert all(found["checkpointed"][name] == found["active"][name] for name in same)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guard", GUARDS, ids=repr)
def test_every_guard_can_be_counted_in_every_mode(guard):
    for protocol in (UShaped(), Vanilla(), Bypass()):
        found = parts_of(guard=guard, protocol=protocol)
        assert list(found) == ["active", "checkpointed", "frozen"]
        assert all(total(one) > 0 for one in found.values())


def test_what_a_plan_does_not_have_is_not_counted():
    assert list(parts_of(protocol=Federated(), rounds=SplitFed())) == ["active", "checkpointed"]
    assert list(by_role(tiny_plan(), TASK)) == ["active"]
    assert list(by_role(tiny_plan(clients=4, roles=Frozen(share=0.5)), TASK)) == ["active", "frozen"]
    assert list(by_role(tiny_plan(clients=4, roles=Frozen(share=0.5, discard=True)), TASK)) == ["active"]
    client, *_ = split_and_whole(tiny_plan())
    with pytest.raises(ValueError, match="a client is active, checkpointed, frozen; got 'idle'"):
        client_memory(client, batches(1)[0], (7,), "idle")


def test_the_table_and_the_picture_have_all_modes():
    found = parts_of()
    lines = table(found)
    assert [line.split()[0] for line in lines] == ["MB", *found]
    assert lines[1].endswith("100%") and f"{total(found['frozen']) / 1e6:.3f}" in lines[3]
    assert picture(found).startswith(b"\x89PNG")


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    typed = ["memory", "--net", "LeNet", "--batch-size", "16", "--out", str(tmp_path / "a"), "--json"]
    cli.app(typed, standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    assert shown["client_memory"] == breakdown(Plan(net=LeNet(), batch_size=16), Task((1, 28, 28), 10))
    assert {file.name for file in (tmp_path / "a").iterdir()} == {"memory.json", "memory.png"}
    assert json.loads((tmp_path / "a" / "memory.json").read_text())["plan"] == shown["plan"]
