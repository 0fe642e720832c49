"""Cells that are made elsewhere: jobs wait for each other, failures stay where they happen, the table is the same."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from toys import TASK, samples, tiny_plan

from cutlayer.attacks import Decoder, Linked
from cutlayer.audit import parallel, processes, stages
from cutlayer.audit.jobs import Failed, Finished, Job, Result, run
from cutlayer.audit.matrix import audit
from cutlayer.audit.parallel import Where, spread
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.core.spec import spec as read
from cutlayer.data.base import Loaded
from cutlayer.data.poisons import LabelFlip
from cutlayer.engines.parcel import Parcel, opened, parcel
from cutlayer.guards import WCC, LightSplit
from cutlayer.nets.own import Own


def wanted(**more):
    attacks = [Decoder(steps=3, width=4, hidden=8), Decoder(steps=4, width=4, hidden=8)]
    loaded = Loaded(samples(120, 1), samples(30, 2), tuple(map(str, range(TASK.classes))))
    plan = tiny_plan(epochs=1, batch_size=8, private_seed=None)
    return AuditSpec(plan, [LightSplit(ratio=4)], attacks, images=8, **more), loaded


def without_times(rows):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


class Here:
    """Workers in this process. Whatever is handed over is pickled on the way, there and back."""

    def __init__(self, shared, room=2):
        self.room, self.begun, self.most, self.shared = room, [], 0, pickle.dumps(shared)

    def start(self, job, given):
        self.begun.append((job, pickle.dumps(list(given))))
        self.most = max(self.most, len(self.begun))

    def finished(self, seconds):
        job, given = self.begun.pop(0)
        try:
            shared = opened(pickle.loads(self.shared))  # anew, as if every job had a process of its own
            made = pickle.loads(pickle.dumps(job.work(shared, *pickle.loads(given))))
        except Exception as error:
            made = processes.failed(error)
        return [Finished(job.name, made)]

    def running(self):
        return [job.name for job, _ in self.begun]


def spread_here(spec, loaded, resources, room=2):
    """As `spread`, with workers in this process."""
    made = stages.Stages(spec, loaded, resources)
    jobs = made.jobs()
    for job, found in run(jobs, Here(parcel(stages.AuditWork(spec, loaded, "cpu", None), "audit"), room), print):
        made.take(job, found)
    return [job.name for job in jobs]


# ---------------------------------------------------------------------------------------------- jobs
def add(shared, *numbers):
    return shared + sum(numbers)


def fail(shared, *numbers):
    raise ArithmeticError("no such number")


def finished(jobs, room=2):
    workers = Here(Parcel(pickle.dumps(100), {}, []), room)
    shown = []
    return {job.name: made for job, made in run(jobs, workers, shown.append)}, workers, shown


def test_a_job_begins_once_what_it_waits_for_is_there():
    jobs = [Job("c", add, (Result("a"), Result("b"))), Job("a", add, (1,)), Job("b", add, (Result("a"),))]
    found, _, shown = finished(jobs)
    assert list(found.items()) == [("a", 101), ("b", 201), ("c", 402)]
    assert shown[-1][:2] == (3, 3)


def test_an_error_is_the_job_s_own_and_of_whoever_waits_for_it():
    jobs = [Job("a", fail), Job("b", add, (Result("a"),)), Job("c", add, (Result("b"),)), Job("d", add, (1,))]
    found, _, _ = finished(jobs)
    assert found["d"] == 101 and len(found) == 4
    assert all(found[name].why == "ArithmeticError: no such number" for name in "abc")
    assert isinstance(found["b"].error, ArithmeticError)


def test_no_more_is_handed_over_than_there_is_room_for():
    jobs = [Job(str(number), add, (number,)) for number in range(9)]
    found, workers, shown = finished(jobs, room=3)
    assert workers.most == 3 and len(found) == 9
    assert [len(one.running) for one in shown][:2] == [2, 2]


# -------------------------------------------------------------------------------------- audits as jobs
def test_the_table_is_that_of_one_process(tmp_path):
    spec, loaded = wanted()
    shared = Resources(store=ResultStore(tmp_path / "cells", spec.identity))
    names = spread_here(spec, loaded, shared)
    assert names[0] == "0 | none | training" and len(names) == len(set(names)) == 9
    made = set((tmp_path / "cells").iterdir())
    again = Resources(store=ResultStore(tmp_path / "cells", spec.identity))
    ours, alone = audit(spec, loaded, again), audit(spec, loaded)
    assert set((tmp_path / "cells").iterdir()) == made, "nothing was left to do"
    assert without_times(ours.rows) == without_times(alone.rows) and len(alone.rows) > 2
    assert without_times(ours.alone) == without_times(alone.alone) and len(alone.alone) == 2
    assert ours.floors == alone.floors and ours.pictures.keys() == alone.pictures.keys()
    assert stages.Stages(spec, loaded, again).jobs() == []


def test_a_guard_that_is_fitted_to_the_finished_network_finds_it():
    spec, loaded = wanted(alone=False)
    spec, resources = replace(spec, guards=[read("Shredder()")], attacks=spec.attacks[:1]), Resources()
    spread_here(spec, loaded, resources)
    assert without_times(audit(spec, loaded, resources).rows) == without_times(audit(spec, loaded).rows)


@pytest.mark.campaign
@pytest.mark.parametrize("clients", [1, 3])
def test_so_are_tables_of_everything_that_a_training_leaves(clients):
    """Guards that are fitted to a finished network, attackers that own the server, histories, passes, poisons."""
    spec, loaded = wanted()
    attacks = [Decoder(steps=3, width=4, hidden=8), Linked(steps=3, width=4, hidden=8), *map(read, (
        "FSHA(steps=4, warm=2, width=4, hidden=8)", "UnSplit(rounds=1)", "TailEnumeration()", "Membership()",
    ))]  # fmt: skip
    plan = replace(spec.plan, clients=clients, poison=LabelFlip(clients=1) if clients > 1 else None, epochs=2)
    guards = [LightSplit(ratio=4), read("Shredder()")]
    spec = replace(spec, plan=plan, guards=(), attacks=(), optional_attacks=attacks, optional_guards=guards)
    resources = Resources()
    spread_here(spec, loaded, resources)
    ours, alone = audit(spec, loaded, resources), audit(spec, loaded)
    assert without_times(ours.rows) == without_times(alone.rows) and len(alone.rows) > 4
    assert without_times(ours.poisoned) == without_times(alone.poisoned)
    assert ours.left_out == alone.left_out and ours.not_tried == alone.not_tried


def test_what_is_there_is_not_made_again_and_goes_to_those_that_lack_it():
    spec, loaded = wanted(alone=False)
    resources = Resources()
    spread_here(replace(spec, guards=()), loaded, resources)
    names = spread_here(spec, loaded, resources)
    assert [name.split(" | ")[1] for name in names] == ["LightSplit(ratio=4)"] * 3
    assert without_times(audit(spec, loaded, resources).rows) == without_times(audit(spec, loaded).rows)


def test_a_training_that_loses_its_numbers_is_left_out_for_good(tmp_path):
    spec, loaded = wanted(alone=False)
    spec = replace(spec, guards=[WCC(weight=1e38)])
    spread_here(spec, loaded, Resources(store=ResultStore(tmp_path / "cells", spec.identity)))
    told = []
    again = Resources(store=ResultStore(tmp_path / "cells", spec.identity), on_event=told.append)
    found = audit(spec, loaded, again)
    assert "did it" in found.left_out["WCC(weight=1e+38)"] and {row["guard"] for row in found.rows} == {"none"}
    assert not any("training" in event.what for event in told), "nobody tries it again"


def test_a_row_that_fails_says_why_and_the_next_run_tries_it_again(tmp_path, monkeypatch):
    spec, loaded = wanted(alone=False)
    shared = Resources(store=ResultStore(tmp_path / "cells", spec.identity))
    usual = stages.attack

    def broken(work, seed, guard, one, *rest):
        if guard != spec.guards[0] or one != spec.attacks[0]:
            return usual(work, seed, guard, one, *rest)
        raise KeyError("a bug of the attack")

    broken.__name__ = "attack"
    monkeypatch.setattr(stages, "attack", broken)
    spread_here(spec, loaded, shared)
    found = audit(spec, loaded, shared)
    (lost,) = found.not_tried
    assert (
        "KeyError" in lost["why"] and "a bug of the attack" in lost["why"] and lost["guard"] == "LightSplit(ratio=4)"
    )
    assert len(found.rows) == 3
    again = Resources(store=ResultStore(tmp_path / "cells", spec.identity))
    assert [job.name for job in stages.Stages(spec, loaded, again).jobs()] == [
        "0 | LightSplit(ratio=4) | training",
        "0 | LightSplit(ratio=4) | Decoder(steps=3, width=4, hidden=8)",
    ]


def test_without_the_open_cut_there_is_no_table(monkeypatch):
    spec, loaded = wanted()

    def broken(*given):
        raise OSError("no memory")

    broken.__name__ = "train"
    monkeypatch.setattr(stages, "train", broken)
    with pytest.raises(OSError, match="no memory"):
        spread_here(spec, loaded, Resources())


# ------------------------------------------------------------------------------------- real processes
def die_at_first(shared, folder, how):
    (folder / f"{os.getpid()}").touch()
    if len(list(folder.iterdir())) == 1:
        os.kill(os.getpid(), how)
    return shared


def die(shared, how):
    os.kill(os.getpid(), how)


def test_a_process_that_is_killed_is_replaced_and_takes_nobody_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "RETRIES", 1)
    jobs = [
        Job("once", die_at_first, (tmp_path, signal.SIGKILL)),
        Job("always", die, (signal.SIGKILL,)),
        Job("error", fail),
        Job("sum", add, (Result("stays"), 1)),
        Job("stays", add, (1,), stays=True),
    ]
    with processes.processes(parcel(5, "five"), 2, 1) as workers:
        found = {job.name: made for job, made in run(jobs, workers, lambda shown: None)}
        running = [slot.pid for slot in workers._free if slot.pid]
    assert found["once"] == 5 and found["sum"] == 12 and len(list(tmp_path.iterdir())) == 2
    assert found["always"] == Failed("its process ended 2 times with SIGKILL")
    assert found["error"].why == "ArithmeticError: no such number"
    assert running and not any(Path(f"/proc/{pid}").exists() for pid in running), "none is left"


@pytest.mark.campaign  # tests/outside audits with two processes too, with plug-ins of its own
def test_two_processes_fill_the_cells(tmp_path):
    spec, loaded = wanted()
    alone, shared = audit(spec, loaded), Resources(store=ResultStore(tmp_path / "cells", spec.identity))
    shown = []
    spread(spec, loaded, shared, Where("processes", 2), shown.append)
    made = set((tmp_path / "cells").iterdir())
    ours = audit(spec, loaded, Resources(store=ResultStore(tmp_path / "cells", spec.identity)))
    assert set((tmp_path / "cells").iterdir()) == made and shown
    assert without_times(ours.rows) == without_times(alone.rows)


# ------------------------------------------------------------------------------------------ bad input
def test_what_cannot_be_handed_over_is_named_by_its_field(tmp_path):
    spec, loaded = wanted()
    spec = replace(spec, plan=replace(spec.plan, net=Own(lambda: None)))
    with pytest.raises(ValueError, match=r"^audit\.spec\.plan\.net\.make cannot be handed .*lambda"):
        parcel(stages.AuditWork(spec, loaded, "cpu", None), "audit")


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_job_at_all_is_refused(jobs):
    with pytest.raises(ValueError, match="--jobs is at least 1; got"):
        Where(jobs=jobs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpus": 2.0}, r"--cpus-each and --gpus-each .* give --cluster"),
        ({"gpus": 0.0, "cluster": "processes"}, r"--cpus-each and --gpus-each .* give --cluster"),
        ({"cpus": 0.0, "cluster": "local"}, "--cpus-each is above 0, --gpus-each 0 or more"),
        ({"gpus": -1.0, "cluster": "local"}, "--cpus-each is above 0, --gpus-each 0 or more"),
    ],
)
def test_what_a_job_takes_of_a_cluster_is_not_said_without_one(options, words):
    with pytest.raises(ValueError, match=words):
        Where(**options)


def test_without_ray_jobs_are_processes(monkeypatch):
    monkeypatch.setattr("cutlayer.engines.cluster.is_there", lambda: False)
    assert Where(jobs=2).kind == "processes" and Where("local").kind == "local"
    with pytest.raises(ValueError, match=r"pip install 'cutlayer\[ray\]'"):
        parallel.workers(Where("local"), 1, "one").__enter__()


@pytest.mark.campaign
def test_files_that_another_machine_does_not_have_travel_along(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLAYER_NAMED_FILES", "{}")
    (tmp_path / "beside_it.py").write_text("WIDTH = 7\n")
    (tmp_path / "own_guard.py").write_text(
        "from dataclasses import dataclass\nimport beside_it\nfrom cutlayer.guards import Guard\n\n\n"
        "@dataclass(frozen=True, repr=False)\nclass Mine(Guard):\n"
        "    def build(self, *given):\n        return beside_it.WIDTH\n"
    )
    sent = parcel(read(f"{tmp_path / 'own_guard.py'}:Mine()"), "guard")
    script = tmp_path / "there.py"
    script.write_text(
        "import pickle, sys\nfrom cutlayer.engines.parcel import opened\n"
        "print(opened(pickle.load(open(sys.argv[1], 'rb'))).build())\n"
    )
    (tmp_path / "sent").write_bytes(pickle.dumps(sent))
    (tmp_path / "own_guard.py").unlink()
    (tmp_path / "beside_it.py").unlink()
    there = {**os.environ, "CUTLAYER_NAMED_FILES": "{}"}
    done = subprocess.run([sys.executable, script, tmp_path / "sent"], capture_output=True, text=True, env=there)
    assert done.stdout == "7\n", done.stderr


def test_an_error_of_several_lines_stands_in_one_line_of_a_table():
    assert str(processes.failed(KeyError("it broke"))) == "it failed: KeyError: 'it broke'"
    assert str(processes.failed(RuntimeError("it broke,\n  later"))) == "it failed: RuntimeError: it broke, later"
