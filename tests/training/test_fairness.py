"""What a result says of each client: its share of the data, what it did, and how well the network serves it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.data import Digits
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.client_report import by_client, class_counts
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.local.start import train
from cutlayer.training.batches import as_batch
from cutlayer.training.facts.fairness import fairness
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.step import predict


def trained(**changes) -> LocalRun:
    plan = tiny_plan(**{"epochs": 1, "batch_size": 6, "clients": 4, "partition": Dirichlet(alpha=0.5), **changes})
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    assert run.train()
    run.evaluate(run.parts.test)
    return run


def expected(run: LocalRun, client: int, network: int) -> float:
    """A second way: every test sample counts as its class does with the client, over how many test samples it has."""
    test = run.parts.test
    found = predict(run.clients[network].network, [as_batch(test, torch.arange(len(test)))]).argmax(1)
    own, all_ = run.clients[client].samples.y, test.y
    weights = [(own == y).sum().item() / (all_ == y).sum().item() for y in all_]
    return sum(w for w, hit in zip(weights, found == all_, strict=True) if hit) / sum(weights)


@pytest.mark.parametrize("shared", [True, False])
def test_accuracy_is_what_a_client_may_expect_on_data_like_its_own(shared):
    run = trained(shared_client_network=shared)
    told = by_client(run)["clients"]
    for client, one in enumerate(told):
        assert one["accuracy"] == pytest.approx(expected(run, client, 0 if shared else client), abs=1e-12)
        assert one["classes"] == [int((run.clients[client].samples.y == c).sum()) for c in range(TASK.classes)]
        assert (one["client"], one["samples"]) == (client, len(run.clients[client].samples))
        assert one["steps"] == run.clients[client].batches
    assert sum(one["samples"] for one in told) == len(run.parts.private)


def test_many_clients_cost_one_evaluation():
    run = trained(clients=24, partition=Dirichlet(alpha=1.0))
    before = run.ledger.samples["predicting"]
    by_client(run)
    assert run.ledger.samples["predicting"] == before == 12 + 30  # one validation, one test


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        ({}, ["active"] * 4),
        ({"rounds": SplitFed(), "roles": Frozen(share=0.5)}, ["active", "active", "frozen", "frozen"]),
        ({"rounds": SplitFed(), "roles": Frozen(share=0.5, discard=True)}, ["active", "active", "out", "out"]),
        ({"roles": Frozen(share=0.5, rotate=1), "epochs": 6}, ["both"] * 4),
    ],
    ids=["all", "frozen", "discarded", "rotating"],
)
def test_what_clients_did(changes, roles):
    run = trained(**changes)
    told = by_client(run)["clients"]
    assert [one["role"] for one in told] == roles
    assert all((one["steps"] == 0) == (one["role"] == "out") for one in told)


def test_a_client_that_is_never_drawn_is_out_and_still_served():
    run = trained(rounds=SplitFed(), clients_per_round=1, local_steps=0)
    told = by_client(run)["clients"]
    assert sorted(one["role"] for one in told) == ["active", "out", "out", "out"]
    assert all(one["accuracy"] is not None for one in told)


def test_a_class_without_test_samples_says_nothing():
    parts = tiny_parts()
    test = parts.test[(parts.test.y > 0).nonzero().flatten()]
    run = LocalRun(tiny_plan(epochs=1, clients=2, batch_size=6), replace(parts, test=test), classes=TASK.classes)
    run.train()
    run.evaluate(test)
    right, seen = run.clients[0].scored.by_class.tolist()
    assert seen[0] == 0
    own = class_counts(run)[0].tolist()
    rest = [(own[c], right[c] / seen[c]) for c in (1, 2)]
    assert by_client(run)["clients"][0]["accuracy"] == pytest.approx(
        sum(n * share for n, share in rest) / sum(n for n, _ in rest)
    )


def test_fairness_of_known_numbers():
    told = fairness([0.9, None, 0.5, 0.7])
    assert told == {
        "mean": pytest.approx(0.7), "spread": pytest.approx(0.4), "deviation": pytest.approx((0.08 / 3) ** 0.5),
        "best": 0.9, "best_client": 0, "worst": 0.5, "worst_client": 2, "worst_tenth": 0.5,
    }  # fmt: skip
    assert fairness([i / 100 for i in range(25)])["worst_tenth"] == pytest.approx(0.01)  # three of 25
    assert fairness([None]) == {}


def test_maps_of_pixels_have_no_classes():
    clients = [SimpleNamespace(samples=samples(4), scored=None)]
    clients[0].samples = replace(clients[0].samples, y=torch.zeros(4, 12, 12, dtype=torch.int64))
    run = SimpleNamespace(clients=clients, task=TASK, plan=tiny_plan())
    assert class_counts(run) is None and by_client(run) == {}


def test_a_training_run_says_it_in_its_result(tmp_path):
    plan = tiny_plan(data=Digits(limit=80), epochs=1, batch_size=10, clients=3, partition=Dirichlet(alpha=1.0))
    train(plan, tmp_path / "a")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert [one["client"] for one in result["clients"]] == [0, 1, 2]
    assert result["fairness"] == fairness([one["accuracy"] for one in result["clients"]])
    assert sum(sum(one["classes"]) for one in result["clients"]) == 72  # a tenth validates


def test_without_test_data_there_is_nothing_to_say():
    parts = tiny_parts()
    none = parts.test[torch.arange(0)]
    run = LocalRun(tiny_plan(epochs=0), replace(parts, test=none), classes=TASK.classes)
    assert run.evaluate(none) == [] and by_client(run) == {}
