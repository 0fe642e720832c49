"""Crews without a cluster: whichever call they are lost with, the same comes out; clients leave nothing in them."""

from itertools import count

import pytest
import torch
from crews_here import CrewsHere
from masked import TEXTS, MaskedNet, text_parts
from toys import TASK, LinearNet, tiny_parts, tiny_plan

from cutlayer.core.compressor import Compression
from cutlayer.core.errors import ProtocolError
from cutlayer.engines.local.asleep import Asleep, Layout
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.ray import carrier as carrying
from cutlayer.engines.ray import crew as crewing
from cutlayer.engines.ray.carrier import LostCrew, RayCarrier
from cutlayer.engines.ray.crew import NEW, Crew
from cutlayer.engines.ray.fleet import fleet_of
from cutlayer.engines.ray.shelf import Shelf
from cutlayer.guards import LFQ, Gate, LightSplit, Noise, Quantize
from cutlayer.nets.lora import LoRA
from cutlayer.nets.text_encoder import TextEncoder
from cutlayer.rules import Scaffold
from cutlayer.training import loop
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.roles import Frozen, SendOnce
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import Federated, Vanilla

PLAIN = SGD(lr=0.1, momentum=0.0)
HALF = Compression(answers=Quantize(bits=8), gradients=Quantize(bits=8))
GATE, HOME_GATE = (Gate(numbers=6, bits=2, budget=2000, hidden=8, home=home) for home in (0.0, 1.0))
DEPTHS = TextEncoder(layers=3, width=8, at=(1, 2), vocabulary=TEXTS.vocabulary)
GROUP = tiny_plan().net.__class__(norm="group")
PLANS = {
    "relay": {"client_optimizer": Adam()},
    "one client": {"clients": 1},
    "own heads": {"shared_client_network": False, "client_optimizer": SGD(lr=0.1, momentum=0.5)},
    "SplitFed 1": {"rounds": SplitFed(), "local_steps": 2, "client_optimizer": Adam()},
    "SplitFed 2": {"rounds": SplitFed(version=2), "local_steps": 1, "clients_per_round": 2},
    "Scaffold": {
        "rounds": SplitFed(version=2, fresh=True),
        "rule": Scaffold(),
        "client_optimizer": SGD(lr=0.1, momentum=0.0),
    },
    "wave": {"rounds": Wave()},
    "fused wave": {"rounds": Wave(fused=True), "net": GROUP},
    "frozen": {"rounds": SplitFed(), "roles": Frozen(share=0.5)},
    "micro-batches": {"micro_batches": 2},
    "ahead": {"rounds": Relay(ahead=1), "local_steps": 2, "guard": Noise(scale=0.1)},
    "federated": {"protocol": Federated(), "rounds": SplitFed()},
    "labels travel": {"protocol": Vanilla(), "guard": LightSplit(ratio=4), "compression": HALF},
    "learnt lift": {"guard": LFQ(groups=2, bits=3, levels="learned"), "rounds": SplitFed(version=2)},
    "wave of noise": {"guard": Noise(scale=0.1), "rounds": Wave(weights="even"), "protocol": Vanilla()},
    "sent once": {"guard": HOME_GATE, "roles": SendOnce(home=1, split=1), "epochs": 4},
    "sent once, vanilla": {"guard": GATE, "roles": SendOnce(split=1), "epochs": 4, "protocol": Vanilla()},
    "sent once, wave": {"guard": GATE, "roles": SendOnce(split=1), "epochs": 4, "rounds": Wave()},
    "gate": {"guard": GATE, "rounds": SplitFed()},
    "adapters": {"net": LinearNet(), "adapters": LoRA(rank=2, at="query"), "rounds": SplitFed()},
    "unequal ranks": {"net": LinearNet(), "adapters": LoRA(rank=(1, 3), at="query"), "rounds": SplitFed()},
    "padded texts": {"net": MaskedNet(), "rounds": SplitFed(version=2)},
    "unequal depths": {"net": DEPTHS, "shared_client_network": False},
    "padded texts, wave": {"net": MaskedNet(), "rounds": Wave(fused=True), "protocol": Vanilla()},
}
SELDOM = ("unequal depths", "sent once, vanilla", "sent once, wave", "gate", "adapters", "padded texts, wave")
each_plan = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.campaign if name in SELDOM else ()) for name in PLANS]
)


def plan_of(name, **more):
    return tiny_plan(**{"batch_size": 6, "clients": 3, "epochs": 2, **PLANS[name], **more})


def here(plan):
    """The same in one process, about to begin."""
    parts = text_parts() if isinstance(plan.net, MaskedNet | TextEncoder) else tiny_parts()
    return LocalRun(plan, parts, classes=TASK.classes)


# What only the engine that sees the clients is told.
FACTS_OF_ONE_PROCESS = ("seconds", "val_loss")


def carried(plan, lost=(), crews=2):
    run = here(plan)
    coordinator, setup = fleet_of(run)
    made = CrewsHere(setup, crews, lost)
    return coordinator, RayCarrier(coordinator, made), made


