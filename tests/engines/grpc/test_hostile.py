"""Clients that want to harm, over real sockets: they are refused by name, and those beside them notice nothing."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from peers import Peer, Without, data, hello, memory
from progress import Progress, commit
from rehearsal import (
    Rehearsal,
    open_site,
    refuse_other_counts,
    refuse_other_tensors,
    refuse_other_weights,
    undisturbed,
)
from siege import ROOM, SIEGE, Counts, Siege, besieged, into_a_session, into_decode_and_door, into_the_lobby
from toys import TASK, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import service as network
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import GaveUp, call, status
from cutlayer.engines.grpc.service import ENROLL
from cutlayer.engines.grpc.session import CHUNK, HEADER, WINDOW, Refused, Type, note, read_note
from cutlayer.engines.grpc.visitor import PredictOnlyClient
from cutlayer.guards import Clip, LightSplit
from cutlayer.wire import frames as wire
from cutlayer.wire.ledger import Ledger

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"
MIB = 1 << 20
QUICK = Limits(every=2, deadline=20.0, greeting=2.0, frame=0.6, review=0.1, message=4 * MIB, visitors=3)
PLAN = tiny_plan(epochs=2, batch_size=8, clients=3, guard=Clip(norm=2.0))


@pytest.fixture
def endless(monkeypatch):
    """A client may be wrong as often as it likes, and come as often."""
    monkeypatch.setattr(admission, "STRIKES", 10**6)
    monkeypatch.setattr(admission, "LOSSES", 10**6)
    monkeypatch.setattr(network, "CONNECTIONS", (10**6, 10.0))


class Stage:
    """A run in which two honest clients wait for the third, whose place is taken by whoever likes."""

    def __init__(self, folder, limits=QUICK, plan=PLAN):
        self.run = Rehearsal(plan, folder, limits=limits)
        self.plan = plan
        self.address = self.run.address("ward-c")
        self.run.join("ward-a")
        self.run.join("ward-b")
        self.run.serve()
        self._wait(lambda: self.status()["missing"] == ["ward-c"])

    def status(self):
        return self.run.service.status()

    @property
    def refused(self):
        return self.status()["refused"]

    def _wait(self, until, patience=20.0):
        began = time.monotonic()
        while not until():
            assert time.monotonic() - began < patience, self.status()
            time.sleep(0.02)

    def peer(self, **how):
        return Peer(self.address, **how)

    def hello(self, **changes):
        return hello(self.plan, changes.pop("name", "ward-c"), **changes)

    def finish(self):
        """The third client comes after all, and everybody ends where they would have ended anyway."""
        self.run.join("ward-c")
        result = self.run.end()
        assert result["exact"], result
        local = undisturbed(self.plan)
        refuse_other_weights(local, self.run)
        refuse_other_counts(local, self.run)
        return result


@pytest.fixture
def stage(tmp_path, endless):
    made = Stage(tmp_path)
    yield made
    made.run.service.stop()


# ------------------------------------------------------------------------------- greetings
BAD_HELLOS = {
    "another version": ({"protocol": 2}, "version"),
    "no version": ({"protocol": None}, "version"),
    "an unknown client": ({"name": "ward-z"}, "unknown client"),
    "no name": ({"name": []}, "unknown client"),
    "a name that cannot be written": ({"name": "\ud800"}, "unknown client"),
    "another plan": ({"plan": "0" * 16}, "plan"),
    "a plan of many words": ({"plan": None, "fields": {"guard": "x" * 50_000}}, "plan"),
    "a plan that is none": ({"plan": {"a": 1}, "fields": [1, 2]}, "plan"),
    "batches beyond counting": ({"batches": 2**31}, "garbage"),
    "batches in words": ({"batches": "many"}, "garbage"),
    "batches below zero": ({"batches": -1}, "garbage"),
    "snapshots beyond counting": ({"snapshots": [10**30]}, "garbage"),
    "snapshots below zero": ({"snapshots": [-1]}, "garbage"),
    "snapshots in words": ({"snapshots": "all"}, "garbage"),
    "meaning in words": ({"meaning": "all"}, "garbage"),
    "meaning of what nobody names": ({"meaning": {"rows": "0" * 64}}, "garbage"),
    "meaning in the clear": ({"meaning": {"classes": "sick, well"}}, "garbage"),
    "meaning as a number": ({"meaning": {"classes": 7}}, "garbage"),
    "no task": ({"task": None}, "garbage"),
    "a task of infinite size": ({"task": [[float("inf")], 3, {}, 0]}, "garbage"),
    "a task of no size": ({"task": [[], 3, {}, 0]}, "data"),
    "images of 2^32 pixels": ({"task": [[1, 65536, 65536], 3, {}, 0]}, "data"),
    "one class": ({"task": [[1, 12, 12], 1, {}, 0]}, "data"),
    "other data than the others": ({"task": [[1, 14, 14], 3, {}, 0]}, "data"),
    # Before the next two: those are known by their greeting, and the run begins although they are sent away.
    "a visit before there is a server": ({"purpose": "predict"}, "busy"),
    "heard in words": ({"heard": "all"}, "garbage"),
    "heard below zero": ({"heard": -1}, "garbage"),
}


def test_every_bad_greeting_has_a_name(stage):
    expected: dict[str, int] = {}
    for label, (changes, name) in BAD_HELLOS.items():
        with stage.peer() as peer:
            peer.send(note(Type.HELLO, stage.hello(**changes)))
            assert peer.refusal() == name, label
        expected[name] = expected.get(name, 0) + 1
    raw = {
        "nothing": b"",
        "bytes": b"\x00" * 40,
        "not JSON": HEADER.pack(b"CP", Type.HELLO, 1, 0, 0, 5) + b"{abc}",
        "JSON without end": HEADER.pack(b"CP", Type.HELLO, 1, 0, 0, 50_000) + b"[" * 50_000,
        "data first": data(b"abc"),
        "a refusal": note(Type.REFUSED, {"name": "a name of my choice", "text": ""}),
        "a welcome": note(Type.WELCOME, {}),
    }
    for label, packet in raw.items():
        with stage.peer() as peer:
            assert peer.send(packet).refusal() == "garbage", label
        with pytest.raises(Refused) as found:
            read_note(call(stage.address, ENROLL, packet, 5.0), Type.WELCOME)
        assert found.value.name == "garbage", label
    expected["garbage"] = expected.get("garbage", 0) + 2 * len(raw)
    with stage.peer() as peer:
        assert peer.send(note(Type.HELLO, stage.hello(fields={"x": "y" * 70_000}))).refusal() == "oversize"
    assert stage.refused == expected | {"oversize": 1}
    assert status(stage.address)["refused"] == stage.refused  # and whoever asks is told
    assert stage.finish()["refused"] == expected | {"oversize": 1}


def test_the_first_client_does_not_make_the_server_build_what_it_says(tmp_path):
    """Nobody has said yet what the data are like: the plan says what they cannot be."""
    run = Rehearsal(PLAN, tmp_path, limits=QUICK)
    for task in ([[1, 65536, 65536], 3, {}, 0], [[7], 3, {}, 0], [[1, 1, 1], 3, {}, 0], [[1, 12, 12], 2**40, {}, 0]):
        with Peer(run.address("ward-a")) as peer:
            peer.send(note(Type.HELLO, hello(PLAN, "ward-a", task=task)))
            assert peer.refusal() == "data", task
    assert run.service.admission.task is None and len(run.service.admission.missing()) == 3
    for name in run.names:
        run.join(name)
    run.serve()
    assert run.end()["refused"] == {"data": 4}
    refuse_other_weights(undisturbed(PLAN), run)


def test_another_plan_is_refused_by_the_field_that_differs(stage):
    for changes, words in (
        (
            {"guard": LightSplit(ratio=2)},
            r"guard is Clip\(norm=2.0\) at the server, LightSplit\(ratio=2\) at the client",
        ),
        ({"batch_size": 9}, "batch_size is 8 at the server, 9 at the client.*the same plan for serve and join"),
        ({"seed": 5}, "seed is 0 at the server, 5 at the client"),
    ):
        with pytest.raises(Refused, match=words) as found:
            open_site(replace(PLAN, **changes), "ward-c", stage.address, stage.run.folder / "x", stage.run.parts)
        assert found.value.name == "plan"
    assert stage.refused == {"plan": 3}
    stage.finish()


# --------------------------------------------------------------------------- slow, large, many
def test_whoever_says_nothing_or_does_not_end_is_not_waited_for(stage):
    with stage.peer() as silent:  # connected, and never says who it is
        silent.send()
        assert silent.refusal() == "slow"
    with stage.peer() as peer:  # a frame that stops in the middle
        peer.greet(stage.hello())
        assert peer.send(data(b"abc", last=False, total=MIB)).refusal() == "slow"
    with stage.peer() as peer:  # a byte now and then
        peer.greet(stage.hello())
        done = threading.Event()

        def drip():
            while not done.wait(0.05):
                peer.send(data(b"x", last=False, total=MIB))

        threading.Thread(target=drip, daemon=True).start()
        assert peer.refusal() == "slow"
        done.set()
    with stage.peer() as peer:  # pieces of nothing
        peer.greet(stage.hello())
        assert peer.send(data(b"", last=False, total=MIB)).refusal() == "garbage"
    assert stage.refused == {"slow": 3, "garbage": 1}
    stage.finish()


def test_what_is_too_large_is_refused_before_it_is_there(stage):
    before = memory()
    for total in (4 * MIB + 1, 2**32 - 1):
        with stage.peer() as peer:
            peer.greet(stage.hello())
            assert peer.send(data(b"abc", last=False, total=total)).refusal() == "oversize"
    with stage.peer() as peer:  # a packet above what one may have: the transport itself ends it
        peer.greet(stage.hello())
        peer.send(data(bytes(2 * MIB)))
        assert "RESOURCE_EXHAUSTED" in peer.refusal()
    with stage.peer() as peer:  # a frame that is longer than it says
        peer.greet(stage.hello())
        peer.send(*[data(bytes(CHUNK), last=False, total=3 * MIB)] * 3)
        assert peer.refusal() == "garbage"
    with stage.peer() as peer:  # frames that nobody asked for, as many as it likes
        peer.greet(stage.hello())
        peer.send(*[data(bytes(CHUNK), number=number) for number in range(1, 3 * WINDOW)])
        assert peer.refusal() == "garbage"
    assert memory() - before < 60, "a connection holds two messages of 4 MiB, whatever is sent"
    assert stage.refused == {"oversize": 2, "garbage": 2}
    stage.finish()


def test_a_refusal_arrives_though_a_message_is_on_its_way(stage):
    """Decided while the server writes to a client that is slow to read: it reads the one, and then the other."""
    (connection,) = (one for one in stage.run.service.admission.connections if one.name == "ward-c")
    with stage.peer(deaf=True) as peer:
        peer.send(note(Type.HELLO, stage.hello()))
        stage._wait(lambda: connection.connected)
        push = connection._push
        assert push is not None
        push([data(bytes(CHUNK), last=False, total=4 * MIB)] * 16)  # more than a socket takes
        time.sleep(0.2)
        peer.send(data(b"", last=False, total=MIB))
        time.sleep(0.3)  # it is refused by now, and what is on its way still is
        peer.listen()
        assert peer.refusal() == "garbage"
    stage.finish()


def test_what_is_packed_is_not_unpacked_beyond_the_limit(stage):
    """A frame of a few bytes may claim gigabytes of zeros."""
    zeros = wire.encode(Message(Kind.KEEP, 2, 0, {"steps": torch.zeros(1 << 28)}))
    assert len(zeros) < 100
    with stage.peer() as peer:
        peer.greet(stage.hello())
        before = memory()
        stage._wait(lambda: stage.status().get("waiting_for"))  # everybody is there: the server asks
        peer.read()
        peer.send(data(bytes(zeros)))
        assert peer.refusal() == "garbage"
        assert memory() - before < 100
    stage.finish()


def test_connections_have_a_rate(stage, monkeypatch):
    monkeypatch.setattr(network, "CONNECTIONS", (4, 600.0))
    monkeypatch.setattr(network, "PENALTY", 0.0)
    names = []
    for _ in range(7):
        with stage.peer() as peer:
            peer.send(note(Type.HELLO, stage.hello(batches=-1)))
            names.append(peer.refusal())
    assert names == ["garbage"] * 4 + ["rate"] * 3
    monkeypatch.setattr(network, "CONNECTIONS", (4, 1.5))
    assert stage.finish()["refused"]["rate"] >= 3  # the honest one waited until it might


def test_names_that_are_none_are_not_kept(stage, monkeypatch):
    monkeypatch.setattr(network, "NAMES", 5)
    monkeypatch.setattr(network, "CONNECTIONS", (30, 0.2))
    seen = set()
    for number in range(20):
        with stage.peer() as peer:
            seen.add(peer.send(note(Type.HELLO, stage.hello(name=f"nobody-{number}"))).refusal())
        assert len(stage.run.service.network._came) <= 7
    assert seen <= {"unknown client", "rate"}
    time.sleep(0.3)
    stage.finish()


def test_a_second_connection_replaces_the_first(stage):
    with stage.peer() as first, stage.peer() as second:
        known = first.greet(stage.hello())
        assert second.greet(stage.hello(session=known["session"]))["session"] == known["session"]
        assert first.refusal() == "superseded"
    assert stage.refused == {"superseded": 1}
    stage.finish()


def test_more_visitors_than_there_is_room_for(stage):
    visitors = []
    with stage.peer() as place:
        place.greet(stage.hello())
        stage._wait(lambda: stage.run.service.host is not None)
        for number in range(QUICK.visitors):
            visitors.append(stage.peer())
            visitors[-1].greet(stage.hello(purpose="predict", name=("ward-b", "ward-c")[number % 2]))
        with stage.peer() as late:
            assert late.send(note(Type.HELLO, stage.hello(purpose="predict"))).refusal() == "busy"
        stage._wait(lambda: all(one.connected for one in stage.run.service.admission._visitors))
        visitors.pop().__exit__()
        stage._wait(lambda: not all(one.connected for one in stage.run.service.admission._visitors))
        with PredictOnlyClient(PLAN, TASK, "ward-a", stage.run.address("ward-a"), Ledger()) as welcome:
            answer = welcome.ask(Message(Kind.PREDICT, 0, 0, {"z": torch.zeros(2, 4, 5, 5)}))
            assert answer["u"].shape == (2, 7)
            with pytest.raises(Refused) as found:
                welcome.ask(Message(Kind.BACKWARD, 0, 0, {"du": torch.zeros(2, 7)}))
            assert found.value.name == "kind"
    for one in visitors:
        one.__exit__()
    assert stage.refused["busy"] == 1 and stage.refused["kind"] == 1
    stage.finish()


# ----------------------------------------------------------------------- what is no gRPC at all
def test_bytes_of_other_protocols_are_not_answered(stage):
    port = stage.run.service.network.port
    for junk in (
        b"\x00" * 5000,
        b"\xff" * 100,
        b"SSH-2.0-x\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            line.sendall(junk)
            line.settimeout(5)
            try:
                while line.recv(4096):
                    pass
            except (ConnectionError, TimeoutError):
                pass
    request = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    request.request("GET", "/cutlayer.Cut/Status")
    with pytest.raises((http.client.HTTPException, ConnectionError, TimeoutError)):
        request.getresponse()
    with grpc.insecure_channel(stage.address.target) as channel:
        with pytest.raises(grpc.RpcError) as found:
            channel.unary_unary("/cutlayer.Cut/Secrets")(b"", timeout=60)
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as found:  # what is unpacked could be of any size
            channel.unary_unary(ENROLL)(bytes(MIB), timeout=60, compression=grpc.Compression.Gzip)
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED
    idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(50)]
    stage.finish()
    for one in idle:
        one.close()


# --------------------------------------------------------------------------------- in its turn
def spoilt(frame, how):
    """What a client sends that has gone bad."""
    message = wire.decode(bytes(frame))
    if how == "bytes":
        return b"\x00" * 64
    if how == "another step":
        return wire.encode(replace(message, step=message.step + 1))
    huge = {name: torch.full_like(t, 3e38) if t.is_floating_point() else t for name, t in message.tensors.items()}
    return wire.encode(replace(message, tensors=huge))


def misbehave(run, name, how, after, over=None):
    """A client that does its work for `after` messages and then does not, every time it comes; ends when shut out.

    The others may have ended before it comes again: then nobody is there to say so.
    """
    while True:
        try:
            site = open_site(run.plan, name, run.address(name), run.folder / name, run.parts, give_up=5.0)
        except GaveUp:
            return
        plain, count = site.channel.send, [0]

        def send(frame, site=site, plain=plain, count=count):
            count[0] += 1
            kind = wire.decode(bytes(frame)).kind
            if count[0] <= after or kind in (Kind.REWIND, Kind.KEEP):
                plain(frame)
            elif how == "silence":
                over.wait(30.0)
                raise Refused("banned", "the test is over")
            elif how == "garbage in a packet":
                site.channel._outgoing.put(b"CX" + bytes(40))
            else:
                plain(spoilt(frame, how))

        site.channel.send = send
        try:
            site.run()
        except GaveUp:
            return
        except Refused as error:
            site.channel.close()
            if error.name == "banned":
                return


@pytest.mark.one_in(2)
@pytest.mark.parametrize("after", [2, 4], ids=["in its first step", "after a step"])
@pytest.mark.parametrize("how", ["bytes", "garbage in a packet", "another step", "numbers beyond reason"])
def test_three_strikes_and_the_run_goes_on_without_it(how, after, tmp_path):
    """Nothing of its turns stays: the others end where they would have ended without it."""
    plan = replace(PLAN, local_steps=0)  # two batches
    run = Rehearsal(plan, tmp_path, limits=QUICK)
    run.join("ward-a")
    run.join("ward-b")
    run._start(lambda: misbehave(run, "ward-c", how, after))
    run.serve()
    result = run.end()
    assert not result["exact"] and {row["client"] for row in result["skipped"]} == {"ward-c"}
    assert run.host.connections[2].strikes == admission.STRIKES
    refuse_other_weights(undisturbed(replace(plan, partition=Without((2,)))), run)


def test_a_client_that_confirms_nothing_is_shut_out(tmp_path):
    """What is not confirmed is kept: a server that kept all of it would run out of memory, one that fails ends."""
    plan = replace(PLAN, local_steps=0, batch_size=2)
    run = Rehearsal(plan, tmp_path, limits=QUICK)
    run.join("ward-a")
    run.join("ward-b")
    run.serve()

    def work():
        while True:
            site = open_site(plan, "ward-c", run.address("ward-c"), run.folder / "ward-c", run.parts, give_up=20.0)

            def send(frame, site=site):
                for packet in site.channel._session.send(frame):
                    site.channel._outgoing.put(packet[:8] + bytes(4) + packet[12:])  # heard: nothing

            site.channel.send = send
            try:
                site.run()
            except Refused as error:
                site.channel.close()
                if error.name == "banned":
                    return

    run._start(work)
    result = run.end()
    assert result["refused"]["window"] == 3 and not result["exact"]
    refuse_other_weights(undisturbed(replace(plan, partition=Without((2,)))), run)


def test_a_turn_that_is_given_up_in_the_middle_leaves_nothing_behind(tmp_path, patient_with):
    """A client that learns a little and then stays away: its turn counts as a whole or not at all."""
    patient_with("ward-a", "ward-b")
    plan = replace(PLAN, local_steps=0)
    run = Rehearsal(plan, tmp_path, limits=replace(QUICK, deadline=0.7))
    run.join("ward-a")
    run.join("ward-b")
    over = threading.Event()
    silent = threading.Thread(target=lambda: misbehave(run, "ward-c", "silence", 4, over), daemon=True)
    silent.start()
    run.serve()
    result = run.end()
    over.set()
    silent.join(10.0)
    assert not result["exact"] and {row["client"] for row in result["skipped"]} == {"ward-c"}
    refuse_other_tensors(
        undisturbed(replace(plan, partition=Without((2,)))).tensors(), run.host.coordinator.tensors()
    )


# ------------------------------------------------------------------------------------ damage
def test_damaged_frames_are_refused_by_name():
    """A slice of the campaign, without sockets: whatever is damaged, nothing but a named refusal comes of it."""
    frames = into_decode_and_door(PLAN, 4000, seed=7)
    assert frames["garbage"] > 2000 and any(name.startswith("turn: ") for name in frames)
    assert set(into_a_session(4000, seed=7)) <= {"garbage", "oversize", "session", "a piece", "a frame"}
    assert set(into_the_lobby(PLAN, 600, seed=7)) <= {
        "garbage", "version", "plan", "unknown client", "data", "busy", "oversize", "session", "let in",
    }  # fmt: skip


def test_a_siege(tmp_path):
    """A slice of the campaign over sockets: the server stays small, and nobody's weights change."""
    besieged(Siege(SIEGE, tmp_path, Counts(0, 0, 0, in_turn=30, visitor=60, outsider=60, raw=40), seed=11), 90.0)


