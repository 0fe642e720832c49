"""Kills and broken connections: the run ends as if nothing had happened. A slice, and all of it as a campaign."""

import itertools
import json
import math
import platform
import shutil
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from drama import play, reference
from nursery import FULL, audited
from progress import Progress, commit
from proxy import FAULTS, SIGNED, Relay, faults
from rehearsal import (
    FAULTED,
    NAMES,
    Rehearsal,
    crossings,
    refuse_other_counts,
    refuse_other_weights,
    undisturbed,
)
from toys import tiny_parts, tiny_plan

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.admission import Limits
from cutlayer.training.step import export

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
    "TLS": (("cut", "close", "truncate", *SIGNED), 10, True, 1152),
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

    def heard(fault, expected=math.inf):
        """What comes, and how it ends. So many bytes as are expected are waited for, and what follows a moment."""
        with (
            Relay(lambda: echo.getsockname()[1], [(fault, 0)]) as relay,
            socket.create_connection(("127.0.0.1", relay.port), timeout=60.0) as connection,
        ):
            connection.sendall(b"12345678")
            found = b""
            try:
                while True:
                    if len(found) >= expected:
                        connection.settimeout(0.2)
                    if not (data := connection.recv(1000)):
                        break
                    found += data
            except TimeoutError:
                return found, "open"
            except ConnectionResetError:
                return found, "reset"
            return found, "closed"

    assert heard("none", 8) == (b"12345678", "open")
    assert heard("cut") == (b"", "reset")
    assert heard("close") == (b"", "closed")
    assert heard("stall", 0) == (b"", "open")
    assert heard("delay", 8) == (b"12345678", "open")
    assert heard("duplicate", 16) == (b"1234567812345678", "open")
    assert heard("reorder", 8) == (b"56781234", "open")
    assert heard("truncate")[0] in (b"", b"1234") and heard("truncate")[1] != "open"
    echo.close()


# ------------------------------------------------------------------------------ killed processes
STORIES = {
    "U-shaped, chain": ("cut", "truncate"),
    "own heads, early stopping": ("close", "duplicate"),
    "SplitFed, Adam at the server": ("cut", "stall"),
    "a wave, own heads": ("close", "truncate"),
}
WITH_TLS = "own heads, early stopping"
stories = [pytest.param(one, marks=() if one == WITH_TLS else pytest.mark.campaign) for one in STORIES]


@pytest.mark.parametrize("plan", stories)
def test_killed_parties_come_back_and_the_run_is_the_undisturbed_one(plan, nursery, identities, tmp_path):
    """Two kills and two breaks, at seeded moments."""
    seed = 1 + list(STORIES).index(plan)
    own = {"identities": identities} if plan == WITH_TLS else {}
    story = play(nursery, plan, tmp_path, seed=seed, kills=2, faults=faults(STORIES[plan], 2, seed), **own)
    assert sum(story.kills.values()) >= 2 and sum(story.faults.values()) == 2, story


DOOMS = {
    "after an update": {"server": ("after update", 17), "ward-b": ("after step", 9)},
    "amid a snapshot": {"server": ("half a file", 5), "ward-c": ("half a file", 4)},
    "an order taken": {"server": ("orders", 12), "ward-a": ("orders", 6)},
    "an answer given": {"server": ("before update", 20), "ward-a": ("answers", 8), "ward-b": ("after rename", 3)},
}


FIRST = "after an update"
dooms = [pytest.param(one, id=at, marks=() if at == FIRST else pytest.mark.campaign) for at, one in DOOMS.items()]


@pytest.mark.parametrize("doomed", dooms)
def test_adapters_of_a_transformer_survive_a_client_and_the_server(doomed, nursery, tmp_path):
    """And what goes from hand to hand, counted once however often it was sent, is what trains and no base."""
    plan = "adapters of a transformer"
    story = play(nursery, plan, tmp_path, seed=0, doomed=doomed, pace=0.0)
    assert story.kills == Counter(f"{who if who == 'server' else 'client'}, {at}" for who, (at, _) in doomed.items())
    assert story.returns
    network = reference(plan)[0].networks[0]
    handed = export(network, optimizer=True)
    learnt = {name for name, p in network.split.named_parameters() if p.requires_grad}
    assert {name.removeprefix("net.") for name in handed if name.startswith("net.")} == learnt
    numbers = sum(4 * tensor.numel() for tensor in handed.values())
    result = json.loads((tmp_path / "server" / "result.json").read_text())
    messages, size = crossings(result["ledger"])["WEIGHTS", "up"]
    # A frame names its tensors and pads them; how much that takes hangs on how many there are, not on the base.
    assert numbers < size / messages < numbers + 110 * (len(handed) + 1)


