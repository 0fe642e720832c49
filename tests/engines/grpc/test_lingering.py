"""Clients that are there and say nothing, or never hear the end: they are waited for a few times and no more."""

import threading
import time
from dataclasses import replace

import grpc
import pytest
from peers import Peer, Without, hello
from proxy import wait_for
from rehearsal import NAMES, Rehearsal, refuse_other_tensors, undisturbed
from toys import TASK, tiny_plan

from cutlayer.cli.deploy import status_lines
from cutlayer.core.message import Kind
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import channel as uplink
from cutlayer.engines.grpc.admission import Admission, Limits
from cutlayer.engines.grpc.attendance import Attendance
from cutlayer.engines.grpc.carrier import GrpcCarrier
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.engines.grpc.replies import Replies
from cutlayer.engines.grpc.server import GrpcServer
from cutlayer.engines.grpc.session import Refused
from cutlayer.training.build import build_server
from cutlayer.training.coordinator import Coordinator
from cutlayer.training.plan.schedule import Turn

PLAN = tiny_plan(epochs=8, batch_size=8, clients=3, local_steps=2)
SHORT = Limits(every=2, deadline=0.7)


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    monkeypatch.setattr(uplink, "RETRY", 0.1)


# ------------------------------------------------------------------------------ there, and silent
def silent(run, name, told):
    """Greets whenever it may, and never says a word after that; what it is refused with goes to `told`."""
    while not told:
        with Peer(run.address(name)) as peer:
            try:
                peer.greet(hello(run.plan, name, process=str(time.monotonic())))
                while peer.read(20.0) is not None and not told:
                    pass
            except Refused as error:
                if error.name == "banned":
                    told.append(str(error))
                time.sleep(0.05)
            except (EOFError, grpc.RpcError):
                time.sleep(0.05)


def connected(line):
    line.connect({"snapshots": [0]}, lambda packets: None, lambda error: None)


def test_each_deadline_for_one_that_is_there_and_silent_is_a_strike():
    room = Admission(PLAN, NAMES, Limits(deadline=0.02))
    room.known = [{"batches": 2, "own_data": False, "task": TASK} for _ in NAMES]
    coordinator = Coordinator(PLAN.public(), build_server(PLAN.public(), TASK), [2, 2, 2])
    attendance = Attendance(room, lambda client: None, threading.Event())
    carrier, turn = GrpcCarrier(coordinator, TASK, attendance, Replies(coordinator)), Turn(2, 0, 2)
    connected(room.connections[0])
    line = room.connections[2]
    attendance.lose(line)
    for strikes in range(1, admission.STRIKES + 1):
        assert attendance.left_out == [] and not admission.banned(line)
        connected(line)
        assert not carrier._is_here(turn) and line.strikes == strikes and not line.connected
    assert [one["client"] for one in attendance.left_out] == ["ward-c"] and "3 times" in attendance.left_out[0]["why"]
    with pytest.raises(Refused, match="3 times: the run goes on without it"):
        room.admit("ward-c", hello(PLAN, "ward-c"))


def test_who_is_only_away_may_come_back_more_often():
    room = Admission(PLAN, NAMES, Limits())
    attendance = Attendance(room, lambda client: None, threading.Event())
    line = room.connections[2]
    for _ in range(admission.ABSENCES - 1):
        attendance.wait_in_vain(line)
    assert not admission.banned(line) and line.strikes == 0
    attendance.wait_in_vain(line)
    assert attendance.left_out == [{"client": "ward-c", "why": "ward-c stayed away past the deadline 10 times"}]


def test_who_is_away_is_waited_for_though_another_was_asked_later(tmp_path):
    """Of clients that are asked side by side, the one that was asked last was said to be waited for."""
    room = Admission(PLAN, NAMES, Limits(deadline=30.0))
    room.known = [{"batches": 2, "own_data": False, "task": TASK} for _ in NAMES]
    room.task = TASK
    host = GrpcServer(room, tmp_path)
    away, there, idle = room.connections
    connected(there)
    connected(idle)
    whole = {"state": "training", "plan": "", "missing": [], "refused": {}}

    def marked():
        lines = status_lines(whole | host.status())
        return [name for name in NAMES for line in lines if name in line and "the run waits for it" in line]

    until = time.monotonic() + 30.0
    asked = threading.Thread(target=host.attendance.wait_for, args=(away, until))
    asked.start()
    wait_for(lambda: marked() == ["ward-a"], what="ward-a is waited for")
    host.attendance.wait_for(there, until)  # it answers, and the other is still away
    assert marked() == ["ward-a"]
    connected(away)
    asked.join()
    assert marked() == [] and host.status()["waiting_for"] == ""