# Of a million damaged pieces; tests/wire/codecs/test_fuzz.py has the others.
DIRECT = {
    "frames": (lambda seed: into_decode_and_door(SIEGE, 20_000, seed), 12),
    "packets": (lambda seed: into_a_session(20_000, seed), 5),
    "greetings": (lambda seed: into_the_lobby(SIEGE, 2_000, seed), 5),
}
SIEGES, ONE_SIEGE = 10, Counts(0, 0, 0, in_turn=300, visitor=2_000, outsider=2_200, raw=500)


def direct_block(part):
    """A block of damaged pieces straight into the checks: `part` says into which, and its seed."""
    where, seed = part.split()
    began, before = time.monotonic(), memory()
    outcomes = DIRECT[where][0](int(seed))
    grown = memory() - before
    assert grown < ROOM
    return {"outcomes": outcomes, "seconds": time.monotonic() - began, "grown": grown, "commit": commit()}


def one_siege(part, folder):
    """A siege over sockets, with a server of its own."""
    siege = Siege(SIEGE, folder / part.replace(" ", "-"), ONE_SIEGE, seed=int(part.split()[1]))
    end = besieged(siege, 3000.0)
    return {
        "outcomes": siege.found, "refused": end["result"]["refused"], "rewinds": end["result"]["rewinds"],
        "seconds": end["seconds"], "before": end["memory_before"], "most": end["memory_most"], "commit": commit(),
    }  # fmt: skip