def test_the_audit_of_the_step_table_finds_what_is_lost_or_doubled(tmp_path):
    path = tmp_path / "table"

    def told(*lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return audited(path, 2)[0]

    assert told(["update", 0, 0], ["update", 1, 0], ["return", [0, 0]], ["update", 0, 0]) == [[0], []]
    assert told(["update", 0, 0], ["return", [1, 0]], ["update", 0, 0]) == [[0, 0], []], "doubled"
    assert told(["update", 0, 0], ["return", [0, 0]], ["update", 0, 1]) == [[1], []], "lost"


# --------------------------------------------------------------------------------- the campaign
FAULTS_WANTED = 1000
SEED = 100


def story_of(part, nursery, identities, folder):
    """One run through a dozen and a half troubles; `part` is its seed, which all else follows from."""
    seed = int(part)
    number, secure = divmod(seed - SEED, 2)
    kinds = [kind for kind in FAULTS if secure or kind not in SIGNED]
    found = play(
        nursery, list(FAULTED)[number % len(FAULTED)], folder / part, seed=seed, kills=12,
        faults=faults(kinds, len(kinds), seed), identities=identities if secure else None,
    )  # fmt: skip
    shutil.rmtree(folder / part)
    return {**vars(found), "TLS": bool(secure), "commit": commit()}


def in_all(stories, kind):
    """The troubles of one kind over all stories, by name."""
    return dict(sorted(sum((Counter(story[kind]) for story in stories), Counter()).items()))


@pytest.mark.campaign
def test_the_campaign_of_kills_and_faults(nursery, identities, tmp_path):
    """Every plan, without and with certificates by turns, until there were a thousand troubles. A campaign that is
    killed goes on where it was."""
    stories, total = [], 0
    wanted = map(str, itertools.count(SEED))
    for _, story in Progress("faults").parts(wanted, lambda part: story_of(part, nursery, identities, tmp_path)):
        stories.append(story)
        total += sum(story["kills"].values()) + sum(story["faults"].values())
        record(stories, total)
        if total >= FAULTS_WANTED and len(stories) >= 2 * len(FAULTED):
            break
    assert set(in_all(stories, "faults")) == set(FAULTS)
    happened = " ".join(in_all(stories, "kills"))
    assert all(f"{party}, {what}" in happened for party in ("server", "client") for what in (FULL, "double start"))


def record(stories, total):
    """After every story: what was really run, whether or not the rest of it is."""
    processes, broken = in_all(stories, "kills"), in_all(stories, "faults")
    real = {name: count for name, count in processes.items() if FULL not in name and "double" not in name}
    figures = {
        "command": "python -m pytest -m campaign tests/engines/grpc/test_faults.py",
        "commits": sorted({story["commit"] for story in stories}),
        "seeds": [stories[0]["seed"], stories[-1]["seed"]],
        "faults": total,
        "kills by SIGKILL": sum(real.values()),
        "of these, of the server": sum(count for name, count in real.items() if name.startswith("server")),
        "full disks": sum(count for name, count in processes.items() if FULL in name),
        "double starts": sum(count for name, count in processes.items() if "double" in name),
        "faults of connections": sum(broken.values()),
        "runs": len(stories),
        "runs equal to the undisturbed one": len(stories),  # the test ends at the first that is not
        "updates lost or doubled": 0,  # likewise, by the step tables of all parties
        "returns to a snapshot": sum(story["returns"] for story in stories),
        "troubles of processes by party and moment": processes,
        "faults of connections by kind": broken,
        "plans": {name: repr(plan) for name, plan in FAULTED.items()},
        "each run": [
            {key: story[key] for key in ("plan", "seed", "TLS", "kills", "faults", "returns", "seconds")}
            for story in stories
        ],
        "python": platform.python_version(),
    }
    RECORD.write_text(json.dumps(figures, indent=1) + "\n")
