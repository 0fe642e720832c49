"""Every frame once and in order, whatever happens to connections; and nothing else is taken for a frame."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.engines.grpc import session
from cutlayer.engines.grpc.connection import PATIENCE, Absent, ClientConnection
from cutlayer.engines.grpc.session import HEADER, WINDOW, Refused, Session, Type, note, read_note
from cutlayer.wire.pieces import Pieces

LIMIT = 200
PIECE = 7  # bytes of a frame in a packet here: most frames take several


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(session, "CHUNK", PIECE)


def packet(data=b"", *, kind=Type.DATA, last=True, number=1, heard=0, total=None, magic=b"CP"):
    return HEADER.pack(magic, kind, int(last), number, heard, len(data) if total is None else total) + data


def state(one):
    return one.sent, one.heard, list(one._waiting), bytes(one._piece or b""), one.partial


def refusal(action, *arguments):
    with pytest.raises(Refused) as found:
        action(*arguments)
    return found.value.name


# ----------------------------------------------------------------------- once, in order
class Pair:
    """Two sides and the wire between them, which may lose everything that is on it at any moment."""

    def __init__(self):
        self.sides = [Session(LIMIT), Session(LIMIT)]
        self.flying: list[list[bytes]] = [[], []]  # towards each side
        self.said: list[list[bytes]] = [[], []]
        self.got: list[list[bytes]] = [[], []]
        self.doubled = False

    def say(self, side, frame):
        if len(self.sides[side]._waiting) == WINDOW:
            assert refusal(self.sides[side].send, frame) == "window"
            return
        self.flying[1 - side] += self.sides[side].send(frame)
        self.said[side].append(frame)

    def carry(self, side, count):
        for _ in range(min(count, len(self.flying[side]))):
            try:
                frame = self.sides[side].take(self.flying[side].pop(0))
            except Refused:  # a piece came twice: it is noticed, and everything that was not heard comes again
                assert self.doubled
                self.cut()
                return
            if frame is not None:
                self.got[side].append(bytes(frame))

    def double(self, side, place):
        """A packet comes a second time, now or later."""
        if self.flying[side]:
            self.doubled = True
            self.flying[side].insert(min(place, len(self.flying[side])), self.flying[side][0])

    def cut(self):
        self.doubled = False
        for side in self.sides:
            side.broken()
        self.flying = [self.sides[1].again(self.sides[0].heard), self.sides[0].again(self.sides[1].heard)]


actions = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 1), st.binary(max_size=40)),
    st.tuples(st.just("carry"), st.integers(0, 1), st.integers(1, 12)),
    st.tuples(st.just("double"), st.integers(0, 1), st.integers(0, 5)),
    st.tuples(st.just("cut")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=40))
def test_every_frame_arrives_once_and_in_order(steps):
    pair = Pair()
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
        for side in (0, 1):
            assert pair.got[side] == pair.said[1 - side][: len(pair.got[side])]
            assert len(pair.sides[side]._waiting) <= WINDOW
            assert (pair.sides[side].partial or 0) <= LIMIT
    pair.cut()
    for side in (0, 1):
        pair.carry(side, 10**6)
        assert pair.got[side] == pair.said[1 - side]


def test_what_is_sent_may_change_behind_it():
    """Pieces lie in tensors: what was sent is what comes, and comes again, whatever became of them since."""
    one, other, lies = Session(LIMIT), Session(LIMIT), bytearray(b"as it was then")
    one.send(Pieces([b"top ", memoryview(lies), b" end"]))
    lies[:] = bytes(len(lies))
    found = [other.take(sent) for sent in one.again(0)]
    assert bytes(found[-1]) == b"top as it was then end"


def test_what_is_sent_again_confirms_what_was_heard_meanwhile():
    one = Session()
    one.send(b"x")
    one.take(packet(b"y", heard=0))
    assert [session.head(sent)[3] for sent in one.again(0)] == [1]


def test_what_is_confirmed_is_forgotten():
    one, other = Session(), Session()
    for number in range(50):
        for sent in one.send(b"x" * number):
            other.take(sent)
        for sent in other.send(b"y"):
            one.take(sent)
        assert len(one._waiting) == 0 and len(other._waiting) <= 1


def test_an_unconfirmed_window_ends_sending():
    one = Session()
    for _ in range(WINDOW):
        one.send(b"frame")
    before = state(one)
    assert refusal(one.send, b"one more") == "window"
    assert state(one) == before


def test_a_frame_over_the_limit_is_not_sent():
    one = Session(LIMIT)
    assert refusal(one.send, bytes(LIMIT + 1)) == "oversize"
    assert one.sent == 0


# ------------------------------------------------------------------------- what is refused
BAD = {
    "empty": (b"", "garbage"),
    "short": (packet(b"abc")[: HEADER.size - 1], "garbage"),
    "over a piece": (packet(bytes(PIECE + 1)), "garbage"),
    "another magic": (packet(b"abc", magic=b"CL"), "garbage"),
    "unknown type": (packet(b"abc", kind=99), "garbage"),
    "unknown flags": (HEADER.pack(b"CP", Type.DATA, 2, 3, 0, 3) + b"abc", "garbage"),
    "a greeting inside": (note(Type.HELLO, {})[: HEADER.size + PIECE], "garbage"),
    "a refusal inside": (note(Type.REFUSED, {})[: HEADER.size + PIECE], "garbage"),
    "over the limit": (packet(b"abc", last=False, number=2, total=LIMIT + 1), "oversize"),
    "four gigabytes": (packet(b"abc", last=False, number=2, total=2**32 - 1), "oversize"),
    "confirms what was not sent": (packet(b"abc", number=2, heard=7), "session"),
    "a frame is missing": (packet(b"abc", number=4), "session"),
    "shorter than it says": (packet(b"abc", number=2, total=4), "garbage"),
    "longer than it says": (packet(b"abcde", number=2, total=4, last=False), "garbage"),
    "whole, but goes on": (packet(b"abcd", number=2, total=4, last=False), "garbage"),
    "nothing, and goes on": (packet(b"", number=2, total=4, last=False), "garbage"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_next_packet_is_refused_and_changes_nothing(name):
    bad, expected = BAD[name]
    one = Session(LIMIT)
    one.send(b"ours")
    one.take(packet(b"first"))
    before = state(one)
    assert refusal(one.take, bad) == expected
    assert state(one) == before
    assert one.take(packet(b"second", number=2, heard=1)) == b"second"


@pytest.mark.parametrize(
    "bad",
    [
        packet(b"cd", last=False, total=21),
        packet(b"cd", total=4),
        packet(b"", last=False, total=20),
        packet(b"c", total=20),
    ],
    ids=["another total", "a smaller total", "nothing", "ends early"],
)
def test_a_frame_does_not_change_its_size_on_the_way(bad):
    one = Session(LIMIT)
    assert one.take(packet(b"ab", last=False, total=20)) is None
    before = state(one)
    assert refusal(one.take, bad) == "garbage"
    assert state(one) == before


def test_a_resumed_session_heard_what_was_sent():
    one = Session()
    for _ in range(3):
        one.send(b"x")
    one.again(2)
    before = state(one)
    for heard in (1, 4, 2**32):
        assert refusal(one.again, heard) == "session"
        assert state(one) == before
    assert one.again(3) == []


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=HEADER.size + PIECE + 2))
def test_bytes_are_refused_by_name_or_are_a_packet(data):
    one = Session(LIMIT)
    before = state(one)
    try:
        one.take(data)
        return
    except Refused as error:
        name = error.name
    assert name in ("garbage", "oversize", "session")
    assert state(one) == before


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=PIECE), st.booleans(), st.integers(0, 3), st.integers(0, LIMIT)), max_size=60
    )
)
def test_no_sequence_of_well_formed_packets_takes_more_than_the_limit(packets):
    one = Session(LIMIT)
    for data, last, number, total in packets:
        try:
            frame = one.take(packet(data, last=last, number=number, total=total))
        except Refused:
            continue
        assert (one.partial or 0) <= LIMIT
        assert frame is None or len(frame) == total


# ------------------------------------------------------------------------------- greetings
@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (note(Type.HELLO, {"a": 1})[:-1], "garbage"),
        (packet(b"[1, 2]", kind=Type.HELLO), "garbage"),
        (packet(b"{'a': 1}", kind=Type.HELLO), "garbage"),
        (packet(b"\xff\xfe", kind=Type.HELLO), "garbage"),
        (packet(b"[" * 60_000, kind=Type.HELLO), "garbage"),
        (packet(b'{"a": ' + b"9" * 5000 + b"}", kind=Type.HELLO), "garbage"),
        (packet(b'{"a": 1}' + b" " * 65_536, kind=Type.HELLO), "oversize"),
        (packet(b"{}", kind=Type.HELLO, total=9), "garbage"),
        (packet(b"{}", kind=Type.WELCOME), "garbage"),
        (packet(b"{}"), "garbage"),
    ],
    ids=["cut", "a list", "no JSON", "no text", "deep", "a long number", "large", "lies", "another type", "data"],
)
def test_a_greeting_is_a_small_list_of_facts(monkeypatch, bad, expected):
    monkeypatch.setattr(session, "CHUNK", 1 << 20)
    assert refusal(read_note, bad, Type.HELLO) == expected


def test_a_client_cannot_refuse_under_a_name_of_its_choice(monkeypatch):
    """The server counts refusals by name: a client that sends them would write into its metrics."""
    monkeypatch.setattr(session, "CHUNK", 1 << 20)
    bad = note(Type.REFUSED, {"name": "of my choice", "text": ""})
    assert refusal(read_note, bad, Type.HELLO) == "garbage"


def test_a_server_refuses_by_name(monkeypatch):
    monkeypatch.setattr(session, "CHUNK", 1 << 20)
    with pytest.raises(Refused, match="the plans differ") as found:
        read_note(note(Type.REFUSED, {"name": "plan", "text": "the plans differ"}), Type.WELCOME)
    assert found.value.name == "plan"


def test_the_header_is_what_it_was():
    """The layout is the protocol: another one needs another version."""
    assert struct.unpack_from("<2sBBIII", packet(b"abc", number=5, heard=4)) == (b"CP", 3, 1, 5, 4, 3)
    assert json.loads(note(Type.BYE, {"a": 1})[16:]) == {"a": 1}


# ------------------------------------------------------------------------------------ connections
def connected(line, **facts):
    sent: list[bytes] = []
    closed: list[Refused | None] = []

    def push(packets):
        sent.extend(packets)

    welcome, again = line.connect(facts, push, closed.append)
    return push, sent, closed, welcome, again


def test_frames_nobody_asked_for_end_the_line_and_count_against_the_client():
    line = ClientConnection("a", 0, LIMIT)
    push, *_ = connected(line)
    for number in range(1, WINDOW + 1):
        line.arrive(packet(b"x", number=number), push)
    assert refusal(line.arrive, packet(b"x", number=WINDOW + 1), push) == "window"
    assert line.strikes == 1 and len(line._inbox) == WINDOW


def test_a_line_that_holds_as_much_as_one_message_may_have_is_full():
    line = ClientConnection("a", 0, LIMIT)
    push, *_ = connected(line)
    other = Session()
    for frame in (bytes(150), bytes(50)):
        for sent in other.send(frame):
            line.arrive(sent, push)
    assert not line.full
    for sent in other.send(b"!"):
        line.arrive(sent, push)
    assert line.full
    line.agree()
    line.receive(1.0)
    assert not line.full


@pytest.mark.parametrize("heard", ["3", -1, None, 1e300, [1], {}, 10**40])
def test_a_bad_greeting_leaves_the_open_connection_alone(heard):
    line = ClientConnection("a", 0, LIMIT)
    push, _, closed, welcome, _ = connected(line)
    line.agree()
    bad = {"session": welcome["session"], "heard": heard}
    assert refusal(lambda: connected(line, **bad)) in ("garbage", "session")
    assert closed == [] and line.in_step
    line.arrive(packet(b"abc"), push)
    assert line.receive(1.0) == b"abc"


def test_a_second_connection_takes_over():
    line = ClientConnection("a", 0, LIMIT)
    push, _, closed, welcome, _ = connected(line)
    line.agree()
    line.send(b"question")
    newer, sent, _, _, again = connected(line, session=welcome["session"], heard=0)
    assert [error.name for error in closed] == ["superseded"]
    assert b"".join(one[HEADER.size :] for one in again) == b"question" and line.in_step
    line.arrive(packet(b"stale"), push)  # of the connection that was replaced
    line.disconnect(push)
    assert line.connected
    line.arrive(packet(b"fresh", heard=1), newer)
    assert line.receive(1.0) == b"fresh" and sent == []


def test_half_a_frame_has_a_deadline(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("cutlayer.engines.grpc.connection.time.monotonic", lambda: clock[0])
    line = ClientConnection("a", 0, LIMIT, frame=30.0)
    push, *_ = connected(line)
    line.arrive(packet(b"a", last=False, total=100), push)
    for _ in range(29):
        clock[0] += 1
        line.arrive(packet(b"a", last=False, total=100), push)
    line.review()
    clock[0] += 2
    assert refusal(line.review) == "slow"
    assert refusal(line.arrive, packet(b"a", last=False, total=100), push) == "slow"


def test_what_came_before_is_no_sign_of_life(monkeypatch):
    """A client that repeats old packets for ever would hold up the run."""
    clock = [100.0]
    monkeypatch.setattr("cutlayer.engines.grpc.connection.time.monotonic", lambda: clock[0])
    line = ClientConnection("a", 0, LIMIT)
    push, *_ = connected(line)
    line.agree()
    line.arrive(packet(b"abc"), push)
    assert line.receive(10.0) == b"abc"

    def repeat(seconds):
        clock[0] += 3
        line.arrive(packet(b"abc"), push)

    monkeypatch.setattr(line._news, "wait", repeat)
    with pytest.raises(Absent):
        line.receive(10.0)
    assert clock[0] < 115


def test_signs_of_life_do_not_hold_up_the_run_for_ever(monkeypatch):
    """Nor may one that drips: a byte now and then, or connects again and again."""
    clock = [100.0]
    monkeypatch.setattr("cutlayer.engines.grpc.connection.time.monotonic", lambda: clock[0])
    line = ClientConnection("a", 0, 10**6)
    _, _, _, welcome, _ = connected(line)
    line.agree()

    def connect(seconds):
        clock[0] += 5
        connected(line, session=welcome["session"], heard=0)

    monkeypatch.setattr(line._news, "wait", connect)
    with pytest.raises(Absent):
        line.receive(10.0)
    assert clock[0] <= 100 + PATIENCE * 10 + 5
