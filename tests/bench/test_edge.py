"""Figures of a client on a small device, and of the schemes on paper: what follows from counting, not from clocks."""

import json
from math import inf, nan, prod

import pytest
import torch
from fleet import trained
from toys import TASK, LinearNet, tiny_parts, tiny_plan
from typer.testing import CliRunner

from cutlayer.bench.edge import Core, edge, exported, lines
from cutlayer.cli.app import app
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, through
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import BF16, LFQ, WCC, Gaussian, KAnonymous, LightSplit, NoGuard, Quantize, TopK
from cutlayer.nets import TextEncoder
from cutlayer.rules import FedAvg, Scaffold
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.memory import breakdown, made_up_batch, total
from cutlayer.training.facts.schemes import SCHEMES, Quantities, costs, quantities
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Alone, Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import learn
from cutlayer.wire import frames
from cutlayer.wire.ledger import DOWN, UP, Ledger


@pytest.fixture(scope="module")
def found():
    return edge(tiny_plan(batch_size=8), TASK, Core(gflops=2.0, watts=3.0, nanojoules=50.0), repeats=1)


def test_the_model_is_the_time_here_scaled_and_the_energy_follows(found):
    for row in found["modes"].values():
        assert row["modelled ms"] == pytest.approx(row["ms here"] * found["gflops here"] / 2.0)
        assert row["modelled mJ"] == pytest.approx(row["modelled ms"] * 3.0 + 50e-6 * row["bytes"])


def test_bytes_are_those_of_a_real_step(found):
    """z and dz, u and du as floats; a frame's header is shared by the batch. Half of z is zero behind a ReLU."""
    cut = cut_shapes(tiny_plan(), TASK)
    most = 4 * 2 * (prod(cut.z) + prod(cut.u))
    assert 0.5 * most < found["modes"]["learns"]["bytes"] < most + 100
    assert found["modes"]["predicts"]["bytes"] < found["modes"]["learns"]["bytes"]
    smaller = edge(tiny_plan(batch_size=8, guard=LightSplit(ratio=4)), TASK, repeats=1)["modes"]["learns"]["bytes"]
    assert smaller < found["modes"]["learns"]["bytes"]


def test_gradients_that_a_plan_compresses_are_counted_as_they_leave():
    plan = tiny_plan(batch_size=8, compression=Compression(gradients=Quantize(bits=2)), private_seed=0)
    ledger = Ledger()
    client = build_client(plan, TASK, 0, through([ledger], build_server(plan.public(), TASK).handle))
    learn(client, made_up_batch(plan, TASK))
    assert 8 * edge(plan, TASK, repeats=1)["modes"]["learns"]["bytes"] == sum(ledger.bytes.values())


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=str)
def test_every_piece_of_a_batch_has_frames_of_its_own(protocol):
    """As many as in training: 11 samples in four pieces, of three and two."""
    plan = tiny_plan(batch_size=11, micro_batches=4, epochs=1, protocol=protocol, net=LinearNet())
    run = trained(plan, parts=tiny_parts(private=11))
    assert run.ledger.samples["training"] == 11 and run.ledger.messages["BACKWARD", UP] == 4
    found = edge(plan, TASK, repeats=1)["modes"]["learns"]["bytes"]
    assert 11 * found == pytest.approx(11 * sum(run.ledger.per_sample(way) for way in (UP, DOWN)))


PLAIN = SGD(lr=0.05, momentum=0.0)
HANDED_ON = [
    {},
    {"client_optimizer": Adam()},
    {"rounds": SplitFed(), "rule": FedAvg()},
    {"rounds": SplitFed(), "rule": Scaffold(), "client_optimizer": PLAIN, "protocol": Federated()},
    {"protocol": Federated(), "rounds": SplitFed(), "rule": FedAvg()},
]


@pytest.mark.parametrize("changes", HANDED_ON, ids=str)
def test_weights_that_a_turn_hands_on_are_counted_as_in_training(changes):
    plan = tiny_plan(batch_size=8, clients=2, epochs=2, local_steps=3, **changes)
    crossed = []
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    note = run.ledger.note
    run.ledger.note = lambda message, way, *more: (crossed.append((message, way)), note(message, way, *more))
    assert run.train()
    weights = [(frames.size(message), way) for message, way in crossed if message.kind is Kind.WEIGHTS]
    found = edge(plan, TASK, repeats=1)
    assert (found["weights"]["down"], DOWN) == weights[-2] and (found["weights"]["up"], UP) == weights[-1]
    assert "up for each turn of 3 batches, beside the above" in " ".join(lines(found))


OF_THEIR_OWN = [{}, {"clients": 2, "shared_client_network": False}, {"protocol": Alone()}, {"protocol": Federated()}]


@pytest.mark.parametrize("changes", OF_THEIR_OWN, ids=str)
def test_where_each_has_its_own_head_no_weights_cross(changes):
    found = edge(tiny_plan(batch_size=8, **changes), TASK, repeats=1)
    said = "nothing crosses" in " ".join(lines(found))
    assert found["weights"] is None and said == (not found["modes"]["learns"]["bytes"])


@pytest.mark.parametrize("guard", [LFQ(freq=1), LFQ(freq=1, decoder="client")], ids=str)
def test_a_guard_whose_halves_are_exchanged_in_every_step_has_its_figures(guard):
    assert edge(tiny_plan(batch_size=8, guard=guard), TASK, repeats=1)["modes"]["learns"]["bytes"] > 0


def test_memory_is_that_of_the_command_memory_also_where_steps_begin_ahead():
    plan = tiny_plan(batch_size=8, rounds=Relay(ahead=1), local_steps=0)
    learns = edge(plan, TASK, repeats=1)["modes"]["learns"]["memory"]
    assert learns == total(breakdown(plan, TASK)["active"])


