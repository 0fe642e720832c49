"""One certificate cannot stall the rest, no server can exhaust a client, and what a client claims is compared."""

import os
import queue
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
import stalls
import torch
from peers import Peer, hello
from rehearsal import NAMES, Rehearsal
from toys import TASK, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc import certs, channel
from cutlayer.engines.grpc import service as network
from cutlayer.engines.grpc.admission import STRIKES, Admission, Limits
from cutlayer.engines.grpc.carrier import decoded
from cutlayer.engines.grpc.channel import PACKETS, Address, GaveUp, Incoming, ServerChannel
from cutlayer.engines.grpc.connection import Absent
from cutlayer.engines.grpc.pace import Pace
from cutlayer.engines.grpc.session import Refused, Type, note
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.guards import KAnonymous
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.protocols import UShaped, Vanilla

PLAN = tiny_plan(clients=2, batch_size=8, epochs=1)


def wait_for(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


# -------------------------------------------------------------------- a client against the server
@pytest.fixture
def stage(authority, tmp_path):
    return Rehearsal(PLAN, tmp_path, Limits(greeting=20.0), names=NAMES[:2], identities=authority)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stalls")
    certs.make(folder, ["localhost"], [*NAMES[:2], "stranger"])
    return folder


def test_a_stranger_is_refused_before_it_says_a_word(stage):
    """Silent streams of a certificate that is none of the clients' took all places, ten seconds each."""
    for _ in range(3):
        with Peer(stage.address("stranger")) as silent:
            assert silent.refusal() == "unknown client"


def test_silent_connections_of_a_client_are_few(stage):
    silent = [Peer(stage.address("ward-b")) for _ in range(network.SILENT)]
    wait_for(lambda: stage.service.network._silent["ward-b"] == network.SILENT)
    with Peer(stage.address("ward-b")) as late:
        assert late.refusal() == "busy"
    with Peer(stage.address("ward-a")) as other:  # which has places of its own
        assert other.send(note(Type.HELLO, hello(PLAN, "ward-a", batches=-1))).refusal() == "garbage"
    for one in silent:
        one.__exit__()


def test_who_calls_too_often_waits_for_its_refusal(stage, monkeypatch):
    monkeypatch.setattr(network, "CONNECTIONS", (1, 60.0))
    monkeypatch.setattr(network, "PENALTY", 0.4)
    for name, least in (("unknown client", 0.0), ("rate", 0.4)):
        began = time.monotonic()
        with Peer(stage.address("stranger")) as peer:
            assert peer.refusal() == name
        assert time.monotonic() - began >= least


def test_visitors_of_one_client_take_half_of_the_room_and_bad_ones_are_banned():
    room, going = Admission(PLAN, NAMES[:2], Limits(visitors=4)), threading.Event()
    room.predictor = lambda visitor: assert_over(going)
    facts = hello(PLAN, "ward-a", purpose="predict")

    def come(name):
        visitor = room.admit(name, facts)
        visitor.connect(facts, lambda packets: None, lambda error: None)
        room.welcomed(visitor)
        return visitor

    held = [come("ward-a"), come("ward-a")]
    with pytest.raises(Refused, match="2 connections of ward-a predict already"):
        come("ward-a")
    come("ward-b")
    held[0].strikes = STRIKES
    going.set()
    wait_for(lambda: room._struck["ward-a"] == STRIKES)
    with pytest.raises(Refused, match="refused 3 times while it predicted") as found:
        come("ward-a")
    assert found.value.name == "banned"


def test_a_visitor_whose_greeting_is_refused_costs_no_thread(tmp_path):
    """Each had one for a deadline, and counted among the visitors only until the next one came."""
    run = Rehearsal(PLAN, tmp_path, names=NAMES[:2])
    going = threading.Event()
    run.service.admission.predictor = lambda visitor: assert_over(going)
    before = threading.active_count()
    for _ in range(6):
        with Peer(run.address("ward-a")) as peer:
            facts = hello(PLAN, "ward-a", purpose="predict", heard=-1)
            assert peer.send(note(Type.HELLO, facts)).refusal() == "garbage"
    answering = [one for one in threading.enumerate() if one.name.startswith("visitor")]
    assert not answering and not run.service.admission._visitors
    wait_for(lambda: threading.active_count() < before + 6)  # those of the peers end by themselves
    with Peer(run.address("ward-a")) as peer:
        peer.greet(hello(PLAN, "ward-a", purpose="predict"))
        assert [one.name for one in threading.enumerate() if one.name.startswith("visitor")] == ["visitor ward-a"]
        going.set()


def assert_over(event):
    assert event.wait(120)  # longer than anybody waits here


def test_the_frame_that_took_seconds_to_read_is_refused_at_the_door():
    frame, began = memoryview(stalls.many_empty_tensors()), time.thread_time()
    with pytest.raises(Refused, match="65535 tensors"):
        decoded(frame, 4 << 20)
    assert time.thread_time() - began < 0.5, "of this thread's own: others may have the core for longer"


@pytest.mark.campaign
def test_honest_steps_go_on_under_every_attack(tmp_path):
    if os.getloadavg()[0] > 1.0:
        pytest.skip("steps a second under attack are compared with those before: others have to leave a core")
    cores = sorted(os.sched_getaffinity(0))
    try:
        found = stalls.measure(tmp_path, 10.0, (cores[0], cores[1]))
    finally:
        os.sched_setaffinity(0, cores)
    assert all(one["share"] >= 0.8 and one["MiB"] <= 64 for one in found.values()), found


# ------------------------------------------------------------------ a server against its client
def test_a_flood_waits_at_the_server():
    """An unbounded queue took 2 GiB in six seconds."""
    taken = []

    def flood():
        while True:
            taken.append(len(taken))
            yield b"x"

    incoming = Incoming()
    pump = threading.Thread(target=channel._pump, args=(flood(), incoming), daemon=True)
    pump.start()
    wait_for(lambda: len(taken) > PACKETS)
    time.sleep(0.2)
    assert len(taken) == PACKETS + 1
    incoming.close()
    pump.join(5)
    assert not pump.is_alive()


def test_a_server_that_says_nothing_is_waited_for_with_a_word_and_not_for_ever(monkeypatch):
    said = []
    monkeypatch.setattr(channel, "SAID", 0.1)
    monkeypatch.setattr(channel.log, "info", lambda *told, **more: said.append(told[0]))
    line, now = ServerChannel(Address("127.0.0.1:1", silence=0.5), dict), [0.0]

    def nothing(timeout):
        now[0] += timeout
        raise queue.Empty

    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(line._incoming, "get", nothing)
    line._channel = object()  # it is connected, and nothing comes
    with pytest.raises(GaveUp, match="is there, but has said nothing for") as found:
        line.receive()
    assert found.value.exit_code == 4 and said == ["waiting"] * 3  # after 0.1, 0.2 and 0.4 s


# -------------------------------------------------------------------------- claims of a client
def turn(batches):
    return Message(Kind.TURN, 0, 0, {"turn": torch.tensor([0, 0, batches, 0])})


def test_a_turn_as_a_whole_has_an_end():
    """With each answer just before the deadline, a turn of 500 batches took a thousand deadlines."""
    pace = Pace(Limits(deadline=1.0))
    assert pace.clock(turn(500)).left("a") == pytest.approx(504.0), "nobody knows yet how long a batch takes"
    pace._taken = deque([0.01] * 20)
    clock = pace.clock(turn(500))
    assert clock.left("a") == pytest.approx(4.0 + 500 * 0.1)
    clock._waited = 60.0
    with pytest.raises(Absent):
        clock.left("a")
    clock.forgive()
    assert clock.left("a") == pytest.approx(54.0)


def test_the_clock_stands_still_while_the_client_waits_itself():
    pace = Pace(Limits(deadline=1.0))
    clock = pace.clock(turn(2))
    before = clock.left("a")
    time.sleep(0.02)
    assert clock.left("a") == before
    with clock.running():
        time.sleep(0.05)
    assert clock.left("a") <= before - 0.05
    clock.done()
    assert pace._taken[0] >= 0.025


def test_nobody_claims_a_million_batches():
    with pytest.raises(Refused, match="batches is a whole number up to 65536"):
        Admission(PLAN, NAMES[:2], Limits()).admit("ward-a", hello(PLAN, "ward-a", batches=1_000_000))


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_samples_are_those_that_were_sent(protocol):
    """What a client reports weighs in the merge."""
    vanilla = protocol == Vanilla()
    door = MessageValidator(tiny_plan(clients=2, batch_size=8, rounds=SplitFed(), protocol=protocol), TASK)
    door.open(turn(1))
    z, y = torch.zeros(5, 4, 5, 5), torch.zeros(5, dtype=torch.int64)
    asked = Message(Kind.LOSS, 0, 0, {"z": z, "y": y}) if vanilla else Message(Kind.FORWARD, 0, 0, {"z": z})
    for message in (asked, Message(Kind.BACKWARD, 0, 0, {"du": torch.zeros(() if vanilla else (5, 7))})):
        door.check(message, 0)
        door.passed(message)
    door.closed(Message(Kind.TURN, 0, 1, {"samples": torch.tensor([5])}))
    with pytest.raises(Refused, match="tells of 16 samples, and 5 were sent"):
        door.closed(Message(Kind.TURN, 0, 1, {"samples": torch.tensor([16])}))


def test_where_samples_share_rows_nobody_can_tell():
    door = MessageValidator(tiny_plan(clients=2, batch_size=8, guard=KAnonymous(k=2)), TASK)
    door.open(turn(1))
    message = Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(4, 4, 5, 5)})
    door.check(message, 0)
    door.passed(message)
    door.passed(Message(Kind.BACKWARD, 0, 0, {}))
    door.closed(Message(Kind.TURN, 0, 1, {"samples": torch.tensor([8])}))
