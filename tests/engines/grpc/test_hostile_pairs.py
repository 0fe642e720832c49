"""Laws over pairs: whatever one client does in whichever kind of round, the run ends, and the others with numbers."""

import random
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
import torch
from peers import data
from rehearsal import NAMES, Rehearsal, open_site, refuse_other_tensors, undisturbed_but_for
from toys import TinyNet, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.engines.books import Books
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import channel as uplink
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.attendance import Attendance
from cutlayer.engines.grpc.channel import GaveUp
from cutlayer.engines.grpc.session import Refused
from cutlayer.rules import FedAdam, Median, Scaffold
from cutlayer.training.coordinator import Coordinator
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Federated, Vanilla
from cutlayer.wire import frames as wire

LIMITS = Limits(every=2, deadline=1.0, greeting=1.0, frame=0.5, review=0.1, message=1 << 20)
FEW = {"epochs": 2, "batch_size": 12, "clients": 3, "net": TinyNet(norm="group")}
PLANS = {
    "a relay": tiny_plan(**FEW),
    "a vanilla relay": tiny_plan(**FEW, protocol=Vanilla()),
    "SplitFed, FedAdam": tiny_plan(**FEW, rounds=SplitFed(), rule=FedAdam(lr=0.05)),
    "SplitFed, Median": tiny_plan(**FEW, rounds=SplitFed(), rule=Median()),
    "one body, SCAFFOLD": tiny_plan(
        **FEW, rounds=SplitFed(version=2), rule=Scaffold(), client_optimizer=SGD(lr=0.05, momentum=0.0)
    ),
    "a wave": tiny_plan(**FEW, rounds=Wave()),
    "a fused wave": tiny_plan(**FEW, rounds=Wave(fused=True)),
    "federated": tiny_plan(**FEW, rounds=SplitFed(), protocol=Federated()),
}
HOW = (
    "silent", "slow", "oversized", "wrong shape", "NaN", "NaN weights", "wrong step", "replayed", "too many", "gone",
)  # fmt: skip


class Hostile:
    """A client that does its work up to a moment, and from then on something else, every time it comes."""

    def __init__(self, run, name, how, after):
        self.run, self.name, self.how, self.after, self.over = run, name, how, after, threading.Event()

    def work(self):
        """To its ban, or until nobody is there any more."""
        while not self.over.is_set():
            try:
                folder = self.run.folder / self.name
                site = open_site(
                    self.run.plan, self.name, self.run.address(self.name), folder, self.run.parts, give_up=3.0
                )
            except GaveUp:
                return
            self.spoil(site)
            try:
                site.run()
                return
            except GaveUp:
                return
            except Refused as error:
                if error.name == "banned":
                    return
            except (RuntimeError, OSError):  # its own server's last words, or ours: it comes again
                pass
            finally:
                site.channel.close()

    def spoil(self, site):
        plain, count = site.channel.send, [0]

        def send(frame):
            frame = bytes(frame)
            message = wire.decode(frame)
            if message.kind in (Kind.REWIND, Kind.KEEP, Kind.END, Kind.EVALUATE, Kind.PREDICT):
                plain(frame)
                return
            count[0] += 1
            if count[0] <= self.after:
                plain(frame)
            else:
                self.harm(site, plain, frame, message)

        site.channel.send = send

    def harm(self, site, plain, frame, message):
        number = site.channel._session.sent + 1
        if self.how == "silent":
            self.over.wait(20.0)
            raise RuntimeError("the test is over")
        if self.how == "gone":
            site.channel.close()
            raise RuntimeError("its process is killed")
        if self.how == "slow":
            site.channel._outgoing.put(data(frame[:8], last=False, number=number, total=1 << 19))
        elif self.how == "oversized":
            site.channel._outgoing.put(data(b"x", last=False, number=number, total=1 << 30))
        elif self.how in ("replayed", "too many"):
            with suppress(Refused):  # its own window is no matter to the server
                for _ in range(2 if self.how == "replayed" else 12):
                    plain(frame)
        else:
            plain(wire.encode(spoilt(message, self.how)))


def spoilt(message, how):
    """As far as there is something to spoil; the rest goes as it is."""
    if how == "wrong step":
        return replace(message, step=message.step + 1)
    tensors = dict(message.tensors)
    for name, t in tensors.items():
        if not t.is_floating_point() or name.startswith("net.") != (how == "NaN weights"):
            continue
        if how != "wrong shape":
            tensors[name] = t * torch.nan
        elif t.dim() > 1:
            tensors[name] = t[:, :1].clone()
    return replace(message, tensors=tensors)


