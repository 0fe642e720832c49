"""Rounds of many clients over sockets: an update without numbers is left out, and the round goes on."""

from dataclasses import replace

import pytest
import torch
from rehearsal import NAMES, Rehearsal, refuse_other_counts, refuse_other_weights, rehearse, undisturbed
from toys import TinyNet, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.core.remote import Remote
from cutlayer.engines.grpc.admission import Limits
from cutlayer.rules import FedAvgM
from cutlayer.training import client as training_client
from cutlayer.training.client import Client
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Federated, Vanilla


def plan(**changes):
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "clients": 3, "net": TinyNet(norm="group"), **changes})


LOST = {
    "SplitFed": plan(rounds=SplitFed(), local_steps=2, rule=FedAvgM()),
    "SplitFed, one body, vanilla": plan(rounds=SplitFed(version=2), protocol=Vanilla()),
    "SplitFed, ahead": plan(rounds=SplitFed(ahead=1), local_steps=0, epochs=3),
    "SplitFed, one body, vanilla, ahead": plan(
        rounds=SplitFed(version=2, ahead=1), local_steps=0, epochs=3, protocol=Vanilla()
    ),
    "a wave": plan(rounds=Wave()),
    "a fused wave": plan(rounds=Wave(fused=True)),
    "federated": plan(rounds=SplitFed(), protocol=Federated()),
}


@pytest.mark.parametrize("plan", LOST.values(), ids=LOST)
def test_a_client_that_loses_its_numbers_is_left_out_as_in_one_process(plan, tmp_path, monkeypatch):
    """In every second of its steps, so that it takes part again in between."""
    make = Client.batch

    def batch(client, index, later=0):
        made = make(client, index, later)
        lost = client.number == 1 and (client.network.steps + later) % 2 == 0
        return replace(made, x=made.x * torch.nan) if lost else made

    monkeypatch.setattr(Client, "batch", batch)
    local = undisturbed(plan)
    assert {one["client"] for one in local.coordinator.rejected} == {1}
    run = rehearse(plan, tmp_path)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert run.host.coordinator.rejected == local.coordinator.rejected and run.results["server"]["refused"] == {}


def test_a_piece_that_loses_its_numbers_leaves_no_answer_behind(tmp_path, monkeypatch):
    """The piece before it has asked already: whoever goes on without hearing it takes the answer for an order."""
    chosen, make = plan(rounds=SplitFed(), local_steps=2, micro_batches=2), training_client.training_batch

    def batch(plan, samples, index, seed):
        made = make(plan, samples, index, seed)
        return replace(made, x=made.x * torch.nan) if seed % 7 == 0 else made

    monkeypatch.setattr(training_client, "training_batch", batch)
    local = undisturbed(chosen)
    run = rehearse(chosen, tmp_path)
    refuse_other_weights(local, run)
    ours, theirs = (sorted(map(str, side.rejected)) for side in (local.coordinator, run.host.coordinator))
    assert ours == theirs != []


@pytest.mark.parametrize(
    "plan", [LOST["SplitFed"], LOST["federated"], LOST["a wave"]], ids=["SplitFed", "federated", "wave"]
)
def test_weights_without_numbers_are_not_merged_and_nobody_is_sent_away(plan, tmp_path, monkeypatch):
    handle = Client.handle

    def spoilt(client, order):
        answer = handle(client, order)
        if client.number != 2 or "samples" not in answer.tensors or not int(answer["samples"]):
            return answer
        weights = {name: t * torch.nan if name.startswith("net.") else t for name, t in answer.tensors.items()}
        return Message(answer.kind, answer.client, answer.step, weights)

    monkeypatch.setattr(Client, "handle", spoilt)
    local = undisturbed(plan)
    run = Rehearsal(plan, tmp_path)
    for name in NAMES:
        run.join(name)
    run.serve()
    result = run.end()
    assert {one["client"] for one in run.host.coordinator.rejected} == {
        2
    } and "not finite" in run.host.coordinator.rejected[0]["why"]
    assert (
        run.host.coordinator.rejected == local.coordinator.rejected
        and result["rewinds"] == 0
        and result["refused"] == {}
    )
    for name, tensor in run.host.coordinator.tensors().items():
        assert torch.equal(tensor, local.tensors()[name]), name
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all()


@pytest.mark.parametrize("rounds", [Wave(), SplitFed()], ids=repr)
def test_a_client_lost_in_the_middle_of_a_round_takes_nobody_with_it(rounds, tmp_path):
    """Those who wait for their turn in a wave are sent back as well, and all begin the round again."""
    one, lost = plan(rounds=rounds), []
    local = undisturbed(one)

    def listen(message, handle):
        answer = handle(message)
        if message.kind is Kind.FORWARD and message.client == 1 and message.step == 2 and not lost:
            lost.append(message)
            run.host.connections[1].drop()
        return answer

    run = Rehearsal(one, tmp_path, watchers=(listen,))
    for name in NAMES:
        run.join(name)
    run.serve()
    result = run.end()
    assert lost and result["rewinds"] <= 1 and result["exact"] and result["skipped"] == []
    refuse_other_weights(local, run)


def test_first_weights_without_numbers_send_that_client_away_and_no_other(tmp_path, monkeypatch, patient_with):
    patient_with("ward-b", "ward-c")
    handle = Client.handle

    def spoilt(client, order):
        answer = handle(client, order)
        if client.number != 0 or "samples" not in answer.tensors or int(answer["samples"]):
            return answer
        weights = {name: t * torch.nan if name.startswith("net.") else t for name, t in answer.tensors.items()}
        return Message(answer.kind, answer.client, answer.step, weights)

    monkeypatch.setattr(Client, "handle", spoilt)
    run = Rehearsal(plan(rounds=SplitFed()), tmp_path, limits=Limits(every=3, deadline=1.0))
    for name in NAMES:
        run.join(name)
    run.serve()
    for thread in run.threads:
        thread.join(40.0)
    assert [getattr(error, "name", "") for error in run.errors] == ["non-finite"]
    assert run.results["server"]["refused"] == {"non-finite": 1}
    assert set(run.results) >= {"server", "ward-b", "ward-c"} and run.host.progress.taken[0] == 0 < min(
        run.host.progress.taken[1:]
    )
    assert all(torch.isfinite(t).all() for t in run.host.coordinator.tensors().values() if t.is_floating_point())


def test_a_batch_that_would_spoil_the_statistics_of_all_is_left_out(tmp_path, monkeypatch):
    ask = Remote.ask

    def loud(remote, kind, step, packed, /, **tensors):
        if remote.client == 1 and kind is Kind.FORWARD and step == 1:
            tensors["z"] = tensors["z"].detach() * 1e25
        return ask(remote, kind, step, packed, **tensors)

    monkeypatch.setattr(Remote, "ask", loud)
    one = plan(rounds=Wave(), net=TinyNet())
    local = undisturbed(one)
    run = rehearse(one, tmp_path)
    assert (
        [found["client"] for found in run.host.coordinator.rejected]
        == [1]
        == [found["client"] for found in local.coordinator.rejected]
    )
    refuse_other_weights(local, run)
    assert run.results["server"]["refused"] == {} and run.results["server"]["rewinds"] == 0
