"""A link that is shaped: when bytes arrive, by arithmetic and over real sockets; nothing is lost or reordered."""

import hashlib
import math
import random
import socket
import threading
import time

import pytest

from cutlayer.bench.shaped_link import Pace, ShapedRelay
from cutlayer.core.spec import Spec
from cutlayer.training.facts.link import Link


# ------------------------------------------------------------------------- what can be written
@pytest.mark.parametrize(
    ("text", "rate", "rtt"),
    [
        ("20mbit,40ms", 20e6, 0.04),
        ("20Mbit, 40ms", 20e6, 0.04),
        ("1.5gbit,0ms", 1.5e9, 0.0),
        ("56kbit,1s", 56e3, 1.0),
        ("9600bit,500us", 9600, 0.0005),
        ("10mbit", 10e6, 0.0),
        ("80ms", math.inf, 0.08),
    ],
)
def test_a_link_is_read(text, rate, rtt):
    link = Link.parse(text)
    assert link.rate == pytest.approx(rate) and link.rtt == pytest.approx(rtt)
    assert Link.parse(str(link)) == link
    assert isinstance(link, Spec)


def test_the_way_down_may_be_another():
    link = Link.parse("20mbit/100mbit,40ms")
    assert (link.rate, link.down, link.rtt) == (20e6, 100e6, 0.04)
    assert str(link) == "20mbit/100mbit,40ms" and Link.parse(str(link)) == link
    assert link.seconds(1000) == pytest.approx(8e3 / 20e6) and link.back.seconds(1000) == pytest.approx(8e3 / 100e6)
    assert link.back.back == link and Link.parse("1mbit").back == Link.parse("1mbit")
    with pytest.raises(ValueError, match="rate of a link is above 0"):
        Link(rate=1.0, down=0.0)


@pytest.mark.parametrize(
    "text", ["20mbit/,40ms", "/20mbit", "1mbit/2mbit/3mbit", "20mbit/40ms", "40ms/20ms", "1s/2s,1mbit"]
)
def test_what_is_no_pair_of_ways_is_refused(text):
    with pytest.raises(ValueError, match="like 20mbit,40ms"):
        Link.parse(text)


def test_each_way_of_a_relay_has_its_own_rate():
    with ShapedRelay(("127.0.0.1", 9), Link(rate=8e6, rtt=0.0, down=80e6)) as relay:
        up, down = relay._paces
        assert up.arrival(0.0, 1000) == pytest.approx(0.001) and down.arrival(0.0, 1000) == pytest.approx(0.0001)


@pytest.mark.parametrize(
    "text",
    ["", "20", "20mb,40ms", "40ms,20mbit,1ms", "20mbit,30mbit", "-1mbit,40ms", "nanmbit", "20mbit 40ms", "1e3bit"],
)
def test_what_is_no_link_is_refused(text):
    with pytest.raises(ValueError, match="like 20mbit,40ms"):
        Link.parse(text)


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, "fast", None])
def test_impossible_rates(rate):
    with pytest.raises(ValueError, match="rate of a link is above 0"):
        Link(rate=rate)


@pytest.mark.parametrize("rtt", [-0.001, math.inf, math.nan, 61, "1"])
def test_impossible_round_trips(rtt):
    with pytest.raises(ValueError, match="round trip of a link takes 0 to 60"):
        Link(rtt=rtt)


def test_a_link_without_time_is_refused_as_text_as_well():
    with pytest.raises(ValueError, match="rate of a link is above 0"):
        Link.parse("0mbit,40ms")


# ------------------------------------------------------------------------------ the arithmetic
def test_a_buffer_arrives_when_its_last_byte_has_gone_out_and_travelled():
    pace = Pace(Link(rate=8000, rtt=0.5))  # 1000 bytes a second
    assert pace.arrival(10.0, 1000) == 10.0 + 1.0 + 0.25


def test_buffers_wait_for_those_before_them_and_not_for_those_on_the_way():
    pace = Pace(Link(rate=8000, rtt=4.0))
    arrivals = [pace.arrival(now, count) for now, count in [(0.0, 500), (0.1, 500), (5.0, 500)]]
    assert arrivals == [2.5, 3.0, 7.5]


