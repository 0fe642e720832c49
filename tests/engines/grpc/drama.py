"""One run whose parties are killed and whose connections break, and what must be true of it in the end."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from signal import SIGKILL
from typing import Any

from nursery import FULL, LEARNT, POINTS, Nursery, audited
from proxy import Relay, wait_for
from rehearsal import FAULTED, NAMES, refuse_other_crossings, refuse_other_tensors, undisturbed

from cutlayer.core.errors import DiskFull
from cutlayer.core.message import Handler, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.taken import LOCK
from cutlayer.training import checkpoint
from cutlayer.training.checkpoint import Snapshots
from cutlayer.training.step import export

PATIENCE = 1800.0  # a machine may be busy with other things
TWIN = " once more"  # another process of a party that lives
DISK_FULL = DiskFull.exit_code
FROM_OUTSIDE = ("any", "any", "truncated snapshot", "double start")


@dataclass
class Story:
    """What happened."""

    plan: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)  # by party and moment; full disks and double starts, too
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    returns: int = 0  # to a snapshot, at the server


@cache
def reference(plan: str) -> tuple[LocalRun, list[list[int]]]:
    """The undisturbed run, and at which steps of each client its server may have learnt."""
    steps: list[list[int]] = [[] for _ in range(FAULTED[plan].clients)]

    def watcher(message: Message, handle: Handler) -> Message:
        if message.kind.name in LEARNT:
            steps[message.client].append(message.step)
        return handle(message)

    heard = () if FAULTED[plan].rounds.fused else (watcher,)  # there it answers all at once, and nobody hears one
    return undisturbed(FAULTED[plan], watchers=heard), steps


def play(
    nursery: Nursery,
    plan: str,
    folder: Path,
    *,
    seed: int,
    kills: int = 0,
    doomed: Mapping[str, tuple[str, int]] | None = None,
    faults: list[tuple[str, int]] | None = None,
    identities: Path | None = None,
    every: int = 4,
    pace: float = 0.004,
) -> Story:
    """Run `plan` to its end through at least `kills` troubles of processes (as many as fit in) and these faults of
    connections, and check it. Who is `doomed` is killed at the n-th passing of a point, besides."""
    draw, story, began = random.Random(seed), Story(plan, seed), time.monotonic()
    certain, dooms = dict(doomed or {}), dict[str, str]()  # who will die where
    facts: dict[str, Any] = {"plan": plan, "folder": str(folder), "pace": pace, "quiet": 1.0}
    facts |= {"limits": {"every": every, "deadline": 300.0, "quiet": 1.0}}
    facts |= {"identities": str(identities)} if identities else {}

    def start(name: str, drawn: bool = True) -> None:
        doom = certain.pop(name, None)
        if doom:
            dooms[name] = doom[0]
        elif drawn and sum(story.kills.values()) + len(dooms) < kills and draw.random() < 0.6:
            point = draw.choice([*POINTS["server" if name == "server" else "client"], FULL, FULL])
            doom = (point, 0 if point == "result" else draw.randint(0, 60) if point == FULL else draw.randint(0, 12))
            dooms[name] = point
        nursery.start(name, port=relay.port, **({"doom": doom} if doom else {}), **facts)

    with Relay(lambda: _port(folder), faults or ()) as relay:
        over: set[str] = set()
        start("server", drawn=False)  # the others need its port
        wait_for(lambda: _port(folder), 300, "the server's port")
        for name in NAMES:
            start(name)
        while len(over) < 1 + len(NAMES):
            assert time.monotonic() - began < PATIENCE, f"not over: {over}, {story}\n{_logs(folder)}"
            killable = sum(story.kills.values()) + len(dooms) < kills and "server" not in over
            ended = nursery.wait(draw.uniform(0.05, 0.8) if killable else 1.0)
            if not ended and killable:
                victim = draw.choice([name for name in ("server", *NAMES) if name not in over])
                trouble = draw.choice(FROM_OUTSIDE)
                if trouble == "double start" and not _has_its_folder(folder / victim):
                    trouble = "any"  # of two that have just started either may be the one that goes on
                if victim not in dooms:
                    dooms[victim] = trouble
                    if dooms[victim] == "double start":
                        nursery.start(victim, alias=victim + TWIN, port=relay.port, **facts)
                    else:
                        nursery.signal(victim, SIGKILL)
            for name, code in ended:
                party = "server" if name.startswith("server") else "client"
                if name.endswith(TWIN):  # refused, or too late: the run was over
                    dooms.pop(name.removesuffix(TWIN), None)
                    assert code in (0, 1), f"{name} ended with {code}\n{_logs(folder)}"
                    refused = code == 1 and ") goes on in " in (folder / f"{name}.log").read_text()
                    assert refused or code == 0, _logs(folder)
                    story.kills[f"{party}, double start"] += refused
                    continue
                doom = dooms.pop(name, None)
                if code == 0:
                    over.add(name)
                    continue
                expected = DISK_FULL if doom == FULL else -SIGKILL
                assert code == expected, f"{name} ended with {code}, not {expected}\n{_logs(folder)}"
                if doom == "truncated snapshot":
                    doom = doom if _truncate_newest(folder, name) else "any"
                story.kills[f"{party}, {doom}"] += 1
                start(name)
        story.faults = relay.done
    story.seconds = round(time.monotonic() - began, 1)
    story.returns = check(plan, folder, sealed=identities is not None)
    return story


def check(plan: str, folder: Path, sealed: bool = False) -> int:
    """The run is the undisturbed one: weights, figures, messages, and each update exactly once."""
    local, heard = reference(plan)
    names = NAMES[: FAULTED[plan].clients]
    server, _ = checkpoint.load(folder / "server" / "server.safetensors")
    refuse_other_tensors(dict(local.server.body.state_dict()), server)
    for number, name in enumerate(names):
        theirs, _ = checkpoint.load(folder / name / "client.safetensors")
        kept = {n: t for n, t in local.clients[number].memory().items() if n.startswith("optimizer.")}
        refuse_other_tensors(local.coordinator.shown(number) | kept or export(local.networks[number]), theirs)
    result = json.loads((folder / "server" / "result.json").read_text())
    assert result["exact"] and result["skipped"] == [] and result["refused"].keys() <= {"superseded", "rate"}
    assert (result["steps"], result["epochs"]) == (local.progress.step, local.progress.epoch)
    assert result["best_epoch"] == local.progress.best.epoch
    refuse_other_crossings(local, result["ledger"], sealed)
    history = [json.loads(line) for line in (folder / "server" / "history.jsonl").read_text().splitlines()]
    assert [row.get("val") for row in history] == [row.get("val") for row in local.progress.history]
    # The step table: of all updates ever made, those that are in the weights are each step once, in order.
    steps, counts = audited(folder / "server.table", len(names))
    assert steps == heard
    for number, name in enumerate(names):
        (own,), _ = audited(folder / f"{name}.table", 1)
        assert own == list(range(local.progress.taken[number]))
    return counts["return"]


def _has_its_folder(folder: Path) -> bool:
    """Whether a process holds its lock. Looked up where the system lists locks: to try it would be to hold it."""
    lock, listed = folder / LOCK, Path("/proc/locks")
    if not lock.exists() or not listed.exists():
        return False
    return any(line.split()[5].endswith(f":{lock.stat().st_ino}") for line in listed.read_text().splitlines())


def _truncate_newest(folder: Path, name: str) -> bool:
    """Half of the newest snapshot of a party that was killed, if all still have an older one in common.

    While a snapshot is being taken some have a newer pair than others: then two troubles at once would be too many.
    """
    time.sleep(0.3)  # those who live may be writing theirs
    numbers = {one: Snapshots(folder / one / "snapshots").numbers() for one in ("server", *NAMES)}
    *older, newest = numbers[name] or [0]
    if not older or not set(older).intersection(*(numbers[one] for one in numbers if one != name)):
        return False
    path = folder / name / "snapshots" / f"snapshot-{newest}.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    return True


def _port(folder: Path) -> int | None:
    path = folder / "port"
    return int(path.read_text()) if path.exists() else None


def _logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
