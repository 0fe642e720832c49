"""Clients that stay away, servers that are asked to end: what is skipped, what waits, and what goes on."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from proxy import Relay, wait_for
from rehearsal import FAULTED, NAMES, Rehearsal, refuse_other_counts, refuse_other_weights, undisturbed
from toys import tiny_plan

from cutlayer.core.errors import Interrupted
from cutlayer.core.message import Kind
from cutlayer.engines.grpc import channel as uplink
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import GaveUp
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.engines.grpc.connection import Absent, ClientConnection

PLAN = tiny_plan(epochs=6, batch_size=6, clients=3)


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Clients that try again soon: tests have short deadlines."""
    monkeypatch.setattr(uplink, "RETRY", 0.3)


class Slow:
    """A watcher at the server: a step takes a while, and may be waited for."""

    def __init__(self, seconds=0.01):
        self.seconds, self.seen, self.go_on = seconds, 0, threading.Event()
        self.go_on.set()

    def __call__(self, message, handle):
        time.sleep(self.seconds)
        assert self.go_on.wait(120.0)
        self.seen += 1
        return handle(message)


def begun(folder, *, deadline, seconds=0.01, names=NAMES, give_up=30.0):
    """A run in which every client has a way of its own to the server."""
    slow, relays = Slow(seconds), {}
    run = Rehearsal(PLAN, folder, limits=Limits(every=4, deadline=deadline, quiet=0.5), quiet=0.5, watchers=(slow,))
    port = run.port
    for name in NAMES:
        relays[name] = Relay(lambda: port)
    for name in names:
        run.port = relays[name].port
        run.join(name, give_up)
        wait_for(lambda name=name: run.sites.get(name), what=f"{name} came")
    return run, relays, slow


def shut(relay):
    """From now on there is no way through."""
    relay.target = lambda: None
    for pair in relay.open():
        pair.end(reset=True)


def reopen(relay, run):
    relay.target = lambda: run.service.network.port


def test_who_stays_away_past_the_deadline_is_skipped_and_may_come_back(tmp_path, patient_with):
    patient_with("ward-a", "ward-c")
    run, relays, slow = begun(tmp_path, deadline=2.0)
    run.serve()
    wait_for(lambda: slow.seen > 8)
    shut(relays["ward-b"])
    wait_for(lambda: run.host.attendance.skipped and run.host.attendance.absent == {1})
    slow.go_on.clear()  # else the others may be at the end before it is back
    assert run.host.attendance.exact is False
    assert [one["name"] for one in run.host.status()["clients"] if one["skipped"]] == ["ward-b"]
    before = run.host.progress.taken[1]
    reopen(relays["ward-b"], run)
    wait_for(lambda: run.host.connections[1].connected, 60.0, "ward-b came back")
    slow.go_on.set()
    wait_for(lambda: not run.host.attendance.absent, what="ward-b took part again")
    result = run.end()
    assert result["exact"] is False and {one["client"] for one in result["skipped"]} == {"ward-b"}
    assert run.host.progress.taken[1] > before, "it learnt again after it came back"
    assert result["steps"] < undisturbed(PLAN).progress.step and set(result["ended"]) == set(NAMES)
    # Shared heads: all end with the same ones.
    states = [run.sites[name].party.network.split.state_dict() for name in NAMES]
    assert all(torch.equal(states[0][key], other[key]) for other in states for key in other)


@pytest.mark.campaign
def test_who_never_comes_back_is_left_out_and_the_run_ends(tmp_path):
    run, relays, slow = begun(tmp_path, deadline=2.5, give_up=5.0)
    server = run.serve()
    wait_for(lambda: slow.seen > 8)
    shut(relays["ward-c"])
    server.join(30)
    assert not server.is_alive() and not run.errors
    result = run.results["server"]
    assert result["exact"] is False and {one["client"] for one in result["skipped"]} == {"ward-c"}
    assert result["ended"] == ["ward-a", "ward-b"] and result["epochs"] == PLAN.epochs
    run.threads[2].join(20)
    (error,) = run.errors
    assert isinstance(error, GaveUp) and not run.threads[2].is_alive()


def test_who_comes_back_before_the_deadline_changes_nothing(tmp_path):
    run, relays, slow = begun(tmp_path, deadline=20.0)
    run.serve()
    for name in NAMES:
        seen = slow.seen
        wait_for(lambda seen=seen: slow.seen > seen + 5)
        shut(relays[name])
        wait_for(lambda name=name: not run.host.connections[NAMES.index(name)].connected)
        reopen(relays[name], run)
    result = run.end()
    local = undisturbed(PLAN)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert result["exact"] and result["skipped"] == [] and result["rewinds"] == 0


@pytest.mark.campaign
def test_with_nobody_there_the_run_waits(tmp_path):
    """It is then the server's own network that is away: nobody is late, and nothing is skipped."""
    run, relays, slow = begun(tmp_path, deadline=2.5)
    run.serve()
    wait_for(lambda: slow.seen > 8)
    for relay in relays.values():
        shut(relay)
    wait_for(lambda: not any(line.connected for line in run.host.connections))
    step = run.host.progress.step
    time.sleep(3.0)  # more than a deadline
    assert run.host.progress.step == step and run.host.attendance.absent == set()
    reopen(relays["ward-c"], run)
    wait_for(lambda: run.host.connections[2].connected)
    reopen(relays["ward-b"], run)
    reopen(relays["ward-a"], run)
    result = run.end()
    local = undisturbed(PLAN)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert result["exact"] and result["skipped"] == [] and result["rewinds"] == 0


