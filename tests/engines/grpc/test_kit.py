"""What an operator sees and does: the audit log, /readyz, versions at the door, and an orderly stop."""

import json
import logging
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from peers import Peer, hello
from rehearsal import Rehearsal, open_site, refuse_other_weights, undisturbed
from toys import tiny_plan

from cutlayer.core.errors import Interrupted
from cutlayer.engines.grpc import audit_log, certs, native_lines
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.audit_log import AUDIT_LOG, AuditLog, Thinned
from cutlayer.engines.grpc.deploy import Service
from cutlayer.engines.grpc.health import start_health, unready
from cutlayer.engines.grpc.pulse import Pulse
from cutlayer.engines.grpc.session import Refused, Type, note
from cutlayer.engines.grpc.versions import LEVELS, VersionPolicy, alike, own_versions

NAMES = ("ward-a", "ward-b")
PLAN = tiny_plan(epochs=2, batch_size=8, clients=2)


def audited(folder):
    return [json.loads(line) for line in (folder / AUDIT_LOG).read_text().splitlines() if line]


# ------------------------------------------------------------------------- one run, looked at from all sides
@dataclass
class Story:
    run: Rehearsal
    answers: dict  # of the health port, by when it was asked
    stopped: Interrupted
    steps: int  # of ward-a when it was stopped


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Somebody is refused; one client is stopped in the middle and comes back, the other's certificate is replaced
    while its connection is open; the run ends as if undisturbed."""
    folder = tmp_path_factory.mktemp("story")
    certs.make(folder / "authority", ["localhost"], [*NAMES, "mallory"])
    shutil.copytree(folder / "authority", folder / "certs")  # what the parties have of it

    stopped = threading.Event()

    def waiting(message, handle):
        if message.client == 0 and message.step == 2:  # else the run may be over before ward-a is stopped
            assert stopped.wait(60)
        return handle(message)

    limits = Limits(every=2, deadline=60.0, review=0.05)
    run = Rehearsal(PLAN, folder, names=NAMES, limits=limits, watchers=(waiting,), identities=folder / "certs")
    health = start_health("127.0.0.1:0", run.service.status)
    answers = {"waiting": get(health, "/readyz"), "elsewhere": get(health, "/")}
    with Peer(run.address("mallory")) as stranger:
        stranger.send(note(Type.HELLO, hello(PLAN, "mallory")))
        assert stranger.refusal() == "unknown client"
    run.join("ward-b")
    serving = run.serve()
    site = open_site(PLAN, "ward-a", run.address("ward-a"), folder / "ward-a", run.parts)
    site.audit = AuditLog(folder / "ward-a", "cutlayer.join")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(_error(site.run)))
    thread.start()
    until(lambda: site.party.network.steps >= 2)
    answers["training"], answers["client"] = get(health, "/readyz"), site.status()
    site.stop()
    thread.join(60)
    stopped.set()
    until(lambda: not run.host.connections[0].connected)
    answers["away"] = get(health, "/readyz")
    certs.make(folder / "authority", [], ["ward-b"], renew=True)
    shutil.copytree(folder / "authority/ward-b", folder / "certs/ward-b", dirs_exist_ok=True)
    shutil.copy2(folder / "authority/server/revoked.txt", folder / "certs/server/revoked.txt")
    until(lambda: run.service.network.refused["revoked"])
    run.join("ward-a")
    serving.join(60)
    run.end()
    answers["finished"], answers["metrics"] = get(health, "/readyz"), get(health, "/metrics")
    health.shutdown()
    health.server_close()
    return Story(run, answers, ended[0], site.party.network.steps)


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def _error(work):
    try:
        return work()
    except BaseException as error:
        return error


def get(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_client_that_is_asked_to_end_goes_on_later_as_if_nothing_had_been(story):
    assert isinstance(story.stopped, Interrupted) and story.stopped.exit_code == 130
    assert "the same command goes on" in str(story.stopped)
    assert story.run.results["server"]["exact"]
    refuse_other_weights(undisturbed(PLAN), story.run)


def test_a_client_whose_certificate_was_replaced_comes_back_with_the_new_one(story):
    """It is cut off for the old one, which is revoked."""
    assert story.run.results["server"]["refused"] == {"unknown client": 1, "revoked": 1}
    assert story.run.results["ward-b"]["exact"] and story.run.results["ward-b"]["connections"] >= 2


def test_readyz_follows_the_run(story):
    told = {when: (code, json.loads(text)["why"]) for when, (code, text) in list(story.answers.items())[:2]}
    assert told["waiting"] == (503, "ward-a, ward-b never came") and told["elsewhere"][0] == 404
    code, text = story.answers["away"]
    assert code == 503 and json.loads(text)["why"] == "away: ward-a"
    assert story.answers["training"][0] == story.answers["finished"][0] == 200
    assert unready(story.answers["client"]) == "" and story.answers["client"]["step"] >= 2


def test_the_audit_log_tells_the_whole_story_and_no_contents(story):
    server, client = audited(story.run.folder / "server"), audited(story.run.folder / "ward-a")
    events = [line["event"] for line in server]
    assert events[0] == "started" and "finished" in events
    refused = [line for line in server if line["event"] == "refused"]
    assert [(line["client"], line["error"]) for line in refused] == [
        ("mallory", "unknown client"),
        ("ward-b", "revoked"),
    ]
    assert "'mallory' is none of the clients" in refused[0]["text"] and refused[0]["from"]
    came = [line["client"] for line in server if line["event"] == "joined"]
    assert came.count("ward-a") >= 2 and came.count("ward-b") >= 1
    assert {line["plan"] for line in server if line["event"] == "plan agreed"} == {PLAN.fingerprint()}
    released = [(line["what"], line["epoch"]) for line in client if line["event"] == "released"]
    assert ("train", 0) in released and client[-1]["event"] == "stopped"
    assert "waiting" not in events and str(PLAN.private_seed) not in json.dumps(server + client)


def test_an_audit_log_is_only_appended_to(tmp_path):
    log = logging.getLogger("cutlayer.serve")
    for number in range(2):
        audit = AuditLog(tmp_path, log.name)
        log.info("one", extra={"facts": {"number": number}})
        logging.getLogger("cutlayer.join").info("of somebody else")
        audit.close()
        log.info("unheard")
        with (tmp_path / AUDIT_LOG).open("ab") as file:
            file.write(b'{"half": ')  # killed while it wrote
    lines = (tmp_path / AUDIT_LOG).read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines[::2]] == [0, 1] and lines[1] == lines[3] == '{"half": '
    assert (tmp_path / AUDIT_LOG).stat().st_mode & 0o077 == 0


def test_a_caller_that_is_refused_all_day_fills_no_disk(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(audit_log.time, "monotonic", lambda: now[0])
    thin, line = Thinned(), logging.makeLogRecord({"msg": "refused", "facts": {"client": "mallory", "error": "plan"}})
    other = logging.makeLogRecord({"msg": "refused", "facts": {"client": "ward-a", "error": "plan"}})
    assert [thin(line) for _ in range(100)] == [0] * audit_log.MOST + [None] * (100 - audit_log.MOST)
    assert thin(other) == 0, "others are heard all the same"
    now[0] = audit_log.SECONDS + 1
    assert thin(line) == 100 - audit_log.MOST
    for number in range(3 * audit_log.KEYS):
        thin(logging.makeLogRecord({"msg": "refused", "facts": {"client": str(number)}}))
    assert len(thin._seen) == audit_log.KEYS


def test_a_full_disk_takes_the_audit_log_and_not_the_run(tmp_path, capsys, monkeypatch):
    log, audit = logging.getLogger("cutlayer.serve"), AuditLog(tmp_path, "cutlayer.serve")

    def full(*ignored):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit_log.files, "write_all", full)
        log.warning("one")
        log.warning("two")
    log.warning("three")
    audit.close()
    assert capsys.readouterr().err.count("make space") == 1
    assert [line["event"] for line in audited(tmp_path)] == ["three"]


# ------------------------------------------------------------------------- gRPC's own lines
CORE = b"I1116 17:03:01.088139   15590 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL\n"


def test_lines_of_the_core_are_events_and_others_are_left_alone():
    level, facts = native_lines.parse(CORE)
    assert level == logging.INFO
    assert facts == {"where": "ssl_transport_security.cc:2563", "text": "Handshake failed with error SSL_ERROR_SSL"}
    assert native_lines.parse(b"E0000 00:00:1731.25 77 a.cc:1] no\n")[0] == logging.ERROR
    assert native_lines.parse(b"Segmentation fault\n") is None


PAST_PYTHON = """
import importlib.util, logging, os, sys
spec = importlib.util.spec_from_file_location("native_lines", sys.argv[1])
room = importlib.util.module_from_spec(spec); spec.loader.exec_module(room)
heard = []
room.log.setLevel(logging.INFO); room.log.propagate = False
handler = logging.Handler(); handler.emit = lambda record: heard.append(record.facts["where"])
room.log.addHandler(handler)
with room.native_lines():
    os.write(2, sys.argv[2].encode()); os.write(2, b"of somebody else\\n")
    print("from Python", file=sys.stderr)