@pytest.mark.campaign
def test_who_comes_back_again_and_again_and_says_nothing_is_left_out(tmp_path):
    """Each round cost the others a deadline, to the end of the run."""
    run, told = Rehearsal(PLAN, tmp_path, limits=SHORT), []
    run.join("ward-a")
    run.join("ward-b")
    mute = threading.Thread(target=lambda: silent(run, "ward-c", told), daemon=True)
    mute.start()
    run.serve()
    result = run.end(20.0)
    told.append("over")
    mute.join(20.0)
    assert "3 times" in told[0] and "goes on without it" in told[0]
    assert [one["client"] for one in result["left_out"]] == ["ward-c"] and "3 times" in result["left_out"][0]["why"]
    assert run.host.connections[2].strikes == admission.STRIKES and not result["exact"]
    refuse_other_tensors(
        undisturbed(replace(PLAN, partition=Without((2,)))).tensors(), run.host.coordinator.tensors()
    )


# -------------------------------------------------------------------------------------- the goodbye
def deaf(site, monkeypatch, how):
    """At the end this client does not answer. It comes as somebody new, or is gone for good."""
    follow = site._follow

    def followed(order):
        if order.kind is not Kind.END:
            return follow(order)
        site.channel.close()
        if how == "for good":
            raise SystemExit
        site.channel.session_id = ""
        return site.channel._reconnect()  # raises: the server has forgotten it

    monkeypatch.setattr(site, "_follow", followed)


def impatient_at_the_goodbye(monkeypatch, seconds):
    """Whoever does not hear the end is waited for so long; in training everybody has time."""
    part = GrpcServer.part

    def parting(server, told):
        limits = server.attendance.limits
        server.attendance.limits = replace(limits, deadline=seconds)
        part(server, told)
        server.attendance.limits = limits

    monkeypatch.setattr(GrpcServer, "part", parting)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["for good", "as somebody new"])
def test_who_never_hears_the_goodbye_is_not_told_for_ever(how, tmp_path, monkeypatch, patient_with):
    patient_with("ward-a", "ward-b")
    impatient_at_the_goodbye(monkeypatch, 1.0)
    run = Rehearsal(replace(PLAN, epochs=1), tmp_path, limits=replace(SHORT, deadline=60.0))
    prepare = DeployedClient.prepare

    def prepared(site, *told, **more):
        prepare(site, *told, **more)
        if site.name == "ward-c":
            deaf(site, monkeypatch, how)

    monkeypatch.setattr(DeployedClient, "prepare", prepared)
    for name in run.names:
        run.join(name)
    server = run.serve()
    server.join(50.0)
    assert not server.is_alive(), "the server still tells it"
    assert run.results["server"]["ended"] == ["ward-a", "ward-b"] and run.results["server"]["exact"]


def test_who_comes_when_the_run_is_over_hears_so(tmp_path, monkeypatch, patient_with):
    """A server that stays for predictions left it waiting, for `--silence` seconds."""
    patient_with("ward-a")
    impatient_at_the_goodbye(monkeypatch, 0.2)
    run = Rehearsal(tiny_plan(epochs=1, clients=2), tmp_path, limits=Limits(deadline=60.0), names=NAMES[:2])
    prepare, part, parted = DeployedClient.prepare, GrpcServer.part, threading.Event()

    def prepared(site, *told, **more):
        prepare(site, *told, **more)
        if site.name == "ward-b" and not parted.is_set():
            deaf(site, monkeypatch, "for good")

    def parting(*told, **more):
        part(*told, **more)
        parted.set()

    monkeypatch.setattr(DeployedClient, "prepare", prepared)
    monkeypatch.setattr(GrpcServer, "part", parting)
    for name in run.names:
        run.join(name)
    run._start(lambda: run.service.run(stay=True))
    assert parted.wait(60.0) and isinstance(run.errors.pop(), SystemExit)
    late = run.join("ward-b")
    late.join(50.0)
    assert not late.is_alive() and not run.errors, "it still waits"
    assert run.results["ward-b"]["steps"] == 1 and run.results["ward-b"]["exact"]
    run.join("ward-a").join(50.0)
    assert "over, and ward-a has heard so" in str(run.errors.pop())