def told(coordinator, carrier):
    rows = [
        {name: value for name, value in row.items() if name not in FACTS_OF_ONE_PROCESS}
        for row in coordinator.progress.history
    ]
    return coordinator.tensors(), (rows, coordinator.ledger.as_dict(), carrier.evaluate("test"))


def same(ours, theirs):
    equal = ours[0].keys() == theirs[0].keys() and all(torch.equal(ours[0][n], theirs[0][n]) for n in ours[0])
    return equal and ours[1] == theirs[1]


@pytest.fixture(scope="module")
def in_one_process():
    made = {}

    def found(name):
        if name not in made:
            run = here(plan_of(name))
            assert loop.train(run.coordinator, run.carrier)
            made[name] = told(run.coordinator, run.carrier)
        return made[name]

    return found


@pytest.mark.one_in(3)
@each_plan
def test_crews_give_weights_history_and_bytes_of_one_process(name, in_one_process, monkeypatch):
    monkeypatch.setattr(crewing, "AWAKE", 1)  # each client finds another's network there, or none
    monkeypatch.setattr(carrying, "AWAKE", 1)
    coordinator, carrier, _ = carried(plan_of(name))
    assert loop.train(coordinator, carrier)
    assert same(told(coordinator, carrier), in_one_process(name))


@pytest.mark.one_in(3)
@each_plan
def test_whichever_calls_are_lost_the_same_comes_out(name, in_one_process):
    coordinator, carrier, crews = carried(plan_of(name))
    assert loop.train(coordinator, carrier)
    calls = next(crews.calls)
    for lost in (range(0, calls, 7), [calls // 2, calls // 2 + 1]):
        coordinator, carrier, _ = carried(plan_of(name), lost)
        assert loop.train(coordinator, carrier)
        assert same(told(coordinator, carrier), in_one_process(name))


def test_who_is_lost_again_and_again_ends_the_run():
    coordinator, carrier, _ = carried(plan_of("relay"), range(1, 99))
    with pytest.raises(RuntimeError, match="crews were lost with it, one after the other"):
        loop.train(coordinator, carrier)


def test_a_turn_too_long_to_keep_goes_back_to_the_last_snapshot(monkeypatch):
    monkeypatch.setattr(carrying, "MOST_KEPT", 100)
    coordinator, carrier, _ = carried(plan_of("relay"), [4])
    with pytest.raises(LostCrew):
        loop.train(coordinator, carrier)


def test_a_client_that_says_something_else_when_it_begins_anew_is_refused(monkeypatch):
    coordinator, carrier, _ = carried(plan_of("relay"), [1])
    begin, calls = Crew.begin, count()

    def other_secrets(crew, orders):
        if next(calls) == 1:  # the second time
            crew._setup = crew._setup._replace(plan=plan_of("relay", private_seed=99))
        return begin(crew, orders)

    monkeypatch.setattr(Crew, "begin", other_secrets)
    with pytest.raises(ProtocolError, match="it says something else"):
        loop.train(coordinator, carrier)


def test_an_error_of_a_client_is_the_run_s(monkeypatch):
    def fails(self, order):
        raise ArithmeticError(f"no numbers for {order}")

    monkeypatch.setattr("cutlayer.engines.local.pool.PooledClient.handle", fails)
    coordinator, carrier, _ = carried(plan_of("relay"))
    with pytest.raises(ArithmeticError, match="no numbers for"):
        loop.train(coordinator, carrier)


def test_a_crew_that_is_given_other_orders_leaves_those_it_was_at():
    coordinator, carrier, crews = carried(plan_of("relay"), crews=1)
    turn = coordinator.timetable.rounds(0)[0][0]
    coordinator.open_round([turn])
    at = carrier._given([coordinator.order(turn)], [0], learns=True)
    carrier._begin(at)
    assert crews.said(at.ticket).asks
    carrier._begin(at)
    assert crews.said(at.ticket).asks, "as if nothing had been"


# --------------------------------------------------------------------------------------------- shelf
def test_what_lies_on_a_shelf_comes_back_and_a_newer_state_takes_its_place():
    shelf, layout = Shelf(), Layout()
    states = {n: {"net.w": torch.randn(n + 1), "opt.n": torch.tensor(n)} for n in (5, 2, 9)}
    for number, (client, state) in enumerate(states.items()):
        shelf.put(client, number + 1, Asleep.of(state, layout))
    for client, more in ((2, 40), (5, 1)):  # a larger one, and a smaller one
        states[client] = {"net.w": torch.randn(more)}
        shelf.put(client, 70 + client, Asleep.of(states[client], layout))
    assert list(shelf) == [2, 5, 9] and [shelf.stamp(n) for n in (2, 5, 9, 1)] == [72, 75, 3, NEW]
    for client, state in states.items():
        found = shelf.get(client).state(torch.device("cpu"))
        assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    shelf.clear()
    assert shelf.get(9) is None and list(shelf) == []
