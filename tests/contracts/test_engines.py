"""Laws of every engine: four methods carry any plan, and whoever carries it, the same numbers come out."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from crews_here import CrewsHere
from rehearsal import Rehearsal, close_all
from toys import TASK, tiny_parts, tiny_plan

import cutlayer.engines
from cutlayer.core.message import Kind
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.ray.carrier import RayCarrier
from cutlayer.engines.ray.fleet import fleet_of
from cutlayer.training import loop
from cutlayer.training.loop import Carrier
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.schedule import Relay, SplitFed, Turn, Wave

CLIENTS = 3
PLANS = {
    "relay": {"client_optimizer": Adam()},
    "relay, ahead": {"rounds": Relay(ahead=1), "local_steps": 0},
    "own heads": {"shared_client_network": False},
    "SplitFed 1": {"rounds": SplitFed()},
    "SplitFed 2": {"rounds": SplitFed(version=2)},
    "wave": {"rounds": Wave()},
    "fused wave": {"rounds": Wave(fused=True), "net": tiny_plan().net.__class__(norm="group")},
}


@contextmanager
def local(plan, folder):
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    yield run.coordinator, run.carrier


@contextmanager
def grpc(plan, folder):
    rehearsal = Rehearsal(plan, folder)
    for name in rehearsal.names:
        rehearsal.join(name)
    server = rehearsal.service._open(lambda names: None, "cpu")
    server.recovery.restore_newest()
    server.recovery.meet_if_needed()
    try:
        yield server.coordinator, server.carrier
    finally:
        close_all()


@contextmanager
def ray(plan, folder):
    """Crews in this process; tests/audit/test_on_ray.py has them as actors."""
    coordinator, setup = fleet_of(LocalRun(plan, tiny_parts(), classes=TASK.classes))
    yield coordinator, RayCarrier(coordinator, CrewsHere(setup))


ENGINES = {"local": local, "grpc": grpc, "ray": ray}
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def plans(*always):
    """Those named here in every run, the others in a campaign."""
    made = {name: tiny_plan(batch_size=6, clients=CLIENTS, epochs=2, **fields) for name, fields in PLANS.items()}
    marks = {name: () if name in always else pytest.mark.campaign for name in made}
    return pytest.mark.parametrize("plan", [pytest.param(made[name], marks=marks[name], id=name) for name in made])


every_plan, some_plans = plans(*PLANS), plans("own heads", "SplitFed 1")


def test_every_engine_is_here():
    folder = Path(cutlayer.engines.__file__).parent
    assert sorted(ENGINES) == sorted(one.parent.name for one in folder.glob("*/__init__.py"))


@every_engine
def test_an_engine_is_four_methods(engine, tmp_path):
    with engine(tiny_plan(clients=CLIENTS), tmp_path) as (_, carrier):
        wanted = {name for name in vars(Carrier) if not name.startswith("_")}
        assert wanted == {"ask_all", "evaluate", "keep", "rewind"}
        assert all(callable(getattr(carrier, name)) for name in wanted)


@some_plans
@every_engine
def test_answers_come_in_the_order_of_the_turns_and_everything_is_counted(engine, plan, tmp_path):
    with engine(plan, tmp_path) as (coordinator, carrier):
        if coordinator.lacks_weights:
            coordinator.start_from(next(iter(carrier.ask_all([Turn(0, 0, 0)]))))
        turns = coordinator.timetable.rounds(0)[0]
        coordinator.open_round(turns)
        before, messages = list(coordinator.progress.taken), dict(coordinator.ledger.messages)
        answers = list(carrier.ask_all(turns))
        assert [done.client for done in answers] == [turn.client for turn in turns]
        assert all(int(done["samples"]) > 0 for done in answers)
        taken = [now - then for now, then in zip(coordinator.progress.taken, before, strict=True)]
        assert taken == [
            sum(turn.last - turn.first for turn in turns if turn.client == one) for one in range(CLIENTS)
        ]
        assert coordinator.progress.step == sum(taken)
        kind = Kind.WEIGHTS if coordinator.relays else Kind.TURN
        for way in ("up", "down"):
            assert coordinator.ledger.messages[kind.name, way] - messages.get((kind.name, way), 0) == len(turns)


@every_engine
def test_an_order_without_batches_brings_weights_and_makes_no_step(engine, tmp_path):
    with engine(tiny_plan(clients=CLIENTS, rounds=SplitFed()), tmp_path) as (coordinator, carrier):
        (brought,) = carrier.ask_all([Turn(1, 0, 0)])
        assert brought.client == 1 and int(brought["samples"]) == 0
        assert any(name.startswith("net.") for name in brought.tensors)
        assert coordinator.progress.step == 0 and coordinator.progress.taken == [0] * CLIENTS
        assert coordinator.rejected == []


@some_plans
@every_engine
def test_an_evaluation_is_one_number_a_network_and_changes_nothing(engine, plan, tmp_path):
    with engine(plan, tmp_path) as (coordinator, carrier):
        stopped = iter([False, True])
        assert not loop.train(coordinator, carrier, stop=lambda: next(stopped))
        before, found = coordinator.tensors(), carrier.evaluate("test")
        assert len(found) == (1 if plan.shared_client_network else CLIENTS)
        assert all(0 <= one <= 1 for one in found) and carrier.evaluate("test") == found
        assert same(coordinator.tensors(), before)


@some_plans
@every_engine
def test_what_was_kept_is_gone_back_to(engine, plan, tmp_path):
    """The rounds after it come out the same again, bit for bit, heads and bodies."""
    with engine(plan, tmp_path) as (coordinator, carrier):

        def two_rounds():
            stopped = iter([False, False, True])
            assert not loop.train(coordinator, carrier, stop=lambda: next(stopped))

        two_rounds()
        tensors, facts = coordinator.snapshot(carrier.keep(7))
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        two_rounds()
        once, accuracy = coordinator.tensors(), carrier.evaluate("test")
        coordinator.restore(tensors, facts)
        for client in range(CLIENTS):
            coordinator.server.forget(client)
        carrier.rewind(7, tensors)
        assert coordinator.progress.step == facts["step"]
        two_rounds()
        assert same(coordinator.tensors(), once) and carrier.evaluate("test") == accuracy


@every_plan
def test_whoever_carries_it_the_same_comes_out(plan, tmp_path):
    found = {}
    for name, engine in ENGINES.items():
        with engine(plan, tmp_path / name) as (coordinator, carrier):
            assert loop.train(coordinator, carrier)
            history = [{key: row[key] for key in ("epoch", "step", "val")} for row in coordinator.progress.history]
            found[name] = coordinator.tensors(), history, carrier.evaluate("test")
    first, *others = found.values()
    for one in others:
        assert same(one[0], first[0]) and one[1:] == first[1:]


@every_engine
def test_steps_are_told_as_they_are_made(engine, tmp_path):
    with engine(tiny_plan(clients=CLIENTS, batch_size=6, epochs=1), tmp_path) as (coordinator, carrier):
        told, rounds, epochs = [], [], []
        assert loop.train(
            coordinator,
            carrier,
            on_step=lambda event: told.append((event.step, event.steps)),
            on_round=lambda: rounds.append(coordinator.progress.round),
            on_epoch=lambda: epochs.append(coordinator.progress.epoch),
        )
        steps = coordinator.timetable.steps
        assert told == [(number + 1, steps) for number in range(steps)]
        assert rounds == [number + 1 for number in range(len(coordinator.timetable.rounds(0)))] and epochs == [1]


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
