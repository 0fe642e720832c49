"""Rules as Flower strategies: whole rounds through Flower's own loop, over a grid that lives in this process."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'cutlayer[flower]'")
pytest.importorskip("flwr.serverapp.strategy", reason="strategies over messages came with flwr 1.21")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as TheirFedAvg
from torch import nn

from cutlayer.rules import FedAvg, FedAvgM, FedMuon, FedProx, Latest, Median, Update
from cutlayer.rules.flower import as_strategy


@pytest.fixture(autouse=True)
def _as_a_server(monkeypatch):
    """Newer releases let only a running task make messages."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 3))


def learnt(arrays, node):
    """What a node sends back: every float a little off, its own way; counters counted on."""
    draw = np.random.default_rng(node)
    after = {}
    for name, array in arrays.items():
        value = np.array(array.numpy())
        moved = 4 * node if "num_batches" in name else draw.normal(size=value.shape) * 0.1
        after[name] = torch.tensor(value + moved, dtype=model().state_dict()[name].dtype)
    return after


class InProcess:
    """The part of Flower's Grid that strategies use."""

    def __init__(self, nodes=3, spoil=()):
        self.nodes, self.spoil = list(range(1, nodes + 1)), spoil

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        node = message.metadata.dst_node_id
        metrics = MetricRecord({"num-examples": 10 * node, "loss": float(node)})
        if message.metadata.message_type != "train":
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        state = learnt(message.content["arrays"], node)
        if node in self.spoil:
            state["3.bias"][0] = float("nan")
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


def start(strategy, grid, rounds=2):
    found = strategy.start(grid, initial_arrays=ArrayRecord(model().state_dict()), num_rounds=rounds)
    return found.arrays.to_torch_state_dict(), found


def test_averaging_agrees_with_flowers_own():
    torch.manual_seed(0)
    ours, found = start(as_strategy(FedAvg()), InProcess())
    theirs, expected = start(TheirFedAvg(), InProcess())
    assert list(ours) == list(theirs) == list(model().state_dict())
    for name, tensor in ours.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, theirs[name].to(tensor), msg=name)
    assert found.train_metrics_clientapp[2]["loss"] == pytest.approx(expected.train_metrics_clientapp[2]["loss"])


def test_counters_stay_whole_and_a_model_can_load_what_comes_back():
    state, _ = start(as_strategy(FedMuon()), InProcess())
    counter = state["1.num_batches_tracked"]
    assert counter.dtype == torch.int64 and int(counter) == 2 * round((4 * 10 + 8 * 20 + 12 * 30) / 60)
    model().load_state_dict(state)


def test_a_rule_with_memory_gives_what_it_gives_outside_of_flower():
    rule = FedMuon(lr=0.1)
    strategy = as_strategy(rule)
    state, _ = start(strategy, InProcess())
    parameters = dict(model().named_parameters())

    def named(state):
        return {("net." if name in parameters else "stat.") + name: tensor for name, tensor in state.items()}

    by_hand = named(model().state_dict())
    for _ in range(2):
        bare = {name.partition(".")[2]: t for name, t in by_hand.items() if not name.startswith("rule.")}
        came = [Update(named(learnt(ArrayRecord(bare), node)), 10 * node) for node in (1, 2, 3)]
        by_hand = rule(by_hand, came)
    for name, tensor in named(state).items():
        torch.testing.assert_close(tensor, by_hand[name], msg=name)
    assert rule.memory(strategy.state) == sum(4 * p.numel() for p in model().parameters())


def test_an_update_that_is_not_finite_is_left_out():
    with_it, found = start(as_strategy(FedAvg()), InProcess(3, spoil=(3,)), rounds=1)
    without, _ = start(as_strategy(FedAvg()), InProcess(2), rounds=1)
    for name, tensor in with_it.items():
        torch.testing.assert_close(tensor, without[name], msg=name)
    assert found.train_metrics_clientapp[1]["loss"] == pytest.approx((10 * 1 + 20 * 2) / 30)


def test_a_round_without_sound_updates_changes_nothing():
    strategy = as_strategy(FedAvgM())
    grid = InProcess(2, spoil=(1, 2))
    before = ArrayRecord(model().state_dict())
    messages = strategy.configure_train(1, before, ConfigRecord(), grid)
    assert strategy.aggregate_train(1, grid.send_and_receive(messages)) == (None, None)
    assert not any(name.startswith("rule.") for name in strategy.state)


def test_a_reply_without_a_count_of_samples_is_left_out():
    strategy, grid = as_strategy(FedAvg()), InProcess(3)
    messages = strategy.configure_train(1, ArrayRecord(model().state_dict()), ConfigRecord(), grid)
    replies = sorted(grid.send_and_receive(messages), key=lambda reply: reply.metadata.src_node_id)
    del replies[2].content["metrics"]["num-examples"]
    arrays, _ = strategy.aggregate_train(1, replies)
    without, _ = start(as_strategy(FedAvg()), InProcess(2), rounds=1)
    torch.testing.assert_close(arrays.to_torch_state_dict()["3.weight"], without["3.weight"])


def test_flowers_settings_pass_through():
    assert as_strategy(Median(), fraction_train=0.25, min_train_nodes=1).fraction_train == 0.25


@pytest.mark.parametrize(("rule", "why"), [(Latest(), "rule that merges"), (FedProx(), "runs at the clients")])
def test_rules_that_cannot_run_there_are_refused(rule, why):
    with pytest.raises(ValueError, match=why):
        as_strategy(rule)


def test_merging_before_anything_was_sent_is_refused():
    with pytest.raises(ValueError, match="configure_train"):
        as_strategy(FedAvg()).aggregate_train(1, [])
