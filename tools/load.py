"""A server under load on the loopback: clients that train, clients that wait, visitors that only predict.

    python tools/load.py [--training 64] [--idle 500] [--visitors 8] [--minutes 10] [--out docs/evidence/load.json]

One run of SplitFed with training + idle members: each round draws `training` of them, and the others are connected
and wait. Members are threads of a few processes, the server is a process of its own, visitors have one, too. Every
five seconds a line is written with the steps and predictions since the last one, how long they took, the server's
memory, and how long threads waited for the one lock behind which the body computes. All processes share the machine's
cores with whatever else runs on them; the record has the load that was there.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cutlayer.audit.report.plots import INK, png, pyplot
from cutlayer.core.batch import Task
from cutlayer.core.message import Kind, Message
from cutlayer.data.base import Parts, Samples
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.engines.grpc.deploy import Service
from cutlayer.engines.grpc.visitor import PredictOnlyClient
from cutlayer.nets.lenet import LeNet
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.schedule import Rounds, SplitFed, Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.wire.ledger import Ledger

TASK = Task((1, 28, 28), 10)
BATCH, ROWS, EVERY = 8, 8 * 40, 5.0
PAUSE = 0.1  # seconds between two questions of a visitor
ROUNDS: dict[str, Rounds] = {"splitfed": SplitFed(), "wave": Wave(), "fused": Wave(fused=True)}


def plan_of(members: int, training: int, rounds: str) -> Plan:
    plain = SGD(lr=0.01, momentum=0.0)
    return Plan(
        net=LeNet(), clients=members, clients_per_round=training if training < members else None, epochs=40,
        batch_size=BATCH, rounds=ROUNDS[rounds], val_share=0.0, client_optimizer=plain, server_optimizer=plain,
        private_seed=1,
    )  # fmt: skip


def name_of(number: int) -> str:
    return f"site-{number}"


# ------------------------------------------------------------------------------------- the server
class TimedLock:
    """The server's lock, and how long threads waited for it and held it since the last look."""

    def __init__(self, lock: Any):
        self._lock, self._depth, self._since = lock, 0, 0.0
        self.waits: list[float] = []
        self.held = 0.0

    def __enter__(self) -> None:
        began = time.perf_counter()
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = time.perf_counter()
            self.waits.append(self._since - began)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.held += time.perf_counter() - self._since
        self._lock.release()

    def looked(self) -> dict[str, float]:
        with self._lock:
            waits, held, self.waits, self.held = self.waits, self.held, [], 0.0
        return {"taken": len(waits), "held_s": round(held, 3), "waited_s": round(sum(waits), 3), **tail(waits)}


def serve(plan: Plan, folder: Path, told: Any) -> None:
    """Writes a line every five seconds until it is killed."""
    torch.set_num_threads(1)
    names = [name_of(number) for number in range(plan.clients)]
    limits = Limits(every=10**6, deadline=600.0, visitors=64, connections=10**6, quiet=120.0)
    service = Service(plan, names, folder / "server", listen="127.0.0.1:0", identity=None, limits=limits)
    told.send(service.network.port)
    threading.Thread(target=service.run, daemon=True).start()
    while service.host is None:
        time.sleep(0.1)
    lock = service.host.coordinator.lock = TimedLock(service.host.coordinator.lock)  # type: ignore[assignment]
    progress, before, used, began = service.host.progress, 0, time.process_time(), time.time()
    with (folder / "server.jsonl").open("w") as file:
        while True:
            time.sleep(EVERY)
            now, cpu = time.time(), time.process_time()
            row = {
                "at": now, "seconds": now - began, "steps": progress.step - before, "cpu_s": cpu - used,
                "mib": resident(os.getpid()), "threads": threading.active_count(), "lock": lock.looked(),
                "connected": sum(one.connected for one in service.host.connections),
                "rewinds": service.host.recovery.rewinds, "refused": dict(service.network.refused),
                "load": os.getloadavg()[0],
            }  # fmt: skip
            before, used, began = progress.step, cpu, now
            file.write(json.dumps(row) + "\n")
            file.flush()