def summed(tables):
    return dict(sorted(sum((Counter(table) for table in tables), Counter()).items()))


@pytest.mark.campaign
def test_the_whole_siege(tmp_path):
    """In blocks, straight into the checks, then over sockets; a campaign that is killed goes on."""
    progress = Progress("hostile")
    wanted = [f"{where} {seed}" for where, (_, count) in DIRECT.items() for seed in range(1, count + 1)]
    direct = dict(progress.parts(wanted, direct_block))
    sieges = dict(
        progress.parts([f"siege {seed}" for seed in range(4, 4 + SIEGES)], lambda p: one_siege(p, tmp_path))
    )
    found = {
        where: summed(direct[f"{where} {seed}"]["outcomes"] for seed in range(1, count + 1))
        for where, (_, count) in DIRECT.items()
    }
    # A frame that is read is looked at twice, as of a turn and as of a visit.
    pieces = {where: sum(c for n, c in table.items() if not n.startswith("visit")) for where, table in found.items()}
    pieces |= {name: count * len(sieges) for name, count in vars(ONE_SIEGE).items() if count}
    over = list(sieges.values())
    figures = {
        "command": "python -m pytest -m campaign tests/engines/grpc/test_hostile.py",
        "commits": sorted({block["commit"] for block in (*direct.values(), *over)}),
        "plan": repr(SIEGE.public()),
        "damaged": {**pieces, "total": sum(pieces.values())},
        "without_sockets": {
            "seconds": round(sum(block["seconds"] for block in direct.values()), 1),
            "memory_grown_mib": round(max(block["grown"] for block in direct.values()), 1),
            "outcomes": found,
        },
        "over_sockets": {
            "sieges": len(over),
            "seconds": round(sum(block["seconds"] for block in over), 1),
            "server_memory_mib": {
                "before": round(max(block["before"] for block in over), 1),
                "most": round(max(block["most"] for block in over), 1),
                "grown": round(max(block["most"] - block["before"] for block in over), 1),
                "allowed_to_grow": ROOM,
            },
            "outcomes": {
                name: summed(block["outcomes"][name] for block in over) for name in sorted(over[0]["outcomes"])
            },
            "refused_at_the_server": summed(block["refused"] for block in over),
            "rewinds": sum(block["rewinds"] for block in over),
            "weights_equal_to_an_undisturbed_run": len(over),  # the test ends at the first siege that is not
        },
    }
    (EVIDENCE / "hostile.json").write_text(json.dumps(figures, indent=1) + "\n")
