"""docs/drills.md, each drill followed once on loopback: every host is a folder, every command is typed as written."""

import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, commands_of
from typed_commands import PATIENCE, Shell

PAGES = {name: commands_of(ROOT / "docs" / f"{name}.md", "console") for name in ("deployment", "drills")}
LONG = 60  # epochs: long enough for something to happen on the way

pytestmark = pytest.mark.campaign


def written(page: str, *words: str) -> list[str]:
    """The one command of a page that has these words."""
    (found,) = [line for line in PAGES[page] if set(words) <= set(line)]
    return found


SERVE = written("deployment", "serve", "--stay")
JOIN = {name: written("deployment", "join", name, "split.example.org:7443") for name in ("hospital-a", "hospital-b")}
STATUS = written("drills", "status")


def until(what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


class Hosts:
    """The authority, the server and two hospitals, each with its own folders, and a run that is under way."""

    def __init__(self, shell: Shell, folder: Path):
        self.shell, self.folder = shell, folder
        shell.elsewhere()
        self.typed(written("deployment", "certs", "--operator"), "authority", code=0)
        draw = np.random.default_rng(0)
        for name, data in (("server", ""), ("hospital-a", "a.npz"), ("hospital-b", "b.npz")):
            text = (ROOT / "deploy/plan.py").read_text()
            self.at(name).joinpath("plan.py").write_text(text.replace("epochs=5", f"epochs={LONG}"))
            assert f"epochs={LONG}" in self.at(name).joinpath("plan.py").read_text()
            self.copy("authority", name, f"certs/{name}")
            if data:
                y = np.arange(40) % 10
                np.savez(self.at(name) / data, x=draw.random((40, 28, 28), dtype=np.float32), y=y)

    def at(self, host: str) -> Path:
        (self.folder / host).mkdir(exist_ok=True)
        return self.folder / host

    def copy(self, one: str, other: str, what: str) -> None:
        """As an operator does: over what is there."""
        source, target = self.at(one) / what, self.at(other) / what
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def typed(self, words, host, *, code=None, room=None):
        started = self.shell.start(words, self.at(host), room)
        if code is not None:
            assert started.wait() == code, started.said
        return started

    def begin(self, room=None):
        """The server and both hospitals, until some epochs are over."""
        self.server = self.typed(SERVE, "server", room=room)
        until(lambda: "listening on" in self.server.said)
        self.joined = {name: self.typed(words, name) for name, words in JOIN.items()}
        if room is None:
            until(lambda: self.epochs() >= 3)

    def epochs(self, host="server") -> int:
        history = self.at(host) / "runs/server/history.jsonl"
        return len(history.read_text().splitlines()) if history.exists() else 0

    def events(self, host: str, run: str) -> list[dict]:
        return [json.loads(line) for line in (self.at(host) / "runs" / run / "audit.jsonl").read_text().splitlines()]

    def end(self, server=None) -> dict:
        """All clients to the end, the server stopped: its result."""
        for client in self.joined.values():
            assert client.wait() == 0, client.said
        server = server or self.server
        server.signal()
        assert server.wait() == 0, server.said
        assert not any("Traceback" in one.said for one in (server, *self.joined.values()))
        (result,) = [path for path in self.folder.glob("*/runs/server/result.json") if path.parents[2].name != "old"]
        return json.loads(result.read_text())


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    found = Shell(tmp_path_factory.mktemp("said"))
    yield found
    found.close()


@pytest.fixture
def hosts(shell, tmp_path):
    return Hosts(shell, tmp_path)


def test_a_disk_fills(hosts):
    hosts.begin(room=40)
    assert hosts.server.wait() == 8
    assert "there is no room left for" in hosts.server.said and "make room on its disk" in hosts.server.said
    assert "Traceback" not in hosts.server.said and 0 < hosts.epochs() < LONG
    hosts.server = hosts.typed(SERVE, "server")  # somebody has made room
    assert hosts.end()["exact"]


def test_a_certificate_ends(hosts):
    hosts.begin()
    hosts.joined["hospital-b"].signal(signal.SIGSTOP)  # the run waits for it, so that it does not end meanwhile
    shown = hosts.typed(written("drills", "certs", "--show"), "authority", code=0)
    assert "hospital-a" in shown.said and "days left" in shown.said
    hosts.typed(written("drills", "hospital-a", "--renew"), "authority", code=0)
    hosts.copy("authority", "hospital-a", "certs/hospital-a")
    hosts.copy("authority", "server", "certs/server/revoked.txt")
    gone = lambda: [one for one in hosts.events("server", "server") if one.get("error") == "revoked"]  # noqa: E731
    until(gone)
    came = lambda: [one for one in hosts.events("server", "server") if one["event"] == "joined"][-1]["client"]  # noqa: E731
    until(lambda: came() == "hospital-a")
    hosts.typed(written("drills", "--host", "split.example.org", "--renew"), "authority", code=0)
    hosts.copy("authority", "server", "certs/server")
    hosts.typed(STATUS, "authority", code=0)
    assert "certificates read again" in [one["event"] for one in hosts.events("server", "server")]
    hosts.joined["hospital-b"].signal(signal.SIGCONT)
    assert hosts.end()["exact"]


def test_a_client_is_lost_for_good(hosts):
    hosts.begin()
    hosts.joined["hospital-b"].signal(signal.SIGKILL)
    hosts.joined["hospital-b"].wait()
    shutil.rmtree(hosts.at("hospital-b") / "runs")
    shutil.rmtree(hosts.at("hospital-b") / "certs")
    told = hosts.typed(STATUS, "authority", code=0)
    assert "AWAY" in told.said
    hosts.typed(written("drills", "--revoke", "hospital-b"), "authority", code=0)
    hosts.copy("authority", "server", "certs/server/revoked.txt")
    hosts.typed(written("drills", "hospital-b", "--renew"), "authority", code=0)
    hosts.copy("authority", "server", "certs/server/revoked.txt")
    hosts.copy("authority", "hospital-b", "certs/hospital-b")
    join = written("drills", "join", "hospital-b", "split.example.org:7443")
    hosts.joined["hospital-b"] = hosts.typed(join, "hospital-b")
    result = hosts.end()
    assert not result["exact"] and result["epochs"] == LONG


def test_the_server_moves_to_another_host(hosts):
    hosts.begin()
    hosts.server.signal()
    assert hosts.server.wait() == 130 and "the same command goes on" in hosts.server.said
    stood = hosts.epochs()
    assert 0 < stood < LONG
    hosts.typed(written("drills", "--host", "new.example.org"), "authority", code=0)
    hosts.copy("authority", "server", "certs/server")
    for what in ("runs/server", "plan.py", "certs/server"):
        hosts.copy("server", "new", what)
    hosts.at("server").rename(hosts.folder / "old")
    hosts.shell.elsewhere()
    moved = hosts.typed(written("drills", "serve", "--stay"), "new")
    for name, client in hosts.joined.items():
        client.signal()
        assert client.wait() == 130, client.said
        hosts.joined[name] = hosts.typed(written("drills", "join", name, "new.example.org:7443"), name)
    result = hosts.end(moved)
    assert result["exact"] and result["epochs"] == LONG and hosts.epochs("new") == LONG > stood
