"""A server that goes back goes back as a whole: body, statistics, and what its optimizer remembers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.errors import ProtocolError
from cutlayer.core.message import Kind, Message
from cutlayer.core.server import Server
from cutlayer.core.state import optimizer_state
from cutlayer.engines.local.run import LocalRun
from cutlayer.training import checkpoint
from cutlayer.training.bodies import RoundBodies
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.progress import Best

OPTIMIZERS = [SGD(lr=0.05, momentum=0.9), Adam(lr=0.01), Adam(lr=0.01, amsgrad=True)]
all_optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def whole(server):
    """Everything of a server that its next step depends on."""
    return dict(server.body.state_dict()) | optimizer_state(server.optimizer)


def small_server(optimizer):
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return Server(body, bodies=RoundBodies(body, optimizer.build(body.parameters())))


def step(server, number, scale=1.0):
    """A client's step with numbers that follow from `number` alone."""
    draw = torch.Generator().manual_seed(number)
    server.handle(Message(Kind.FORWARD, 0, number, {"z": torch.randn(5, 3, generator=draw)}))
    server.handle(Message(Kind.BACKWARD, 0, number, {"du": scale * torch.randn(5, 2, generator=draw)}))


# ------------------------------------------------------------------------------- the server alone
@all_optimizers
def test_after_going_back_the_next_step_is_the_one_it_would_have_been(optimizer):
    """The body alone is not enough: momentum would carry on what was rejected."""
    server, without = small_server(optimizer), small_server(optimizer)
    for one in (server, without):
        step(one, 0)
    kept = server.bodies.before_turn()
    for number in (1, 2):
        step(server, number, scale=100.0)
    server.bodies.go_back(kept)
    assert same(whole(server), whole(without))
    for one in (server, without):
        step(one, 3)
    assert same(whole(server), whole(without))


@all_optimizers
def test_going_back_to_before_the_first_step_leaves_the_optimizer_nothing_to_remember(optimizer):
    server, fresh = small_server(optimizer), small_server(optimizer)
    kept = server.bodies.before_turn()
    step(server, 1, scale=100.0)
    server.bodies.go_back(kept)
    assert not optimizer_state(server.optimizer)
    for one in (server, fresh):
        step(one, 2)
    assert same(whole(server), whole(fresh))


@all_optimizers
def test_what_is_kept_does_not_change_while_the_server_goes_on(optimizer):
    server = small_server(optimizer)
    step(server, 0)
    before = {name: tensor.clone() for name, tensor in whole(server).items()}
    kept = server.bodies.before_turn()
    for _ in range(2):  # a second time: going back must not hand out what it keeps
        step(server, 1)
        server.bodies.go_back(kept)
        assert same(whole(server), before)


def test_gradients_of_a_batch_that_was_broken_off_do_not_survive_going_back():
    server = small_server(OPTIMIZERS[0])
    kept = server.bodies.before_turn()
    for parameter in server.body.parameters():
        parameter.grad = torch.ones_like(parameter)
    server.bodies.go_back(kept)
    assert all(parameter.grad is None for parameter in server.body.parameters())


def test_a_gradient_of_before_is_refused_after_going_back():
    """Its forward pass went through a body that is gone."""
    server = small_server(OPTIMIZERS[0])
    kept = server.bodies.before_turn()
    server.handle(Message(Kind.FORWARD, 0, 0, {"z": torch.randn(5, 3)}))
    server.bodies.go_back(kept)
    with pytest.raises(ProtocolError, match="its graph is gone"):
        server.handle(Message(Kind.BACKWARD, 0, 0, {"du": torch.randn(5, 2)}))
    assert same(whole(server), whole(small_server(OPTIMIZERS[0])))


# ------------------------------------------------------------------------------------- a whole run
NET = TinyNet(norm="group")
CLIENTS = 3


def start(optimizer, **changes):
    fields = {"net": NET, "batch_size": 8, "epochs": 2, "server_optimizer": optimizer, "clients": CLIENTS}
    return LocalRun(tiny_plan(**{**fields, **changes}), tiny_parts(), classes=TASK.classes)


@all_optimizers
@pytest.mark.parametrize("spoils", ["the body", "its own numbers"])
def test_nothing_of_a_rejected_turn_stays_at_the_server(optimizer, spoils):
    """One body for all: who is left out must not have pushed it, nor what its optimizer remembers."""
    rounds = SplitFed(version=2)
    run, without = start(optimizer, rounds=rounds), start(optimizer, rounds=rounds)
    run.take(run.timetable.rounds(0)[0])
    without.take(without.timetable.rounds(0)[0])
    ask = run.carrier.ask

    def spoilt(client, order):
        answer = ask(client, order)  # the server has learnt from it by now
        if client != 1:
            return answer
        if spoils == "the body":
            with torch.no_grad():
                next(run.server.body.parameters()).fill_(math.nan)
            return answer
        return replace(answer, tensors={**answer.tensors, "samples": torch.tensor([0])})

    run.carrier.ask = spoilt
    second = run.timetable.rounds(0)[1]
    assert {turn.client for turn in second} == set(range(CLIENTS))
    run.take(second)
    assert [one["client"] for one in run.coordinator.rejected] == [1]
    without.take([turn for turn in second if turn.client != 1])
    assert same(whole(run.server), whole(without.server))


@all_optimizers
def test_a_resumed_server_remembers_what_its_optimizer_did(optimizer, tmp_path):
    run = start(optimizer, clients=1)
    asked = iter([False, False, True])
    assert not run.train(stop=lambda: next(asked))
    before = optimizer_state(run.server.optimizer)
    assert before and any(bool(tensor.any()) for tensor in before.values())
    checkpoint.save(tmp_path / "last.safetensors", *run.snapshot())
    resumed = start(optimizer, clients=1)
    resumed.restore(*checkpoint.load(tmp_path / "last.safetensors"))
    assert same(optimizer_state(resumed.server.optimizer), before)
    for one in (run, resumed):
        one.take(one.timetable.rounds(0)[2])
    assert same(whole(resumed.server), whole(run.server))


def test_a_server_that_restores_an_earlier_state_forgets_what_came_after():
    run = start(OPTIMIZERS[0], clients=1)
    at_the_start = run.snapshot()
    run.take(run.timetable.rounds(0)[0])
    assert optimizer_state(run.server.optimizer)
    run.restore(*at_the_start)
    assert not optimizer_state(run.server.optimizer)


@all_optimizers
def test_optimizers_of_clients_own_bodies_are_restored_too(optimizer):
    run = start(optimizer, rounds=SplitFed(version=1))
    run.take(run.timetable.rounds(0)[0])
    assert run.server.bodies.kept().keys() == set(range(CLIENTS)) and all(run.server.bodies.kept().values())
    resumed = start(optimizer, rounds=SplitFed(version=1))
    resumed.restore(*run.snapshot())
    assert resumed.server.bodies.kept().keys() == run.server.bodies.kept().keys()
    assert all(
        same(resumed.server.bodies.kept()[client], state) for client, state in run.server.bodies.kept().items()
    )


def test_the_best_epoch_comes_back_with_its_optimizer():
    run = start(OPTIMIZERS[0], clients=1, patience=2, val_share=0.2)
    run.take(run.timetable.rounds(0)[0])
    run.progress.best = Best(1.0, 1, run.tensors())
    before = {name: tensor.clone() for name, tensor in whole(run.server).items()}
    run.take(run.timetable.rounds(0)[1])
    run.use_best()
    assert same(whole(run.server), before)
