"""A server that orders more than the plan has, and a client that keeps the plan's books."""

import json

import pytest
import torch
from crooked import crooked, refused
from rehearsal import Rehearsal, rehearse
from toys import TinyNet, tiny_plan

from cutlayer.core.errors import OffPlan
from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc import deploy
from cutlayer.engines.grpc.channel import Address
from cutlayer.guards import Chain, Clip, Gate, Gaussian, Noise
from cutlayer.training.facts.privacy import privacy
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.roles import SendOnce

PLAN = tiny_plan(epochs=2, batch_size=10, guard=Noise(scale=0.5))


def test_an_epoch_that_is_ordered_again_is_refused_and_the_client_halts(tmp_path):
    """Twelve times the same epoch were 60 steps where the plan has 5, with fresh noise each time."""
    with crooked(PLAN, tmp_path) as server:
        server.turn(0, 0, 0, 5, 0)
        error = refused(server, lambda: server.turn(0, 0, 0, 5, 5))
    assert isinstance(error, OffPlan) and error.exit_code == 7
    assert "the server orders batch 0 of epoch 0 at step 5, and it was released at step 0" in str(error)
    assert len(server.sent()) == 5
    own = tmp_path / "ward-a"
    assert json.loads((own / "halted.json").read_text())["exit_code"] == 7 and not (own / "result.json").exists()
    with pytest.raises(OffPlan, match="delete"):
        deploy.join(PLAN, "ward-a", own, address=Address("127.0.0.1:1"))


def test_an_evaluation_that_is_asked_for_again_shows_nothing_new(tmp_path):
    with crooked(PLAN, tmp_path) as server:
        for _ in range(3):
            server.evaluate(0, 1, 2)
        assert len({z.numpy().tobytes() for z in server.sent()}) == 1
        error = refused(server, lambda: server.evaluate(0, 1, 1))
    assert isinstance(error, OffPlan) and "test of epoch 1, and had one of epoch 2" in str(error)


def test_a_replay_with_other_answers_sends_the_same_bytes(tmp_path):
    """With the same noise on other activations, the difference of two messages would show them without any."""
    with crooked(PLAN, tmp_path) as server:
        server.turn(0, 0, 0, 2, 0)
        server.number(Kind.REWIND, 0, 0)
        for parameter in server.host.server.body.parameters():
            parameter.data.mul_(-3.0)  # answers unlike the first ones, and so another head after the first batch
        server.turn(0, 0, 0, 2, 0)
        z, du = server.sent(), server.sent("du")
        own = server.run.sites["ward-a"]
        assert torch.equal(z[0], z[2]) and torch.equal(z[1], z[3]) and torch.equal(du[0], du[2])
        assert own.books.spent()["batches"] == 2 and own.books.spent()["sent_again"] == 4


def test_what_is_sent_once_stays_once_when_a_server_asks_again(tmp_path):
    """Clients of SendOnce promise so many bits a sample: a replay shows the same ones, and no epoch sends more."""
    gate = Gate(numbers=6, bits=2, budget=2000, hidden=8)
    plan = tiny_plan(epochs=4, batch_size=24, guard=gate, roles=SendOnce(split=1, views=1))

    def frozen(epoch, step):
        server.host.server.open_round({0})
        server.host.coordinator.kept.epoch = epoch
        found = server.ask(Message(Kind.TURN, 0, step, {"turn": torch.tensor([epoch, 0, 2, 1])}))
        server.host.server.open_round()
        return found

    with crooked(plan, tmp_path) as server:
        for _ in range(2):
            server.turn(0, 0, 0, 2, 0)
            frozen(1, 2)
            server.number(Kind.REWIND, 0, 0)
            for parameter in server.host.server.body.parameters():
                parameter.data.mul_(-3.0)  # another head after its first batch, and so another message of each sample
        z = server.sent()
        assert len(z) == 8 and all(torch.equal(one, again) for one, again in zip(z[:4], z[4:], strict=True))
        server.turn(0, 0, 0, 2, 0)
        frozen(1, 2)
        error = refused(server, lambda: frozen(1, 4))
    assert "batch 0 of epoch 1 at step 4, and it was released at step 2" in str(error)


def test_the_result_says_what_was_spent_and_prices_what_was_released(tmp_path):
    guard, still = Chain(Clip(norm=1.0), Gaussian(epsilon=8.0)), SGD(lr=1e-9)
    plan = tiny_plan(
        epochs=12, batch_size=24, guard=guard, patience=1, val_share=0.2, net=TinyNet(norm="group"),
        client_optimizer=still, server_optimizer=still,
    )  # fmt: skip
    run = rehearse(plan, tmp_path, names=("ward-a",))
    result, epochs = run.results["ward-a"], run.results["server"]["epochs"]
    assert epochs < plan.epochs, "it stopped early: nothing is learnt"
    assert result["released"]["epochs"] == epochs and result["released"]["batches"] == result["steps"]
    assert result["released"]["validate evaluations"] == epochs
    assert result["privacy"]["epsilon"]["epochs"] == epochs
    party = run.sites["ward-a"].party
    assert result["privacy"] == privacy(plan, party.task, epochs=epochs)
    assert result["privacy"]["inference"]["validation_releases"] == epochs


def test_a_client_that_was_killed_still_knows_what_it_released(tmp_path):
    with crooked(PLAN, tmp_path) as server:
        server.turn(0, 0, 0, 5, 0)
    run = Rehearsal(PLAN, tmp_path / "second", names=("ward-a",))
    run.folder = tmp_path
    run.join("ward-a")
    from crooked import Crooked

    again = Crooked(run)
    error = refused(again, lambda: again.turn(0, 0, 2, 5, 0))  # back at its snapshot, step 0
    assert isinstance(error, OffPlan) and "batch 2 of epoch 0 at step 0, and it was released at step 2" in str(error)