def test_cutting_bytes_into_other_buffers_changes_nothing():
    draw, link = random.Random(3), Link(rate=1e6, rtt=0.02)
    whole = Pace(link).arrival(1.0, 100_000)
    pace, left, last = Pace(link), 100_000, 0.0
    while left:
        count = min(left, draw.randrange(1, 5000))
        last, left = pace.arrival(1.0, count), left - count
    assert last == pytest.approx(whole, abs=1e-9)


def test_an_endless_rate_takes_no_time():
    assert Pace(Link(rtt=0.3)).arrival(2.0, 1 << 30) == 2.15


# -------------------------------------------------------------------------------- real sockets
@pytest.fixture
def echo():
    """The port of a server that sends back what comes, until the sender is done."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection):
            with connection:
                try:
                    while data := connection.recv(1 << 16):
                        connection.sendall(data)
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.settimeout(20)
    return connection


def read_all(connection):
    found = bytearray()
    while data := connection.recv(1 << 16):
        found += data
    return bytes(found)


def test_every_byte_comes_through_once_and_is_counted(echo):
    sent = random.Random(1).randbytes(3_000_001)
    with ShapedRelay(("127.0.0.1", echo)) as relay, connect(relay.port) as near:
        threading.Thread(target=lambda: (near.sendall(sent), near.shutdown(socket.SHUT_WR)), daemon=True).start()
        came = read_all(near)
        assert hashlib.sha256(came).digest() == hashlib.sha256(sent).digest()
        assert (relay.up, relay.down, relay.connections) == (len(sent), len(sent), 1)


def test_it_is_no_faster_than_the_link(echo):
    """Bytes that wait for a busy core come late, never early; how late they should come is the arithmetic above."""
    link = Link.parse("8mbit,100ms")
    with ShapedRelay(("127.0.0.1", echo), link) as relay, connect(relay.port) as near:
        for _ in range(3):
            began = time.monotonic()
            near.sendall(b"!")
            near.recv(1)
            assert time.monotonic() - began >= link.rtt
        began, count = time.monotonic(), 300_000
        near.sendall(bytes(count))
        while count:
            count -= len(near.recv(1 << 16))
        assert time.monotonic() - began >= 0.3 + link.rtt


def test_connections_share_the_link(echo):
    with ShapedRelay(("127.0.0.1", echo), Link.parse("8mbit,0ms")) as relay:
        began, nears = time.monotonic(), [connect(relay.port) for _ in range(3)]
        for near in nears:
            near.sendall(bytes(100_000))
            near.shutdown(socket.SHUT_WR)
        assert [len(read_all(near)) for near in nears] == [100_000] * 3
        assert time.monotonic() - began >= 0.3
        for near in nears:
            near.close()


def test_a_sender_that_is_too_fast_has_to_wait():
    """What lies in the relay is bounded: the rest stays with the sender."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ShapedRelay(listener.getsockname(), Link.parse("80kbit,10ms")) as relay,
        connect(relay.port) as near,
    ):
        near.settimeout(0.3)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        with pytest.raises(TimeoutError):
            near.sendall(bytes(64 << 20))
        assert relay.up < 1 << 18


def test_a_target_that_is_gone_ends_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = listener.getsockname()
    with ShapedRelay(target) as relay, connect(relay.port) as near:
        assert near.recv(1) == b""


def test_a_far_end_that_breaks_off_is_told_to_the_sender():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ShapedRelay(listener.getsockname()) as relay,
        connect(relay.port) as near,
    ):
        far, _ = listener.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(OSError):
            near.sendall(bytes(256 << 20))


def test_closing_ends_connections_and_threads(echo):
    before = threading.active_count()
    relay = ShapedRelay(("127.0.0.1", echo), Link.parse("80kbit,10ms"))
    with connect(relay.port) as near:
        near.sendall(b"?")
        assert near.recv(1) == b"?"
        relay.close()
        assert near.recv(1) == b""
    with pytest.raises(OSError):
        connect(relay.port)
    deadline = time.monotonic() + 10
    while threading.active_count() > before + 1 and time.monotonic() < deadline:  # the echo may have one left
        time.sleep(0.01)
    assert threading.active_count() <= before + 1
