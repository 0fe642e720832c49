"""Kills and broken connections: the run ends as if nothing had happened. A slice, and all of it as a campaign."""

import json
import platform
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from drama import play
from nursery import audited
from proxy import FAULTS, Relay, faults
from rehearsal import FAULTED, NAMES, Rehearsal, refuse_other_counts, refuse_other_weights, undisturbed
from toys import tiny_parts, tiny_plan

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.admission import Limits

RECORD = Path(__file__).parents[3] / "docs" / "evidence" / "faults.json"


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities") / "certs"
    certs.make(folder, ["localhost", "127.0.0.1"], list(NAMES))
    return folder


# --------------------------------------------------------------- connections of living processes
BROKEN = {
    "plain": (("cut", "close", "truncate", "delay"), 8, False, 1152),
    "plain, half-open": (("stall",), 2, False, 48),
    # What comes twice is noticed where records are numbered and signed. Without TLS it would have to happen inside of
    # one machine's loopback, and a part of a tensor that comes twice could pass for a tensor.
    "TLS": (("cut", "close", "truncate", "duplicate"), 8, True, 1152),
    "TLS, half-open": (("stall", "delay"), 4, True, 48),
}


@pytest.mark.parametrize(("kinds", "count", "secure", "samples"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_connections_are_resumed_without_a_rewind(kinds, count, secure, samples, identities, tmp_path):
    """With many samples a frame takes several reads, so that a connection breaks inside of it."""
    plan, parts = tiny_plan(epochs=4, batch_size=samples // 8, clients=3), tiny_parts(samples)
    local = undisturbed(plan, parts)
    relays: list[Relay] = []

    def through(port):
        relays.append(Relay(lambda: port, [("none", 70), *faults(kinds, count, seed=7, gap=(12, 30))]))
        return relays[0].port

    run = Rehearsal(
        plan, tmp_path, limits=Limits(every=8, deadline=30.0, quiet=0.5), quiet=0.5, through=through, parts=parts,
        identities=identities if secure else None,
    )  # fmt: skip
    for name in NAMES:
        run.join(name)
    run.serve()
    result = run.end()
    with relays[0] as relay:
        assert relay.exhausted and sum(relay.done[kind] for kind in kinds) == count
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert result["rewinds"] == 0 and result["exact"] and result["refused"].keys() <= {"superseded"}
    assert sum(site.channel.connections for site in run.sites.values()) > 3, "some were made anew"


def test_the_relay_does_what_it_says():
    """Against a server that repeats what it hears: each fault is seen by a plain socket as it should be."""
    echo = socket.create_server(("127.0.0.1", 0))

    def repeat():
        with suppress(OSError):
            while True:
                connection, _ = echo.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with suppress(OSError):
            while data := connection.recv(1000):
                connection.sendall(data)

    threading.Thread(target=repeat, daemon=True).start()

    def heard(fault):
        with (
            Relay(lambda: echo.getsockname()[1], [(fault, 0)]) as relay,
            socket.create_connection(("127.0.0.1", relay.port), timeout=0.4) as connection,
        ):
            connection.sendall(b"12345678")
            found = b""
            try:
                while data := connection.recv(1000):
                    found += data
            except TimeoutError:
                return found, "open"
            except ConnectionResetError:
                return found, "reset"
            return found, "closed"

    assert heard("none") == (b"12345678", "open")
    assert heard("cut") == (b"", "reset")
    assert heard("close") == (b"", "closed")
    assert heard("stall") == (b"", "open")
    assert heard("delay") == (b"12345678", "open")
    assert heard("duplicate") == (b"1234567812345678", "open")
    assert heard("truncate")[0] in (b"", b"1234") and heard("truncate")[1] != "open"
    echo.close()


# ------------------------------------------------------------------------------ killed processes
def test_killed_parties_come_back_and_the_run_is_the_undisturbed_one(nursery, identities, tmp_path):
    """Two kills and two breaks in each of four runs, at seeded moments."""
    first = play(
        nursery, "U-shaped, chain", tmp_path / "one", seed=1, kills=2, faults=faults(("cut", "truncate"), 2, 1)
    )
    second = play(
        nursery, "own heads, early stopping", tmp_path / "two", seed=2, kills=2,
        faults=faults(("close", "duplicate"), 2, 2), identities=identities,
    )  # fmt: skip
    third = play(
        nursery,
        "SplitFed, Adam at the server",
        tmp_path / "three",
        seed=3,
        kills=2,
        faults=faults(("cut", "stall"), 2, 3),
    )
    fourth = play(
        nursery, "a wave, own heads", tmp_path / "four", seed=4, kills=2, faults=faults(("close", "truncate"), 2, 4)
    )
    for story in (first, second, third, fourth):
        assert sum(story.kills.values()) >= 2 and sum(story.faults.values()) == 2, story


def test_the_audit_of_the_step_table_finds_what_is_lost_or_doubled(tmp_path):
    path = tmp_path / "table"

    def told(*lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return audited(path, 2)[0]

    assert told(["update", 0, 0], ["update", 1, 0], ["return", [0, 0]], ["update", 0, 0]) == [[0], []]
    assert told(["update", 0, 0], ["return", [1, 0]], ["update", 0, 0]) == [[0, 0], []], "doubled"
    assert told(["update", 0, 0], ["return", [0, 0]], ["update", 0, 1]) == [[1], []], "lost"


@pytest.mark.campaign
def test_the_campaign_of_kills_and_faults(nursery, identities, tmp_path):
    """Every plan twice, without and with certificates: 30 kills and 20 faults at least, and the undisturbed run."""
    stories = []
    for number, plan in enumerate(FAULTED):
        for secure in (False, True):
            seed = 100 + 2 * number + secure
            kinds = [kind for kind in FAULTS if secure or kind != "duplicate"]
            found = play(
                nursery, plan, tmp_path / str(seed), seed=seed, kills=6, faults=faults(kinds, len(kinds), seed),
                identities=identities if secure else None,
            )  # fmt: skip
            stories.append((found, secure))
    kills = sum((story.kills for story, _ in stories), Counter())
    broken = sum((story.faults for story, _ in stories), Counter())
    record = {
        "command": "python -m pytest -m campaign tests/engines/grpc/test_faults.py",
        "kills": sum(kills.values()),
        "kills of the server": sum(count for name, count in kills.items() if name.startswith("server")),
        "faults of connections": sum(broken.values()),
        "runs": len(stories),
        "runs equal to the undisturbed one": len(stories),  # the test ends at the first that is not
        "updates lost or doubled": 0,  # likewise, by the step tables of all parties
        "returns to a snapshot": sum(story.returns for story, _ in stories),
        "kills by party and moment": dict(sorted(kills.items())),
        "faults by kind": dict(sorted(broken.items())),
        "each run": [
            {
                "plan": repr(FAULTED[story.plan]),
                "seed": story.seed,
                "TLS": secure,
                "kills": dict(sorted(story.kills.items())),
                "faults": dict(sorted(story.faults.items())),
                "returns": story.returns,
                "seconds": story.seconds,
            }
            for story, secure in stories
        ],
        "python": platform.python_version(),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    assert sum(kills.values()) >= 30 and sum(broken.values()) >= 20
    assert set(broken) == set(FAULTS) and any(name.startswith("server") for name in kills)
