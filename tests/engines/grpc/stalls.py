"""Certified attackers that try to stall everybody: how many steps a second an honest client makes meanwhile.

    python tests/engines/grpc/stalls.py [--seconds 6]

Server and honest client have one core, the attacker the other. The attacker has a certificate of the same authority:
that of a client of the run, or of nobody in it.
"""

import argparse
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from peers import Peer, data, hello, memory
from rehearsal import NAMES, Rehearsal
from toys import tiny_plan

from cutlayer.core.message import Kind
from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.session import Type, note

PLAN = tiny_plan(clients=2, batch_size=8, epochs=4000)
MEMBERS = NAMES[:2]


def many_empty_tensors(count: int = 65_535) -> bytes:
    """A PREDICT of a megabyte in which there is nothing."""
    entries = b"".join(b"\5" + b"%05d" % n + struct.pack("<BBBBII", 0, 0, 0, 1, 0, 0) for n in range(count))
    head = struct.pack("<2sBBIQH", b"CL", 1, Kind.PREDICT, 1, 0, count)
    return head + entries + bytes(-len(head + entries) % 16)


def predicts(address: Address, over: threading.Event) -> None:
    """Visits, and sends what takes long to read; again when it is sent away."""
    frame = many_empty_tensors()
    while not over.is_set():
        with suppress(Exception), Peer(address) as peer:
            peer.greet(hello(PLAN, "ward-b", purpose="predict"))
            peer.send(data(frame[: 1 << 20], last=False, total=len(frame)), data(frame[1 << 20 :], total=len(frame)))
            peer.refusal(5.0)


def keeps_silent(address: Address, over: threading.Event) -> None:
    """Opens a stream and says nothing; again when it is sent away."""
    while not over.is_set():
        with suppress(Exception), Peer(address) as peer:
            peer.read(15.0)


def calls(address: Address, over: threading.Event) -> None:
    """Greets with nonsense as fast as it is answered."""
    while not over.is_set():
        with suppress(Exception), Peer(address) as peer:
            peer.send(note(Type.HELLO, {"name": "?"})).refusal(5.0)


ATTACKS = {
    "12 clients' predictions of 65,535 empty tensors": ("ward-b", predicts, 12),
    "24 silent streams of a stranger": ("stranger", keeps_silent, 24),
    "24 silent streams of a client": ("ward-b", keeps_silent, 24),
    "12 strangers that call again and again": ("stranger", calls, 12),
}


def attack(name: str, port: int, folder: Path, seconds: float, core: int | None, begun: Any) -> None:
    pin(core)
    who, act, count = ATTACKS[name]
    address = Address(f"localhost:{port}", certs.read_identity(folder / who, "client"))
    over = threading.Event()
    for _ in range(count):
        threading.Thread(target=act, args=(address, over), daemon=True).start()
    begun.set()
    time.sleep(seconds)
    os._exit(0)


def pin(core: int | None) -> None:
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def rate(run: Rehearsal, seconds: float) -> tuple[float, float]:
    """Steps a second, and in a second of this process's own time, of which others on the machine take nothing."""
    began, used, before = time.monotonic(), time.process_time(), run.host.progress.step
    time.sleep(seconds)
    made = run.host.progress.step - before
    return made / (time.monotonic() - began), made / (time.process_time() - used)


def measure(
    folder: Path, seconds: float, cores: tuple[int | None, int | None], names: list[str] | None = None
) -> dict[str, dict[str, float]]:
    """Steps a second, undisturbed and under each attack, by turns."""
    certs.make(folder / "certs", ["localhost", "127.0.0.1"], [*MEMBERS, "stranger"])
    pin(cores[0])
    run = Rehearsal(PLAN, folder, Limits(every=10**6, deadline=60.0), names=MEMBERS, identities=folder / "certs")
    for name in MEMBERS:
        run.join(name)
    run.serve()
    while run.service.host is None or run.host.progress.step < 50:
        assert not run.errors, run.errors
        time.sleep(0.05)
    found, spawn = {}, multiprocessing.get_context("spawn")
    for name in names or ATTACKS:
        before, had = rate(run, seconds), memory()
        begun = spawn.Event()
        enemy = spawn.Process(target=attack, args=(name, run.port, folder / "certs", seconds + 2, cores[1], begun))
        enemy.start()
        assert begun.wait(60)
        time.sleep(1.0)  # until its first calls are there
        under, has = rate(run, seconds), memory()
        enemy.join()
        time.sleep(1.0)
        after = rate(run, seconds)
        usual, usual_own = ((one + other) / 2 for one, other in zip(before, after, strict=True))
        found[name] = {
            "undisturbed": round(usual, 2),
            "attacked": round(under[0], 2),
            "share": round(under[0] / usual, 3),
            "share of own time": round(under[1] / usual_own, 3),
        }
        found[name]["MiB"] = round(has - had, 1)
        print(name, found[name], file=sys.stderr, flush=True)
        assert not run.errors, run.errors
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", help="a word of the attack's name")
    given = parser.parse_args()
    chosen = [name for name in ATTACKS if given.only is None or given.only in name]
    with tempfile.TemporaryDirectory() as there:
        mine, other = sorted(os.sched_getaffinity(0))[:2]
        print(json.dumps(measure(Path(there), given.seconds, (mine, other), chosen), indent=1), flush=True)
        os._exit(0)