def refuse_harm_to_others(plan, result, host):
    """Whatever is noted is noted of the hostile client, and the others have gone all the way."""
    ended, epochs = set(result["ended"]), result["epochs"]
    assert ended >= {"ward-a", "ward-b"}, f"ward-a and ward-b should have heard the end, not only {sorted(ended)}"
    assert epochs == plan.epochs, f"{epochs} epochs were trained instead of {plan.epochs}"
    rejected = {one["client"] for one in host.coordinator.rejected}
    for what, who in (
        ("skipped turns", {row["client"] for row in result["skipped"]}),
        ("clients left out", {one["client"] for one in result["left_out"]}),
        ("updates left out", {NAMES[client] for client in rejected - {None}}),
    ):
        assert who <= {"ward-c"}, f"{what} should be ward-c's alone, and are of {sorted(who)}"
    nothing_missed = result["skipped"] == result["left_out"] == []
    assert nothing_missed or not result["exact"], "the result says exact, and turns or clients were left out"
    lost = [name for name, t in host.coordinator.own_tensors() if t.is_floating_point() and not t.isfinite().all()]
    assert not lost, f"NaN or infinity in {lost[:5]}"


@pytest.fixture
def came(monkeypatch):
    """Clients that try again soon, a server that soon has enough, and skipped turns that say which they were.

    In the set: the turns (client, epoch, first batch) whose answers came, whatever became of them later.
    """
    skip, received, found = Attendance.skip, Coordinator.received, set()

    def noted(coordinator, turn, done):
        found.add((turn.client, coordinator.progress.epoch, turn.first))
        return received(coordinator, turn, done)

    def skipped(attendance, turn, epoch):
        skip(attendance, turn, epoch)
        attendance.skipped[-1]["first"] = turn.first

    monkeypatch.setattr(Coordinator, "received", noted)
    monkeypatch.setattr(Attendance, "skip", skipped)
    monkeypatch.setattr(admission, "LOSSES", 2)
    monkeypatch.setattr(uplink, "RETRY", 0.1)
    return found


@pytest.fixture
def otherwise(monkeypatch):
    """Messages that went once more as they had gone, and would be others by now. A batch is released once: one that
    was computed after a turn of the hostile client still tells of that turn when the turn itself is undone."""
    release, found = Books.release, []

    def released(books, key, frame):
        sent = release(books, key, frame)
        if sent is not frame and sent != bytes(frame):
            found.append(key)
        return sent

    monkeypatch.setattr(Books, "release", released)
    return found


CASES = list(product(PLANS, HOW))
random.Random(20).shuffle(CASES)


@pytest.mark.one_in(40)
@pytest.mark.parametrize(("name", "how"), CASES, ids=[f"{name}, {how}" for name, how in CASES])
def test_whatever_one_client_does_the_others_end_with_numbers(name, how, tmp_path, came, otherwise, patient_with):
    patient_with("ward-a", "ward-b")
    plan, draw = PLANS[name], random.Random(f"{name}/{how}")
    a_turn = 3 if plan.protocol.crosses else 1  # messages in which a client tells of a batch: it may do some well
    run = Rehearsal(plan, tmp_path, limits=LIMITS)
    run.join("ward-a")
    run.join("ward-b")
    hostile = Hostile(run, "ward-c", how, after=draw.randrange(2 * a_turn + 1))
    beside = threading.Thread(target=hostile.work, daemon=True)
    beside.start()
    run.serve()
    try:
        result = run.end(40.0)  # no error of the others, and no end that does not come
    finally:
        hostile.over.set()
        beside.join(10.0)
    host, tensors = run.host, run.host.coordinator.tensors()
    refuse_harm_to_others(plan, result, host)
    skipped = {(NAMES.index(row["client"]), row["epoch"], row["first"]) for row in result["skipped"]}
    assert skipped & came or not otherwise, f"{otherwise[:3]} would be others the second time, and no turn was undone"
    merged_without_it = any(one["client"] is not None for one in host.coordinator.rejected)  # test_left_out.py's
    if not merged_without_it and not otherwise:
        refuse_other_tensors(undisturbed_but_for(plan, skipped).coordinator.tensors(), tensors)
