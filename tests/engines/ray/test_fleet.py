"""Fleets on a real Ray of this machine: whatever is killed, the folder holds the run of one process."""

import json
import os
import signal
import threading
import time

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.errors import NonFinite
from cutlayer.engines import cluster
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.ray import fleet
from cutlayer.engines.ray.fleet import Fleet
from cutlayer.guards import WCC
from cutlayer.training import loop
from cutlayer.training.plan.schedule import SplitFed

ray = pytest.importorskip("ray")


def runs(**more):
    plan = tiny_plan(**{"batch_size": 4, "clients": 4, "epochs": 6, "rounds": SplitFed(), "local_steps": 1, **more})
    return [LocalRun(plan, tiny_parts(), classes=TASK.classes) for _ in range(2)]


def equal(ours, theirs):
    one, other = ours.tensors(), theirs.tensors()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def here():
    with cluster.connected("local", 4) as found:
        yield found


@pytest.mark.campaign
@pytest.mark.parametrize("who", ["crew", "server", "both"])
def test_whoever_is_killed_the_same_comes_out(here, who, monkeypatch):
    """Again and again, all the way."""
    monkeypatch.setattr(fleet, "TELL", 0.1)
    theirs, ours = runs()
    loop.train(theirs.coordinator, theirs.carrier)
    killed, over = [], threading.Event()

    def killing(server, crews):
        victims = {"crew": [crews[0]], "server": [server], "both": [crews[1], server]}[who]

        def work():
            for round_ in range(3):
                for victim in victims:
                    if over.wait(1.5 + round_):
                        return
                    try:
                        pid = here.get(victim.pid.remote(), timeout=30)
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                    except (here.exceptions.RayError, ProcessLookupError):
                        continue

        threading.Thread(target=work, daemon=True).start()

    assert fleet.train(ours, Fleet(crews=2), on_start=killing, on_step=lambda event: time.sleep(0.05))
    over.set()
    assert equal(ours, theirs) and ours.progress.history[-1]["val"] == theirs.progress.history[-1]["val"]
    assert killed, "or it proves nothing"


@pytest.mark.campaign
def test_a_node_that_goes_takes_nothing_along():
    """A second node of this machine, with the crews on it."""
    from ray.cluster_utils import Cluster

    theirs, ours = runs(epochs=12)
    loop.train(theirs.coordinator, theirs.carrier)
    ray.shutdown()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    second = nodes.add_node(num_cpus=2)
    ray.init(address=nodes.address, log_to_driver=False)
    gone, begun = [], threading.Event()

    def going(server, crews):
        def work():
            ray.get([crew.pid.remote() for crew in crews])
            begun.wait(60)
            nodes.remove_node(second, allow_graceful=False)
            gone.append(second)

        threading.Thread(target=work, daemon=True).start()

    def stepped(event):
        if event.step:
            begun.set()

    try:
        assert fleet.train(ours, Fleet(crews=2), on_start=going, on_step=stepped)
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert gone and equal(ours, theirs)


@pytest.mark.campaign
def test_the_command_and_its_folder(command, tmp_path):
    words = [
        "train",
        "--data",
        "Digits(limit=300)",
        "--clients",
        "5",
        "--rounds",
        "SplitFed(version=2)",
        "--epochs",
        "2",
    ]
    words += ["--private-seed", "1", "--threads", "1", "--json"]
    one = command(*words, "--out", tmp_path / "one")
    two = command(*words, "--engine", "ray", "--crews", "2", "--out", tmp_path / "two")
    assert one[0] == two[0] == 0, two[2]
    told = [json.loads(found[1]) for found in (one, two)]
    for name in ("accuracy", "ledger", "clients", "steps", "bytes_up"):
        assert told[0][name] == told[1][name]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1]


@pytest.mark.campaign
def test_a_training_that_loses_its_numbers_says_so(here):
    _, ours = runs(guard=WCC(weight=1e38), rounds=tiny_plan().rounds)
    with pytest.raises(NonFinite, match="WCC"):
        fleet.train(ours, Fleet(crews=1))


EITHER = "leave out either them or --engine ray"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--engine", "spark"], "--engine is local (this process) or ray; got 'spark'"),
        (["--crews", "2"], "--cluster and --crews belong to --engine ray"),
        (["--engine", "ray", "--crews", "0"], "--crews is at least 1; got 0"),
        (["--engine", "ray", "--record", "1"], f"--record and --link listen to a server in this process: {EITHER}"),
        (["--engine", "ray", "--precision", "bf16"], f"bf16: faster ways are those of one process: {EITHER}"),
        (["--engine", "ray", "--cluster", "127.0.0.1:9"], "no cluster answers at 127.0.0.1:9"),
    ],
)
def test_a_mistake_is_answered_in_a_sentence(command, monkeypatch, tmp_path, words, why):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("train", "--data", "Digits(limit=100)", "--threads", "1", *words)
    assert code == 1 and err.startswith(f"error: {why}") and len(err.splitlines()) == 1
