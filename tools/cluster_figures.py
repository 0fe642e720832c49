"""What a cluster costs on this machine, for docs/evidence/cluster.json.

    python tools/cluster_figures.py OUT.json [cells] [fleets] [shelf] [audit]

cells    so many jobs that do nothing, through one driver: jobs a second and the driver's memory
fleets   steps of a small plan with 1,000 and with 10,000 clients: time of a step, memory of driver, server and crews
shelf    what the states of so many clients take on disk and in memory
audit    the same small audit with two processes and on a local Ray of two CPUs, in turn: a ratio
Each appends its rows to OUT.json as it goes.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", nargs="*", default=["cells", "fleets", "shelf", "audit"])
    parser.add_argument("--cells", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--plan", choices=PLANS, help="of one fleet")
    parser.add_argument("--engine", default="ray", help="of one fleet")
    parser.add_argument("--steps", type=int, default=2_000, help="of a fleet")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for what in given.what:
        {"cells": _cells, "fleets": _fleets, "fleet": _fleet, "shelf": _shelf, "audit": _audit}[what](given)


def _note(out: Path, row: dict[str, Any]) -> None:
    found = json.loads(out.read_text()) if out.exists() else {"rows": []}
    root = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=root).stdout
    row |= {"commit": commit.strip(), "cores": os.cpu_count(), "python": platform.python_version()}
    row["load"] = round(os.getloadavg()[0], 1)
    found["rows"].append(row)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(row, flush=True)


def _resident(pid: int) -> float:
    """MiB of memory that are this process's own: what it shares with others is not counted twice."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_", "Swap:"))) / 1024


def nothing(shared: Any, number: int) -> int:
    return number


def _cells(given: argparse.Namespace) -> None:
    from cluster_figures import nothing as importable

    from cutlayer.audit.jobs import Job, run
    from cutlayer.audit.parallel import Where, workers

    for where in ("local", "processes"):
        for count in given.cells:
            jobs = [Job(str(number), importable, (number,)) for number in range(count)]
            with workers(Where(where, None if where == "local" else 2, 2), None, "nothing") as there:
                for _ in run([Job(f"warm {n}", importable, (n,)) for n in range(8)], there, lambda shown: None):
                    pass
                before, began, most = _resident(os.getpid()), time.perf_counter(), 0.0
                for job, _ in run(jobs, there, lambda shown: None):
                    if int(job.name) % 500 == 0:
                        most = max(most, _resident(os.getpid()))
                seconds = time.perf_counter() - began
            _note(given.out, {
                "what": "cells", "where": where, "jobs": count, "jobs_a_second": round(count / seconds, 1),
                "driver_mib_before": round(before, 1), "driver_mib_most": round(most, 1),
            })  # fmt: skip