def test_predicting_takes_less_memory_than_learning(found):
    assert found["modes"]["predicts"]["memory"] < found["modes"]["learns"]["memory"]


def test_the_head_leaves_as_a_program_that_gives_the_same(found):
    assert found["exported"]["works"] and found["exported"]["largest difference"] < 1e-6
    said = " ".join(lines(found))
    assert "gradients of activations come on top" in said
    assert "nodes, outputs differ by" in said and "nothing was measured on a device" in said


def test_the_head_of_a_text_does_too_without_its_look_at_the_ids():
    plan = Plan(net=TextEncoder(layers=1, width=8, heads=2, at=0, vocabulary=30))
    assert exported(plan, Task((6,), 2, vocabulary=30)) == {"works": True, "largest difference": 0.0, "nodes": 9}


def test_a_head_that_fits_no_program_is_said_to(monkeypatch):
    def refuse(*args):
        raise RuntimeError("decides by its data\nand more")

    monkeypatch.setattr(torch.export, "export", refuse)
    assert exported(tiny_plan(), TASK) == {"works": False, "why": "RuntimeError: decides by its data"}


@pytest.mark.parametrize("value", [0.0, -1.0, inf, nan])
@pytest.mark.parametrize("name", ["gflops", "watts", "nanojoules"])
def test_a_core_that_is_none_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} of a core is a number above 0, and finite; got {value}"):
        Core(**{name: value})


# ------------------------------------------------------------------ the table of schemes
IT = Quantities(devices=4, batch=10, steps=5, cut=100.0, weights=1000.0, share=0.2, work=0.3, rho=0.1)


def test_the_table_of_the_thesis_row_by_row():
    """Table 2.1 times 1/k: 2kBq = 10,000 bytes, |W| = 1,000, beta 0.2."""
    by_hand = {
        "FL": 2 * 1000, "SL": 10000 + 200, "SplitFed": 10000 + 400, "AdaSplit": 10000, "PSL": 10000,
        "FSL": 10000 + 1600, "SL + compression": 1.1 * 5000 + 200,
    }  # fmt: skip
    assert {name: cost.bytes * 5 for name, cost in costs(IT).items()} == pytest.approx(by_hand)
    assert costs(IT)["FL"][1:] == (1.0, 0.0) and costs(IT)["SL"][1:] == pytest.approx((0.3, 0.7))
    assert costs(IT)["AdaSplit"].server == pytest.approx(0.7 / 5), "its server learns once a round"


def test_more_steps_between_merges_pay_for_weights_alone():
    one, many = costs(IT._replace(steps=1)), costs(IT._replace(steps=50))
    assert many["FL"].bytes == pytest.approx(one["FL"].bytes / 50)
    assert many["PSL"].bytes == pytest.approx(one["PSL"].bytes)


def test_the_letters_of_a_plan():
    plan = tiny_plan(batch_size=8, clients=3)
    it, cut = quantities(plan, TASK), cut_shapes(plan, TASK)
    assert (it.devices, it.batch, it.cut, it.rho) == (3, 8, 4 * prod(cut.z), 1.0)
    assert 0 < it.share < 1 and 0 < it.work < 1
    assert quantities(tiny_plan(guard=LFQ(bits=3)), TASK).rho == pytest.approx(27 / 8 / it.cut)


@pytest.mark.parametrize("protocol", [Federated(), Alone()], ids=str)
def test_schemes_are_not_compared_where_the_client_has_the_whole_network(protocol):
    with pytest.raises(ValueError, match="has none: take protocol=UShaped"):
        quantities(tiny_plan(protocol=protocol), TASK)


@pytest.mark.parametrize(
    ("guard", "rho"),
    [
        (Quantize(bits=4), 4 / 32 + 2 / 100),
        (TopK(share=0.05), 5 * (32 + 13) / 3200),
        (BF16(), 0.5),
        (KAnonymous(k=4), 0.25),
    ],
    ids=str,
)
def test_the_paper_counts_what_a_guard_saves_on_the_wire_not_its_numbers(guard, rho):
    """Four bits and two ends of a row of 100; five values and 13 bits for each place; two bytes; a row for four."""
    assert quantities(tiny_plan(batch_size=64, guard=guard), TASK).rho == pytest.approx(rho, rel=0.1)


@pytest.mark.parametrize("guard", [NoGuard(), WCC(weight=0.1), Gaussian(scale=0.1)], ids=str)
def test_on_paper_a_guard_that_compresses_nothing_takes_all_of_its_floats(guard):
    assert quantities(tiny_plan(guard=guard), TASK).rho == 1.0


@pytest.mark.parametrize(("command", "file"), [("edge", "edge.json"), ("costs", "costs.json")])
def test_both_can_be_typed(command, file, tmp_path):
    typed = f"{command} --data Digits(limit=200) --net LeNet --batch-size 4 --out".split()
    done = CliRunner().invoke(app, [*typed, str(tmp_path / "a")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a" / file).exists()
    written = json.loads((tmp_path / "a" / file).read_text())
    assert "LeNet" in written["plan"] and (command == "edge" or set(written["schemes"]) == set(SCHEMES))


def test_a_number_of_steps_that_is_typed_twice_is_one_column(tmp_path):
    typed = [f"--steps={steps}" for steps in (5, 1, 5)]
    typed += ["--data", "Digits(limit=200)", "--net", "LeNet", "--out", str(tmp_path / "a")]
    done = CliRunner().invoke(app, ["costs", *typed], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    schemes = json.loads((tmp_path / "a" / "costs.json").read_text())["schemes"]
    assert all([row["steps"] for row in rows] == [5, 1] for rows in schemes.values())
