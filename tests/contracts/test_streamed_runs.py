"""A run from pictures on disk is the run from the same pictures in memory, bit for bit: whatever the schedule, the
partition and the engine, and where it is resumed."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from crews_here import CrewsHere
from PIL import Image
from rehearsal import Rehearsal, close_all
from toys import TinyNet, tiny_plan

from cutlayer.data import BadNets, Dirichlet, ImageFolder, Labels, parts
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.data.rows import Rows
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.ray.carrier import RayCarrier
from cutlayer.engines.ray.fleet import fleet_of
from cutlayer.guards import Noise
from cutlayer.training import loop
from cutlayer.training.plan.roles import Frozen, SendOnce
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import Vanilla

SIDE, EACH, CLASSES = 12, 24, 3
PLANS = {
    "relay, micro-batches": {"micro_batches": 2},
    "own heads, Dirichlet": {"shared_client_network": False, "partition": Dirichlet(alpha=1.0)},
    "SplitFed, labels": {"rounds": SplitFed(), "partition": Labels(m=2)},
    "wave, poison": {"rounds": Wave(), "poison": BadNets(clients=1)},
    "fused wave": {"rounds": Wave(fused=True), "net": TinyNet(norm="group")},
    "vanilla, noise": {"protocol": Vanilla(), "guard": Noise(scale=0.1)},
    "frozen": {"roles": Frozen(share=0.4), "protocol": Vanilla()},
    "sent once": {"roles": SendOnce(split=1), "epochs": 3},
    "relay, ahead": {"rounds": Relay(ahead=1), "local_steps": 0},
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """One folder, in memory and on disk with room for a dozen of its images."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    for name in "abc":
        (root / name).mkdir()
        for number in range(EACH):
            pixels = random.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        whole = ImageFolder(str(root)).load()
        patch.setenv(MEMORY, str(12 * SIDE * SIDE))
        patch.setenv(DECODERS, "0")
        disk = ImageFolder(str(root)).load()
    assert isinstance(disk.train.x, Rows) and not isinstance(whole.train.x, Rows)
    return whole, disk


def plan(**fields):
    return tiny_plan(**{"batch_size": 6, "clients": 3, "epochs": 2, "val_share": 0.2, "aux_samples": 6, **fields})


def cut_up(loaded, of):
    return parts(loaded, aux=of.aux_samples, val=of.val_share, seed=of.seed)


def trained(run):
    assert run.train()
    return run.tensors(), run.progress.history[-1]["val"], run.evaluate(run.parts.test)


def same(one, other):
    assert one[0].keys() == other[0].keys() and all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    assert one[1:] == other[1:]


ALWAYS = ("relay, micro-batches", "relay, ahead", "SplitFed, labels", "wave, poison")  # the others are a campaign
CASES = [
    pytest.param(fields, marks=() if name in ALWAYS else pytest.mark.campaign, id=name)
    for name, fields in PLANS.items()
]


@pytest.mark.parametrize("fields", CASES)
def test_every_schedule_learns_the_same_from_disk(sets, fields):
    of = plan(**fields)
    same(*(trained(LocalRun(of, cut_up(loaded, of), classes=CLASSES)) for loaded in sets))


def test_a_run_from_disk_goes_on_where_one_from_memory_stopped(sets):
    of = plan()
    undisturbed = trained(LocalRun(of, cut_up(sets[0], of), classes=CLASSES))
    begun = LocalRun(of, cut_up(sets[0], of), classes=CLASSES)
    stops = iter([False] * 5 + [True])
    assert not begun.train(stop=lambda: next(stops))
    tensors, facts = begun.snapshot()
    resumed = LocalRun(of, cut_up(sets[1], of), classes=CLASSES)
    resumed.restore(tensors, facts)
    same(trained(resumed), undisturbed)


@contextmanager
def grpc(of, data, folder):
    rehearsal = Rehearsal(of, folder, parts=data)
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
def ray(of, data, folder):
    coordinator, setup = fleet_of(LocalRun(of, data, classes=CLASSES))
    yield coordinator, RayCarrier(coordinator, CrewsHere(setup))


@pytest.mark.parametrize("engine", [grpc, ray], ids=["grpc", "ray"])
def test_every_engine_learns_the_same_from_disk(sets, engine, tmp_path):
    of = plan(rounds=SplitFed())
    whole = LocalRun(of, cut_up(sets[0], of), classes=CLASSES)
    trained(whole)
    with engine(of, cut_up(sets[1], of), tmp_path) as (coordinator, carrier):
        assert loop.train(coordinator, carrier)
        found = coordinator.tensors()
        assert coordinator.progress.history[-1]["val"] == whole.progress.history[-1]["val"]
        wanted = whole.coordinator.tensors()
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
