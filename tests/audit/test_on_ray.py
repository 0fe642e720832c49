"""Cells on a Ray of this machine, one for all tests here: what is lost is made again, what is wrong is said first."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from toys import TASK, tiny_parts, tiny_plan

ray = pytest.importorskip("ray")

from test_compare import QUICK  # noqa: E402
from test_compare import without_times as without_history  # noqa: E402
from test_parallel import add, die, die_at_first, fail, spread_here, wanted, without_times  # noqa: E402

from cutlayer.audit.jobs import Job, Result, run  # noqa: E402
from cutlayer.audit.on_ray import on_ray  # noqa: E402
from cutlayer.audit.parallel import Where, spread, workers  # noqa: E402
from cutlayer.audit.spec import Resources  # noqa: E402
from cutlayer.engines import cluster  # noqa: E402
from cutlayer.engines.local.run import LocalRun  # noqa: E402
from cutlayer.engines.parcel import parcel  # noqa: E402
from cutlayer.engines.ray.actors import ActorCrews, crew_actors  # noqa: E402
from cutlayer.engines.ray.carrier import RayCarrier  # noqa: E402
from cutlayer.engines.ray.fleet import fleet_of  # noqa: E402
from cutlayer.training import loop  # noqa: E402
from cutlayer.training.plan.schedule import SplitFed  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # Ray's workers would wait for all other tests
        with cluster.connected("local", 2) as found:
            yield found


@pytest.mark.campaign
def test_only_this_machine_can_reach_it_and_nobody_is_told(here):
    assert [node["NodeManagerAddress"] for node in here.nodes()] == ["127.0.0.1"]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.campaign
def test_what_is_lost_is_computed_again_and_errors_are_not(here, tmp_path):
    (tmp_path / "once").mkdir()
    jobs = [
        Job("once", die_at_first, (tmp_path / "once", signal.SIGKILL)),
        Job("error", fail),
        Job("sum", add, (Result("stays"), 1)),
        Job("stays", add, (1,), stays=True),
    ]
    shown = []
    with on_ray(here, parcel(5, "five"), 1, 1.0, 0.0, 2) as placed:
        found = {job.name: made for job, made in run(jobs, placed, shown.append)}
    assert found["once"] == 5 and len(list((tmp_path / "once").iterdir())) == 2
    assert found["sum"] == 12
    assert found["error"].why == "ArithmeticError: no such number"
    assert any("127.0.0.1, process" in one for told in shown for one in told.running)


@pytest.mark.campaign
def test_what_is_lost_again_and_again_says_so(here):
    with on_ray(here, parcel(5, "five"), 1, 1.0, 0.0, 2) as placed:
        ((_, found),) = run([Job("always", die, (signal.SIGKILL,))], placed, lambda shown: None)
    assert "its worker was lost 4 times" in found.why and found.error is None


def test_the_table_is_that_of_one_process(here):
    """Elsewhere it is compared with `audit` itself; jobs of this process come out the same."""
    spec, loaded = wanted(alone=False)
    ours, theirs = Resources(), Resources()
    spread_here(spec, loaded, theirs)
    ours.store.put("0 | floors", theirs.store.get("0 | floors")[0])  # the longest part
    ours.store.put("0 | truth", {}, **theirs.store.get("0 | truth")[1])
    spread(spec, loaded, ours, Where("local", 2, 2), lambda shown: None)
    assert ours.store._found.keys() == theirs.store._found.keys()
    for name, (data, tensors) in ours.store._found.items():
        assert without_times([data]) == without_times([theirs.store.get(name)[0]])
        assert all(bool((t == theirs.store.get(name)[1][key]).all()) for key, t in tensors.items())


def test_a_fleet_of_actors_gives_the_weights_of_one_process(here):
    """One crew is killed on the way; the laws of crews are in tests/engines/ray."""
    plan = tiny_plan(batch_size=6, clients=3, epochs=2, rounds=SplitFed())
    alone, ours = (LocalRun(plan, tiny_parts(), classes=TASK.classes) for _ in range(2))
    assert loop.train(alone.coordinator, alone.carrier)
    coordinator, setup = fleet_of(ours)
    crews = crew_actors(here, 2)
    carrier = RayCarrier(coordinator, ActorCrews(crews, [here.put(parcel(setup, "plan"))]))
    rounds = iter([False, True])
    assert not loop.train(coordinator, carrier, stop=lambda: next(rounds))
    os.kill(here.get(crews[0].pid.remote()), signal.SIGKILL)
    assert loop.train(coordinator, carrier)
    one, other = alone.coordinator.tensors(), coordinator.tensors()
    assert one.keys() == other.keys() and all(bool((t == other[name]).all()) for name, t in one.items())
    for crew in crews:
        here.kill(crew)


@pytest.mark.campaign
def test_the_command_says_the_same_with_a_cluster_and_without(command, tmp_path):
    words = ["compare", *QUICK, "--no-alone", "--with", "rule=FedAvg", "--with", "clients_per_round=2", "--json"]
    one = command(*words, "--out", tmp_path / "one")
    two = command(*words, "--cluster", "local", "--out", tmp_path / "two")
    assert one[0] == two[0] == 0, two[2]
    rows = [without_history(json.loads(found[1])["rows"]) for found in (one, two)]
    assert rows[0] == rows[1]


@pytest.mark.campaign
def test_a_python_error_of_one_variant_leaves_the_others(here, command, tmp_path, monkeypatch):
    from cutlayer.audit.compare import run as room

    monkeypatch.setattr(room, "train_variant", partial(add, 0))  # no such function of these arguments
    code, _, err = command(
        "compare", *QUICK, "--no-alone", "--with", "plan", "--with", "clients_per_round=2", "--cluster", "local",
        "--out", tmp_path / "a",
    )  # fmt: skip
    assert code == 0 and "was lost: it failed: TypeError" in err


# ------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("somewhere", "a cluster is local, auto, or an address such as 10.0.0.1:6379; got 'somewhere'"),
        ("127.0.0.1:9", "no cluster answers at 127.0.0.1:9"),
        ("ray://127.0.0.1:9", "no cluster answers at ray://127.0.0.1:9"),
    ],
)
def test_an_address_where_nothing_is(where, words, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    began = time.monotonic()
    with pytest.raises(ValueError, match="^" + words.replace("(", r"\(")):
        cluster.connected(where).__enter__()
    assert time.monotonic() - began < 10


def test_more_than_there_is(here):
    with pytest.raises(ValueError, match="--device cuda: no node of the cluster has a GPU"):
        workers(Where("local", 2), 1, "one", "cuda").__enter__()
    for options, words in (({"gpus": 99.0}, "99 GPUs were asked for"), ({"cpus": 64.0}, "64 CPUs were asked for")):
        with pytest.raises(ValueError, match=f"{words}, and no node of the cluster has more than"):
            workers(Where("local", 2, **options), 1, "one").__enter__()


def test_versions_that_differ(here, monkeypatch):
    cluster.refuse_other_versions(here)
    other = {**cluster.versions(), "torch": "1.0"}
    monkeypatch.setattr(cluster, "versions", lambda: other)
    with pytest.raises(
        ValueError, match=r"the node 127\.0\.0\.1 has torch .*, and here it is 1\.0: install the same"
    ):
        cluster.refuse_other_versions(here)


# ------------------------------------------------------------------------------------ without a Ray of its own
SLOW = ["--data", "Digits(limit=400)", "--epochs", "1", "--no-alone", "--images", "16", "--threads", "1"]


@pytest.mark.campaign
def test_a_node_that_goes_costs_what_was_in_flight(here):
    """A second node of this machine, which has trained networks in its store when it goes."""
    from ray.cluster_utils import Cluster

    spec, loaded = wanted(seeds=(0, 1), alone=False)
    theirs, ours = Resources(), Resources()
    spread_here(spec, loaded, theirs)
    for seed in (0, 1):
        ours.store.put(f"{seed} | floors", theirs.store.get(f"{seed} | floors")[0])
    ours.store.put("0 | truth", {}, **theirs.store.get("0 | truth")[1])
    here.shutdown()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = nodes.add_node(num_cpus=2)
    here.init(address=nodes.address, log_to_driver=False)
    gone = []

    def show(shown):
        if shown.finished >= 3 and not gone:
            gone.append(second)
            nodes.remove_node(second, allow_graceful=False)

    try:
        spread(spec, loaded, ours, Where("auto"), show)
    finally:
        here.shutdown()
        nodes.shutdown()
    assert gone and ours.store._found.keys() == theirs.store._found.keys()
    for name, (data, _) in ours.store._found.items():
        assert without_times([data]) == without_times([theirs.store.get(name)[0]])


@pytest.mark.campaign
@pytest.mark.parametrize("where", ["local", "processes"])
def test_ctrl_c_leaves_nothing_behind_and_what_is_finished_is_kept(where, tmp_path):
    words = ["audit", *SLOW, "--guard", "LightSplit(ratio={2,4,8,16})", "--attack", "Decoder(steps=2000)"]
    words += ["--cluster", where, "--jobs", "2", "--out", str(tmp_path / "a")]
    at_work = subprocess.Popen([sys.executable, "-m", "cutlayer.cli", *words], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (tmp_path / "a" / "command.json").exists() and time.monotonic() < until:
        time.sleep(0.2)
    below = children(at_work.pid)
    at_work.send_signal(signal.SIGINT)
    _, said = at_work.communicate(timeout=120)
    assert at_work.returncode == 130 and "go on with: cutlayer audit --resume" in said
    assert len(below) > 1 and list((tmp_path / "a" / "cells").glob("*.safetensors"))
    until = time.monotonic() + 90  # Ray's own agents look now and then whether anybody is there
    while (left := [pid for pid in below if alive(pid)]) and time.monotonic() < until:
        time.sleep(1)
    assert not left


def children(pid):
    """Of a process, and theirs."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *children(int(child))]
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
