"""A guard as a mod of Flower's client: around an app, with Flower's own messages, and in its simulation."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'cutlayer[flower]'")
pytest.importorskip("flwr.serverapp.strategy", reason="apps over messages came with flwr 1.21")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cutlayer.guards import DPSGD, WCC, Bottleneck1x1, Chain, Clip, Gaussian, KAnonymous, LightSplit
from cutlayer.guards.flower import as_mod

GUARD = Chain(KAnonymous(k=5), Gaussian(scale=0.1))
ROWS = torch.randn(23, 4, 3, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _as_a_server(monkeypatch):
    """Newer releases let only a running task make messages."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def app_that_sends(*mods, record="activations", rows=ROWS):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        there = {record: ArrayRecord({"z": rows}), "arrays": ArrayRecord({"w": torch.ones(2)})}
        return Message(RecordDict({**there, "metrics": MetricRecord({"num-examples": len(rows)})}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    return app


def asked(app, kind="train"):
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return app(Message(RecordDict(), dst_node_id=1, message_type=kind), context)


def left(app):
    return torch.from_numpy(np.array(asked(app).content["activations"]["z"].numpy()))


def test_every_row_that_leaves_is_the_noised_mean_of_at_least_k():
    seen = left(app_that_sends(as_mod(GUARD)))
    assert seen.shape == ROWS.shape and seen.dtype == ROWS.dtype
    groups, mine, sizes = seen.flatten(1).unique(dim=0, return_inverse=True, return_counts=True)
    assert sizes.min() >= 5 and len(groups) > 1
    means = torch.stack([ROWS.flatten(1)[mine == number].mean(0) for number in range(len(groups))])
    assert 0.05 < float((groups - means).std()) < 0.2, "noise of scale 0.1, one draw a group"


def test_no_two_messages_carry_the_same_noise():
    app = app_that_sends(as_mod(Chain(Clip(norm=1.0), Gaussian(scale=0.1))))
    assert not torch.equal(left(app), left(app))


def test_other_records_and_replies_without_arrays_pass():
    app = app_that_sends(as_mod(GUARD))
    assert asked(app).content["arrays"]["w"].numpy().tolist() == [1, 1]
    assert asked(app, "evaluate").content["metrics"]["loss"] == 1.0


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (lambda: app_that_sends(as_mod(GUARD), record="smashed"), "no record 'activations'.*it has smashed"),
        (lambda: app_that_sends(as_mod(GUARD), rows=ROWS[:4]), "needs 5 samples at a time; z has 4"),
        (lambda: app_that_sends(as_mod(GUARD), rows=torch.ones(9)), "not samples as rows"),
        (lambda: app_that_sends(as_mod(LightSplit(ratio=2))), "half at the server"),
        (lambda: app_that_sends(as_mod(Bottleneck1x1(ratio=2))), "half at the server"),
    ],
)
def test_nothing_leaves_unguarded_by_mistake(app, words):
    with pytest.raises(ValueError, match=words):
        asked(app())


@pytest.mark.parametrize("guard", [DPSGD(), WCC(weight=0.1), Chain(KAnonymous(grouping="class"))], ids=repr)
def test_guards_that_need_more_than_rows_are_refused(guard):
    with pytest.raises(ValueError, match="more than the rows"):
        as_mod(guard)


@pytest.mark.campaign
def test_in_flowers_simulation_the_server_gets_means_alone(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token
    pytest.importorskip("ray", reason="flwr's simulation: pip install 'flwr[simulation]'")
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    came = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        nodes = list(grid.get_node_ids())
        while len(nodes) < 2:
            nodes = list(grid.get_node_ids())
        orders = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
        came.extend(reply.content["activations"]["z"].numpy() for reply in grid.send_and_receive(orders))

    run_simulation(server, app_that_sends(as_mod(GUARD)), num_supernodes=2)
    assert len(came) == 2
    for seen in came:
        rows = torch.from_numpy(np.array(seen)).flatten(1)
        assert rows.unique(dim=0, return_counts=True)[1].min() >= 5
    assert not np.array_equal(came[0], came[1]), "the same samples at two clients, and noise of each one's own"