def test_the_deadline_counts_from_the_last_sign_of_the_client():
    line = ClientConnection("ward-a", 0, 1 << 20)
    line.connect({}, lambda packets: None, lambda error: None)
    line.agree()
    line.heard_at = time.monotonic() - 100  # a client that had nothing to say while it was not its turn
    began = time.monotonic()
    with pytest.raises(Absent):
        line.receive(0.3)
    assert time.monotonic() - began >= 0.3, "waiting begins when it is waited for"


@pytest.mark.campaign
def test_after_an_outage_of_everything_the_first_one_back_waits_for_the_others(tmp_path):
    """Sessions are gone as well, so that everybody has to meet again."""
    run, relays, slow = begun(tmp_path, deadline=2.5)
    run.serve()
    wait_for(lambda: slow.seen > 6)
    for relay in relays.values():
        shut(relay)
    for line in run.host.connections:
        line.drop()
    time.sleep(3.0)  # more than a deadline
    assert run.host.attendance.absent == set()
    reopen(relays["ward-a"], run)
    wait_for(lambda: run.host.connections[0].connected)
    reopen(relays["ward-b"], run)
    reopen(relays["ward-c"], run)
    result = run.end()
    local = undisturbed(PLAN)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert result["exact"] and result["skipped"] == []


# ------------------------------------------------------------------------------------- the goodbye
def test_a_connection_that_breaks_at_the_goodbye_is_made_again(tmp_path, monkeypatch):
    """The answer to the last order is lost with the connection: nobody leaves before it was heard."""
    run, relays, _ = begun(tmp_path, deadline=20.0, seconds=0.0)
    follow = DeployedClient._follow

    def followed(site, order):
        answer = follow(site, order)
        if order.kind is Kind.END:
            for pair in relays[site.name].open():
                pair.end(reset=True)
        return answer

    monkeypatch.setattr(DeployedClient, "_follow", followed)
    run.serve()
    result = run.end()
    assert result["exact"] and set(result["ended"]) == set(NAMES)
    refuse_other_weights(undisturbed(PLAN), run)


@pytest.mark.parametrize("name", ["own heads, early stopping", "U-shaped, chain"])
def test_a_client_that_dies_at_the_goodbye_is_told_again(name, tmp_path, monkeypatch):
    """The others have gone by then, and what the run is worth is on disk: nobody has to rewind."""
    plan = FAULTED[name]
    run, died, follow = Rehearsal(plan, tmp_path), [], DeployedClient._follow

    def followed(site, order):
        if order.kind is Kind.END and site.name == NAMES[-1] and not died:
            died.append(site)
            site.channel.close()
            raise KeyboardInterrupt  # as good as any other end
        return follow(site, order)

    monkeypatch.setattr(DeployedClient, "_follow", followed)
    for one in NAMES:
        run.join(one)
    run.serve()
    wait_for(lambda: run.errors, what="a client died")
    assert [type(error) for error in run.errors] == [KeyboardInterrupt]
    run.errors.clear()
    run.join(NAMES[-1])
    result = run.end()
    assert result["exact"] and result["rewinds"] == 0 and set(result["ended"]) == set(NAMES)
    assert run.sites[NAMES[-1]] is not died[0]
    local = undisturbed(plan)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)


# ------------------------------------------------------------------------------------ asked to end
def test_a_server_asked_to_end_keeps_a_snapshot_and_goes_on(nursery, tmp_path):
    from drama import check, reference

    plan = "U-shaped, chain"
    facts = {"plan": plan, "folder": str(tmp_path), "limits": {"every": 1000, "deadline": 20.0}}
    port = tmp_path / "port"
    with Relay(lambda: int(port.read_text()) if port.exists() else None) as relay:
        nursery.start("server", pace=0.01, **facts)
        wait_for(port.exists)
        for name in NAMES:
            nursery.start(name, port=relay.port, **facts)
        table = tmp_path / "server.table"
        wait_for(lambda: table.exists() and table.read_text().count("update") > 20)
        nursery.signal("server", signal.SIGTERM)
        wait_for(lambda: "server" not in nursery.alive, what="the server ended")
        assert nursery.wait(1.0) == [("server", 130)]
        made = table.read_text().count("update")
        nursery.start("server", **facts)
        wait_for(lambda: not nursery.alive, 60, "the run ended")
        assert {code for _, code in nursery.wait(1.0)} == {0}
    check(plan, tmp_path)
    # Nothing was done again: the snapshot was of the moment it stopped at.
    assert made > 20 and table.read_text().count("update") == reference(plan)[0].progress.step


@pytest.mark.parametrize("stopped", ["waiting", "training"])
def test_stop_from_another_thread_is_an_interruption(stopped, tmp_path):
    run, _, slow = begun(tmp_path, deadline=8.0, names=NAMES if stopped == "training" else NAMES[:1])
    server = run.serve()
    wait_for((lambda: slow.seen > 4) if stopped == "training" else (lambda: not run.service.admission.known[1]))
    run.service.stop()
    server.join(20)
    assert not server.is_alive()
    (error,) = run.errors
    assert isinstance(error, Interrupted) and "the same command goes on" in str(error)


def test_the_command_itself_ends_at_a_signal_with_its_code(tmp_path):
    words = ["serve", "--insecure", "--listen", "127.0.0.1:0", "--out", str(tmp_path / "server"), "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "cutlayer.cli", *words], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            said = ""
            while "waiting for client0" not in said:
                line = process.stderr.readline()
                assert line, f"it ended: {said}"
                said += line
            process.send_signal(signal.SIGTERM)
            said += process.communicate(timeout=30)[1]
        finally:
            process.kill()
    assert process.returncode == 130 and "the same command goes on" in said
