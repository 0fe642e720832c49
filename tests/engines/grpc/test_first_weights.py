"""The first weights of a run come from one client and go to all others: they are held to the plan."""

import pytest
import torch
from peers import hello
from rehearsal import FAULTED, NAMES, Rehearsal, parts_of
from toys import ALL_GUARDS, TASK, tiny_plan

from cutlayer.core.message import Message
from cutlayer.engines.grpc.admission import Admission, Limits
from cutlayer.engines.grpc.session import Refused
from cutlayer.training.batches import task_of
from cutlayer.training.build import build_client
from cutlayer.training.client import Client
from cutlayer.training.first_weights import FirstWeights, lengths, too_long
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.step import export

RELAY = tiny_plan(epochs=1, batch_size=12, clients=3, client_optimizer=Adam())
PLANS = {"relay": RELAY, "merged": tiny_plan(epochs=1, batch_size=12, clients=3, rounds=SplitFed())}
KERNEL = "net.head.0.weight"


def spoilt(tensors, how):
    kernel = tensors[KERNEL]
    others = {name: t for name, t in tensors.items() if name != KERNEL}
    if how == "a kernel less":
        return others
    new = {
        "another shape": {KERNEL: kernel[:, :, :2]},
        "another type": {KERNEL: kernel.double()},
        "a name more": {KERNEL: kernel, "net.tail.extra": torch.zeros(3)},
        "a size beyond reason": {KERNEL: torch.full_like(kernel, 1e30)},
        "a seal of nobody": {KERNEL: kernel, "seal.relay": torch.zeros(3)},
        "another optimizer": {KERNEL: kernel, "optimizer.0.velocity": torch.zeros_like(kernel)},
    }
    return others | new[how]


HOW = ("another shape", "a kernel less", "a size beyond reason", "another type", "a name more", "a seal of nobody")
CASES = [(name, how) for how in (*HOW, "another optimizer") for name in PLANS]


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("name", "how"), CASES, ids=[f"{name}, {how}" for name, how in CASES])
def test_first_weights_that_are_not_the_plans_send_that_client_away_and_no_other(
    name, how, tmp_path, monkeypatch, patient_with
):
    """The next client took them for the server's doing, and left: one client ended all the others."""
    patient_with("ward-b", "ward-c")
    handle = Client.handle

    def wrong(client, order):
        answer = handle(client, order)
        if client.number != 0 or "samples" not in answer.tensors:
            return answer
        return Message(answer.kind, answer.client, answer.step, dict(sorted(spoilt(answer.tensors, how).items())))

    monkeypatch.setattr(Client, "handle", wrong)
    run = Rehearsal(PLANS[name], tmp_path, limits=Limits(every=3, deadline=1.0))
    for one in run.names:
        run.join(one)
    run.serve()
    for thread in run.threads:
        thread.join(60.0)
    assert [getattr(error, "name", repr(error)) for error in run.errors] in (["shape"], ["range"])
    assert set(run.results) >= {"server", "ward-b", "ward-c"}
    taken = run.host.progress.taken
    assert taken[0] == 0 < min(taken[1:])
    assert all(torch.isfinite(t).all() for t in run.host.coordinator.tensors().values() if t.is_floating_point())


def brought(plan, client, task=TASK):
    """The first weights of an honest client, with an optimizer that has made a step."""
    network = build_client(plan, task, client, lambda message: message)
    if network.optimizer is not None:
        for group in network.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        network.optimizer.step()
    return export(network, optimizer=not plan.rounds.merges)


HANDED_ON = {name: plan for name, plan in FAULTED.items() if plan.hands_on and "DP" not in name}


@pytest.mark.parametrize("plan", HANDED_ON.values(), ids=HANDED_ON)
def test_honest_first_weights_are_what_the_server_expects(plan):
    task = task_of(parts_of(plan).private, TASK.classes)
    first = FirstWeights(plan.public(), task)
    for client in range(plan.clients):
        weights = brought(plan, client, task)
        assert first.why_not(client, weights, sealed=False) == ""
        assert "seal" in first.why_not(client, weights, sealed=True)


def test_of_a_guard_the_server_need_not_know_what_a_client_brings():
    for guard in ALL_GUARDS:
        for rounds in ({}, {"rounds": SplitFed()}):
            try:
                plan = tiny_plan(clients=2, guard=guard, **rounds)
            except ValueError:  # refused together
                continue
            network = build_client(plan, TASK, 1, lambda message: message)
            weights = export(network, optimizer=False)
            assert FirstWeights(plan.public(), TASK).why_not(1, weights, sealed=False) == "", guard


def test_a_kernel_may_come_eight_times_as_long_and_no_longer():
    before = {"net.kernel": torch.ones(4, 4), "net.bias": torch.zeros(4)}
    usual = lengths(before)
    assert usual == {"net.kernel": 4.0, "biases": 0.0}
    assert too_long({name: t + 6.9 for name, t in before.items()}, usual) == ""
    assert "net.kernel is 36 long, more than 8 times 4" in too_long({"net.kernel": before["net.kernel"] * 9}, usual)
    assert "biases is 18 long" in too_long({"net.bias": before["net.bias"] + 9}, usual)
    assert too_long({"net.guard.noise": torch.full((4, 4), 1e9), "stat.mean": torch.full((4,), 1e9)}, usual) == ""


def test_who_has_the_key_has_sealed_its_number_of_batches():
    """Without one client's, all others refused the first merged weights, and left."""
    room = Admission(PLANS["merged"], NAMES, Limits(), certified=True)
    with pytest.raises(Refused, match="batches_code is missing"):
        room.admit("ward-a", hello(PLANS["merged"], "ward-a", batches_code=None))
    room.admit("ward-a", hello(PLANS["merged"], "ward-a"))