class _Watched:
    """The most memory that some processes have while something runs."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.pids: dict[str, int] = {"driver": os.getpid()}
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for name, pid in list(self.pids.items()):
                self.most[name] = max(self.most.get(name, 0.0), _resident(pid))

    def actors(self, server: Any, crews: list[Any]) -> None:
        import ray

        self.pids["server"] = ray.get(server.pid.remote())
        self.pids |= {f"crew{number}": ray.get(crew.pid.remote()) for number, crew in enumerate(crews)}

    def close(self) -> dict[str, float]:
        self._over.set()
        return {f"{name}_mib": round(value, 1) for name, value in self.most.items()}


PLANS = ("relay, shared heads", "SplitFed 1, 50 a round", "relay, own heads with momentum")


def _fleets(given: argparse.Namespace) -> None:
    """Each in a process of its own: memory that one has used would count for the next."""
    for name in PLANS:
        for clients in given.clients:
            for engine in ("local", "ray"):
                words = ["fleet", "--plan", name, "--engine", engine, "--clients", str(clients)]
                words += ["--steps", str(given.steps)]
                subprocess.run([sys.executable, __file__, str(given.out), *words], check=True)


def _fleet(given: argparse.Namespace) -> None:
    import torch

    from cutlayer import Plan
    from cutlayer.data.base import parts
    from cutlayer.data.digits import Digits
    from cutlayer.engines import cluster
    from cutlayer.engines.local.run import LocalRun
    from cutlayer.engines.ray import fleet
    from cutlayer.nets import SimpleCNN
    from cutlayer.training import loop
    from cutlayer.training.plan.optimizers import SGD
    from cutlayer.training.plan.schedule import Relay, SplitFed

    torch.set_num_threads(1)
    (clients,) = given.clients
    fields = {
        "relay, shared heads": {"rounds": Relay()},
        "SplitFed 1, 50 a round": {"rounds": SplitFed(), "clients_per_round": 50},
        "relay, own heads with momentum": {"rounds": Relay(), "shared_client_network": False},
    }[given.plan]
    descent = SGD(lr=0.05, momentum=0.5 if "momentum" in given.plan else 0.0)
    plan = Plan(
        net=SimpleCNN(), data=Digits(), clients=clients, epochs=1, batch_size=2, local_steps=1, aux_samples=0,
        val_share=0.0, private_seed=1, client_optimizer=descent, server_optimizer=SGD(lr=0.05), **fields,
    )  # fmt: skip
    # The same data for all counts of clients: what differs is what clients take.
    data = parts(_repeated(Digits().load(), 10_000), aux=0, val=0.0, seed=0)
    run = LocalRun(plan, data, classes=10)
    watched, began, made = _Watched(), time.perf_counter(), [0]
    until = {"on_step": lambda event: made.append(event.step), "stop": lambda: made[-1] >= given.steps}
    if given.engine == "local":
        loop.train(run.coordinator, run.carrier, **until)
    else:
        with cluster.connected("local", 3):
            fleet.train(run, fleet.Fleet(crews=2), on_start=watched.actors, **until)
    wall = time.perf_counter() - began
    _note(given.out, {
        "what": "fleets", "plan": given.plan, "engine": given.engine, "clients": clients, "steps": run.progress.step,
        "ms_a_step": round(1000 * run.progress.seconds / max(1, run.progress.step), 2),
        "seconds_with_start": round(wall, 1), **watched.close(),
    })  # fmt: skip


def _shelf(given: argparse.Namespace) -> None:
    """States of a client with momentum, 45 kB each, as the server keeps them."""
    import torch

    from cutlayer.engines.local.asleep import Asleep, Layout
    from cutlayer.engines.ray.shelf import Shelf

    for clients in given.clients:
        shelf, layout, before = Shelf(), Layout(), _resident(os.getpid())
        for client in range(clients):
            shelf.put(client, client + 1, Asleep.of({"net.w": torch.ones(5650), "opt.w": torch.ones(5650)}, layout))
        _note(given.out, {
            "what": "shelf", "clients": clients, "mib_on_disk": round(clients * 45_200 / 2**20, 1),
            "mib_in_memory": round(_resident(os.getpid()) - before, 1),
        })  # fmt: skip


def _repeated(loaded: Any, clients: int) -> Any:
    """Two samples a client; there are not so many, so the same ones come again."""
    from dataclasses import replace

    import torch

    return replace(loaded, train=loaded.train[torch.arange(2 * clients) % len(loaded.train)])


def _audit(given: argparse.Namespace) -> None:
    words = [
        sys.executable, "-m", "cutlayer.cli", "audit", "--data", "Digits(limit=600)", "--epochs", "2", "--no-alone",
        "--guard", "LightSplit(ratio={4,8})", "--attack", "Decoder(steps=100)", "--attack", "Retrieval()",
        "--images", "32", "--threads", "2", "--json",
    ]  # fmt: skip
    took: dict[str, list[float]] = {"processes": [], "local": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.repeats):
            for where in took:
                began = time.perf_counter()
                out = Path(folder) / f"{where}{number}"
                subprocess.run(
                    [*words, "--cluster", where, "--jobs", "2", "--out", str(out)], check=True, capture_output=True
                )
                took[where].append(round(time.perf_counter() - began, 1))
    ratios = [a / b for a, b in zip(took["processes"], took["local"], strict=True)]
    _note(given.out, {
        "what": "audit", "command": " ".join(words[3:]), "seconds": took, "jobs": 3 * 2 + 3 + 1,
        "speed_of_ray_over_processes": round(median(ratios), 3),
    })  # fmt: skip


if __name__ == "__main__":
    main()
