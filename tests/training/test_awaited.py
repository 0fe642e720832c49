"""Figures that come over from a device while the next step is launched: the same ones, and lost numbers are found."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.errors import NonFinite
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, Chain, LightSplit, NoGuard, Prism
from cutlayer.training import awaited, progress, step
from cutlayer.training.awaited import Awaited
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.progress import Progress
from cutlayer.training.protocols import UShaped, Vanilla

ON_A_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture
def far(monkeypatch):
    """Every tensor lies on a device, so to speak."""
    for module in (awaited, progress, step):
        monkeypatch.setattr(module, "is_far", lambda found: isinstance(found, torch.Tensor))


def trained(plan, told=None):
    run = LocalRun(plan.with_secrets(), tiny_parts(), classes=TASK.classes)
    run.train(on_step=lambda event: told.append((event.step, dict(event.terms))) if told is not None else None)
    return run


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
@pytest.mark.parametrize("guard", [NoGuard(), Prism(keep=0.5), Chain(LightSplit(ratio=2), WCC(weight=0.1))], ids=repr)
@pytest.mark.parametrize("local_steps", [0, 1, 3])
def test_what_is_read_late_is_what_is_read_at_once(protocol, guard, local_steps, request):
    changes = {"clients": 2, "epochs": 2, "batch_size": 4}
    plan = tiny_plan(protocol=protocol, guard=guard, local_steps=local_steps, **changes)
    at_once, late = [], []
    plain = trained(plan, at_once)
    request.getfixturevalue("far")
    other = trained(plan, late)
    assert late == at_once and at_once
    assert other.progress.row() | {"seconds": 0} == plain.progress.row() | {"seconds": 0}
    assert other.progress.peaks() == plain.progress.peaks()
    assert all(torch.equal(t, other.snapshot()[0][name]) for name, t in plain.snapshot()[0].items())


def test_nobody_looks_before_the_next_step_was_made(far, monkeypatch):
    run = LocalRun(tiny_plan(batch_size=4, local_steps=0).with_secrets(), tiny_parts(), classes=TASK.classes)
    client, stood, read = run.clients[0], [], []
    finish = step.read_late
    monkeypatch.setattr(step, "read_late", lambda *given: (read.append(client.network.steps), finish(*given))[1])
    run.progress.on_step = lambda step, terms: stood.append((step, client.network.steps))
    client.learn(0, 0, 4)
    assert stood == [(1, 2), (2, 3), (3, 4)]
    assert read == [2, 3, 4], "a device was waited for before it had more to do"
    run.progress.catch_up()
    assert stood[3:] == [(4, 4)]


@pytest.mark.parametrize("place", [0, 5, 11])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
def test_weights_on_a_device_are_looked_at_together_and_the_first_that_is_lost_is_named(far, device, value, place):
    told = Progress(1)
    sound = {"counts": torch.arange(3), "empty": torch.zeros(0), "largest": torch.full((2,), 3e38)}
    there = {name: tensor.to(device) for name, tensor in sound.items()}
    told.refuse_lost_weights(there.items())
    spoilt, half = torch.ones(3, 4, device=device), torch.ones(2, device=device, dtype=torch.float16)
    spoilt.view(-1)[place] = value
    with pytest.raises(NonFinite, match=r"\(spoilt\)"):
        told.refuse_lost_weights({**there, "half": half, "spoilt": spoilt, "after": spoilt}.items())


@pytest.mark.parametrize("clients", [1, 2])
def test_nor_where_a_turn_is_a_single_step(far, clients):
    """Whoever makes the next step: what is awaited of one client is looked at during the turn of another."""
    run = LocalRun(
        tiny_plan(clients=clients, batch_size=4, local_steps=1).with_secrets(), tiny_parts(), classes=TASK.classes
    )
    looked = []
    run.progress.on_step = lambda step, terms: looked.append((step, sum(one.steps for one in run.networks)))
    for turns in run.timetable.rounds(0)[:3]:
        run.take(turns)
    assert looked == [(1, 2), (2, 3)]


def test_a_run_that_is_stopped_has_looked_at_all_it_did(far):
    told, run = [], LocalRun(tiny_plan(batch_size=4).with_secrets(), tiny_parts(), classes=TASK.classes)
    assert not run.train(on_step=lambda event: told.append(event.step), stop=lambda: run.progress.step == 3)
    assert told == [1, 2, 3]


@pytest.mark.usefixtures("far")
def test_lost_numbers_are_found_a_step_late_and_called_by_their_step():
    plan = tiny_plan(batch_size=4, local_steps=0, epochs=3, client_optimizer=SGD(lr=1e30))
    with pytest.raises(NonFinite) as late:
        trained(plan)
    with pytest.MonkeyPatch.context() as patch:
        for module in (awaited, step):
            patch.setattr(module, "is_far", lambda found: False)
        with pytest.raises(NonFinite) as at_once:
            trained(plan)
    assert str(late.value) == str(at_once.value)


@pytest.mark.usefixtures("far")
def test_where_a_client_may_be_left_out_its_numbers_are_looked_at_before_the_server_learns(monkeypatch):
    monkeypatch.setattr(Awaited, "of", lambda *given: pytest.fail("read late"))
    trained(tiny_plan(clients=2, batch_size=4, rounds=SplitFed()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_figures_come_over_from_a_gpu():
    ones = torch.arange(3, device="cuda").double()
    assert dict(Awaited("abc", ones, lambda read: read)) == {"a": 0.0, "b": 1.0, "c": 2.0}
    assert dict(Awaited.of({"a": ones[2], "b": 5.0}, lambda read: read)) == {"a": 2.0, "b": 5.0}