def resident(pid: int) -> float:
    """MiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


# ------------------------------------------------------------------------------ those who come to it
class Tally:
    """What took how long since the last look."""

    def __init__(self) -> None:
        self._lock, self._took = threading.Lock(), defaultdict[str, list[float]](list)

    def add(self, what: str, seconds: float) -> None:
        with self._lock:
            self._took[what].append(seconds)

    def write(self, path: Path) -> None:
        """A line every five seconds, for ever."""
        with path.open("w") as file:
            while True:
                time.sleep(EVERY)
                with self._lock:
                    took, self._took = self._took, defaultdict(list)
                row = {"at": time.time(), **{what: [round(one, 5) for one in all_] for what, all_ in took.items()}}
                file.write(json.dumps(row) + "\n")
                file.flush()


def join(plan: Plan, numbers: list[int], folder: Path, port: int, place: int) -> None:
    """Members as threads, until the process is killed."""
    torch.set_num_threads(1)
    tally, building = Tally(), threading.Lock()
    ask = DeployedClient._ask

    def timed(site: DeployedClient, message: Message) -> Message:
        began = time.perf_counter()
        try:
            return ask(site, message)
        finally:
            tally.add(message.kind.name, time.perf_counter() - began)

    DeployedClient._ask = timed  # type: ignore[method-assign]
    none = samples(0)

    def member(number: int) -> None:
        address = Address(f"127.0.0.1:{port}", None, give_up=3600.0, quiet=120.0)
        site = DeployedClient(plan, name_of(number), address, folder / name_of(number))
        parts = Parts(samples(ROWS, number), none, none, samples(8))
        with building:  # networks start from torch's one generator
            site.prepare(site.enrol(), TASK, parts, own_data=True)
        site.run()

    for number in numbers:
        threading.Thread(target=member, args=(number,), daemon=True).start()
    tally.write(folder / f"members-{place}.jsonl")


def visit(plan: Plan, count: int, folder: Path, port: int) -> None:
    """Visitors that ask, wait for the answer, pause and ask again, until the process is killed."""
    torch.set_num_threads(1)
    tally = Tally()
    z = torch.rand(BATCH, *cut_shapes(plan, TASK).sent)

    def visitor(number: int) -> None:
        address = Address(f"127.0.0.1:{port}", None, give_up=3600.0, quiet=120.0)
        while True:
            with suppress(Exception), PredictOnlyClient(plan, TASK, name_of(number), address, Ledger()) as one:
                while True:
                    began = time.perf_counter()
                    one.ask(Message(Kind.PREDICT, one.number, 0, {"z": z}))
                    tally.add("PREDICT", time.perf_counter() - began)
                    time.sleep(PAUSE)
            time.sleep(1.0)

    for number in range(count):
        threading.Thread(target=visitor, args=(number,), daemon=True).start()
    tally.write(folder / "visitors.jsonl")


def samples(count: int, seed: int = 0) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    return Samples(torch.rand(count, *TASK.shape, generator=draw), torch.arange(count) % TASK.classes)


# ------------------------------------------------------------------------------------ the figures
def tail(took: list[float]) -> dict[str, float]:
    """Median and tail, in milliseconds."""
    if not took:
        return {}
    ordered = sorted(took)
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: round(1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))], 2) for name, q in at.items()}


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # the last one may be half written
            found.append(json.loads(line))
    return found


def figures(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """From what everybody wrote: one row for every line of the server that has steps in it, and the whole."""
    server = rows_of(folder / "server.jsonl")
    others = [row for path in folder.glob("members-*.jsonl") for row in rows_of(path)]
    visits, rows = rows_of(folder / "visitors.jsonl"), []
    if not server:
        return {**about, "rows": []}
    began = next((row["at"] for row in server if row["steps"]), server[0]["at"])
    whole: dict[str, list[float]] = defaultdict(list)
    for row in (row for row in server if row["at"] >= began):
        here = {"FORWARD": [], "BACKWARD": [], "PREDICT": []}
        for kind in here:
            near = [one for one in (*others, *visits) if row["at"] - row["seconds"] < one["at"] <= row["at"]]
            here[kind] = [took for one in near for took in one.get(kind, ())]
            whole[kind] += here[kind]
        rows.append(
            {
                "minute": round((row["at"] - began) / 60, 2),
                "steps_a_second": round(row["steps"] / row["seconds"], 1),
                "predictions_a_second": round(len(here["PREDICT"]) / row["seconds"], 1),
                "training_ms": tail(here["FORWARD"] + here["BACKWARD"]),
                "predicting_ms": tail(here["PREDICT"]),
                "server_mib": round(row["mib"], 1),
                "server_cpu_share": round(row["cpu_s"] / row["seconds"], 3),
                "lock_held_share": round(row["lock"]["held_s"] / row["seconds"], 3),
                "lock_wait_ms": {name: row["lock"][name] for name in ("p50", "p95", "p99") if name in row["lock"]},
                "threads": row["threads"],
                "connected": row["connected"],
                "load_of_the_machine": round(row["load"], 1),
            }
        )
    kept = [row for row in server if row["at"] >= began]
    seconds = sum(row["seconds"] for row in kept)
    return {
        **about,
        "minutes_measured": round(seconds / 60, 2),
        "steps": sum(row["steps"] for row in kept),
        "steps_a_second": round(sum(row["steps"] for row in kept) / seconds, 2),
        "predictions": len(whole["PREDICT"]),
        "predictions_a_second": round(len(whole["PREDICT"]) / seconds, 2),
        "training_ms": tail(whole["FORWARD"] + whole["BACKWARD"]),
        "predicting_ms": tail(whole["PREDICT"]),
        "server_mib": {"first": round(kept[0]["mib"], 1), "last": round(kept[-1]["mib"], 1)},
        "server_mib_most": round(max(row["mib"] for row in kept), 1),
        "lock_held_share": round(sum(row["lock"]["held_s"] for row in kept) / seconds, 3),
        "lock_waited_s_a_second": round(sum(row["lock"]["waited_s"] for row in kept) / seconds, 3),
        "server_cpu_share": round(sum(row["cpu_s"] for row in kept) / seconds, 3),
        "rewinds": kept[-1]["rewinds"],
        "refused": kept[-1]["refused"],
        "rows": rows,
    }


def draw(found: dict[str, Any]) -> bytes:
    plt = pyplot()
    figure, axes = plt.subplots(4, 1, figsize=(8, 9), sharex=True)
    rows, minutes = found["rows"], [row["minute"] for row in found["rows"]]
    for name, label in (("steps_a_second", "steps"), ("predictions_a_second", "predictions")):
        axes[0].plot(minutes, [row[name] for row in rows], linewidth=1, label=label)
    axes[0].set_ylabel("a second", color=INK)
    for name, label in (("training_ms", "training"), ("predicting_ms", "predicting")):
        for quantile, style in (("p50", "-"), ("p99", ":")):
            line = [row[name].get(quantile) for row in rows]
            axes[1].plot(minutes, line, style, linewidth=1, label=f"{label}, {quantile}")
    axes[1].set_yscale("log")
    axes[1].set_ylabel("ms of an answer", color=INK)
    axes[2].plot(minutes, [row["server_mib"] for row in rows], linewidth=1, label="server's memory")
    axes[2].set_ylabel("MiB", color=INK)
    axes[2].set_ylim(bottom=0)
    axes[3].plot(minutes, [row["lock_held_share"] for row in rows], linewidth=1, label="lock held")
    axes[3].plot(minutes, [row["server_cpu_share"] for row in rows], linewidth=1, label="cores of the server")
    axes[3].set_ylabel("share of the time", color=INK)
    axes[3].set_xlabel("minutes", color=INK)
    for one in axes:
        one.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return png(figure, plt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", type=int, default=64)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", choices=ROUNDS, default="splitfed")
    parser.add_argument("--processes", type=int, default=4, help="that the members are threads of")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/load.json"))
    given = parser.parse_args()
    members = given.training + given.idle
    plan = plan_of(members, given.training, given.rounds)
    about = {
        "command": f"python tools/load.py --training {given.training} --idle {given.idle} --visitors "
        f"{given.visitors} --minutes {given.minutes:g} --rounds {given.rounds}",
        "plan": repr(replace(plan, private_seed=None)),
        "training": given.training, "idle": given.idle, "visitors": given.visitors, "cores": os.cpu_count(),
    }  # fmt: skip
    folder, spawn = Path(tempfile.mkdtemp(prefix="load-")), multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    running = [spawn.Process(target=serve, args=(plan, folder, theirs), daemon=True)]
    running[0].start()
    port = ours.recv()
    for place in range(given.processes):
        numbers = list(range(place, members, given.processes))
        running.append(spawn.Process(target=join, args=(plan, numbers, folder, port, place), daemon=True))
    running.append(spawn.Process(target=visit, args=(plan, given.visitors, folder, port), daemon=True))
    for process in running[1:]:
        process.start()
    began = 0.0
    try:
        while not began or time.time() - began < 60 * given.minutes:
            time.sleep(EVERY)
            assert all(process.is_alive() for process in running), "a process has ended before its time"
            if not began and any(row["steps"] for row in rows_of(folder / "server.jsonl")):
                began = time.time()
            found = figures(folder, about)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
            if found["rows"]:
                print(json.dumps(found["rows"][-1]), flush=True)
    finally:
        for process in running:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    given.out.with_suffix(".png").write_bytes(draw(found))


if __name__ == "__main__":
    main()
