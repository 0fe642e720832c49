"""The history has the loss on held-out samples, as the whole network would have it."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.audit.compare.files import curves
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.batches import as_batch
from cutlayer.training.plan.roles import AllActive
from cutlayer.training.plan.schedule import SplitFed, epoch_rounds
from cutlayer.training.step import predict


def trained(**changes):
    run = LocalRun(tiny_plan(epochs=2, batch_size=12, **changes), tiny_parts(), classes=TASK.classes)
    run.train()
    return run


def test_it_is_the_cross_entropy_of_the_validation_samples():
    run = trained()
    val = run.parts.val
    scores = predict(run.clients[0].network, [as_batch(val, torch.arange(len(val)))])
    expected = torch.nn.functional.cross_entropy(scores, val.y)
    assert run.progress.history[-1]["val_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_it_is_a_mean_over_the_clients_networks():
    run = trained(clients=2, shared_client_network=False)
    val = run.parts.val
    each = [
        float(torch.nn.functional.cross_entropy(predict(one.network, [as_batch(val, torch.arange(len(val)))]), val.y))
        for one in run.clients
    ]
    assert run.progress.history[-1]["val_loss"] == pytest.approx(sum(each) / 2, rel=1e-5)
    assert each[0] != each[1]


def test_without_validation_samples_there_is_none():
    parts = replace(tiny_parts(), val=tiny_parts().val[torch.arange(0)])
    run = LocalRun(tiny_plan(epochs=1, val_share=0.0), parts, classes=TASK.classes)
    run.train()
    assert "val_loss" not in run.progress.history[-1]


def test_a_comparison_draws_it_where_it_is_known():
    row = {"epoch": 1, "val": 0.5, "bytes": 8}
    known = (
        {"variant": "a", "history": [{**row, "val_loss": 2.0}]},
        {"variant": "a", "history": [{**row, "val_loss": 4.0}]},
    )
    assert curves(known)["a"][0]["loss"] == 3.0
    assert curves([{"variant": "old", "history": [row]}])["old"][0]["loss"] is None


def test_refilled_to_equal_shares_everybody_is_in_every_round():
    """What the recipe of full participation rests on; without it few rounds have everybody."""
    held = samples(600)
    full = []
    for partition in (Dirichlet(alpha=0.1, minimum=60, refill=True), Dirichlet(alpha=0.1)):
        batches = [-(-len(rows) // 10) for rows in partition.assign(held, 10, 0)]
        rounds = epoch_rounds(SplitFed(), AllActive(), batches, 1)
        full.append(sum(len(one) == 10 for one in rounds) / len(rounds))
    assert full[0] == 1 and full[1] < 0.5