os.write(2, b"and after\\n")
print(heard)
"""


def test_what_passes_python_by_is_heard():
    words = [sys.executable, "-c", PAST_PYTHON, native_lines.__file__, CORE.decode()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "['ssl_transport_security.cc:2563']", done.stderr
    assert sorted(done.stderr.splitlines()) == ["and after", "from Python", "of somebody else"]


# ------------------------------------------------------------------------- versions
@pytest.mark.parametrize(
    ("one", "other", "least"),
    [
        ("2.8.0", "2.8.0", "same"),
        ("2.8.0+cpu", "2.8.0+cu128", "same"),
        ("2.8.0", "2.8.1", "patch"),
        ("2.8.0", "2.10.0", "minor"),
        ("2.8.0", "3.8.0", "any"),
        ("2.8.0", "unknown", "any"),
        ("2.8.0a0+git1", "2.8.0", "patch"),
    ],
)
def test_how_far_versions_differ(one, other, least):
    assert [alike(one, other, level) for level in LEVELS] == [
        LEVELS.index(level) >= LEVELS.index(least) for level in LEVELS
    ]


def patched(text):
    """The same version, one patch on."""
    major, minor, patch = text.partition("+")[0].split(".")[:3]
    return f"{major}.{minor}.{int(patch) + 1}"


def test_a_client_of_another_version_is_refused_by_the_policy(tmp_path):
    own = own_versions()
    service = Service(PLAN, NAMES, tmp_path, listen="127.0.0.1:0", identity=None)
    try:
        address = Rehearsal.address(SimpleNamespace(identities=None, port=service.network.port, quiet=20.0), "ward-a")
        for name, welcome in (("torch", True), ("cutlayer", False)):
            with Peer(address) as peer:
                told = hello(PLAN, "ward-a", versions={**own, name: patched(own[name])})
                if welcome:
                    peer.greet(told)
                else:
                    assert peer.send(note(Type.HELLO, told)).refusal() == "version"
        with Peer(address) as peer:
            assert peer.send(note(Type.HELLO, hello(PLAN, "ward-a", versions=None))).refusal() == "version"
    finally:
        service.close()
    other = {"protocol": 1, "versions": {**own, "cutlayer": patched(own["cutlayer"])}}
    with pytest.raises(Refused, match="or let the server allow it with --versions cutlayer=patch"):
        VersionPolicy().refuse(other)
    VersionPolicy.parse(["cutlayer=patch"]).refuse(other)
    for wrong in ("python=any", "torch=almost", "torch"):
        with pytest.raises(ValueError, match="--versions"):
            VersionPolicy.parse([wrong])


# ------------------------------------------------------------------------- a run that does not move
def test_a_run_is_stalled_after_many_times_the_median_step():
    now = [0.0]
    pulse = Pulse(times=10, least=2.0, clock=lambda: now[0])
    now[0] = 1000.0
    assert not pulse.stalled(), "before the first step clients are waited for"
    pulse.step()
    for took in (0.5, 0.5, 0.5, 60.0, 0.5):  # one slow step is not the measure
        now[0] += took
        pulse.step()
    assert pulse.usual == 0.5
    now[0] += 4.9
    assert not pulse.stalled()
    now[0] += 0.2
    assert pulse.stalled() and not pulse.stalled(sign=now[0] - 1), "an evaluation is a sign of life, too"
    facts = {"state": "training", "missing": [], "stalled": True, "since_step": 5.1, "step_seconds": 0.5}
    assert unready(facts) == "nothing has moved for 5 s, where a step takes 0.5 s"
    with pytest.raises(ValueError, match="--stalled-after"):
        Pulse(times=1)


def test_fast_steps_are_not_stalled_by_a_snapshot():
    now = [0.0]
    pulse = Pulse(times=10, least=2.0, clock=lambda: now[0])
    for _ in range(5):
        now[0] += 0.001
        pulse.step()
    now[0] += 1.9
    assert not pulse.stalled()


def test_a_port_for_metrics_that_is_taken_or_none():
    taken = start_health("127.0.0.1:0", dict)
    try:
        with pytest.raises(OSError, match="choose another port"):
            start_health(f"127.0.0.1:{taken.server_port}", dict)
    finally:
        taken.shutdown()
        taken.server_close()
    with pytest.raises(ValueError, match="--metrics is HOST:PORT"):
        start_health("9100", dict)
