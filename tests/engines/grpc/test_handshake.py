"""A server that can never be ours is refused at once, with the way out; one that is away is waited for."""

import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest
from toys import tiny_plan

from cutlayer.engines.grpc import certs, channel, handshake
from cutlayer.engines.grpc.certs import files
from cutlayer.engines.grpc.certs.authority import _load_authority, issue
from cutlayer.engines.grpc.channel import Address, GaveUp, status
from cutlayer.engines.grpc.credentials import Expiry
from cutlayer.engines.grpc.deploy import Service, join
from cutlayer.engines.grpc.session import Refused

PLAN = tiny_plan(epochs=1, clients=2)
NAMES = ("ward-a", "ward-b")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Certificates of two authorities."""
    home = tmp_path_factory.mktemp("authorities")
    for name in ("ours", "theirs"):
        certs.make(home / name, ["localhost"], NAMES, operators=["ops"])
    return home


@pytest.fixture(scope="module")
def serve(folders, tmp_path_factory):
    """Ports of a server with certificates and of one without."""
    made = {
        kind: Service(
            PLAN, NAMES, tmp_path_factory.mktemp(kind), listen="localhost:0" if own else "127.0.0.1:0", identity=own
        )
        for kind, own in (("tls", folders / "ours" / "server"), ("plain", None))
    }
    yield {kind: service.network.port for kind, service in made.items()}
    for service in made.values():
        service.close()


def test_a_command_that_fails_says_one_sentence_and_no_lines_of_the_core(folders, serve, tmp_path):
    """What gRPC writes past Python stood above the sentence that says how to mend it."""
    theirs, taken = folders / "theirs" / "ward-a", f"127.0.0.1:{serve['plain']}"
    tried = {
        ("status", f"localhost:{serve['tls']}", "--certs", str(theirs)): (3, "was not made by the authority"),
        ("serve", "--insecure", "--listen", taken, "--out", str(tmp_path / "s")): (1, "the port is taken"),
    }
    alone = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    begun = [
        subprocess.Popen([sys.executable, "-m", "cutlayer", *words], stderr=subprocess.PIPE, text=True, env=alone)
        for words in tried
    ]
    for process, (code, words) in zip(begun, tried.values(), strict=True):
        _, err = process.communicate(timeout=120)
        assert process.returncode == code and err.startswith("error: ") and words in err
        assert len(err.splitlines()) == 1


def identity(folder):
    return certs.read_identity(folder)


@pytest.mark.parametrize(
    ("kind", "host", "own", "says"),
    [
        ("tls", "localhost", "theirs/ward-a", "not made by the authority in this side's folder"),
        ("tls", "127.0.0.1", "ours/ward-a", "is not for 127.0.0.1.*--host 127.0.0.1"),
        ("tls", "127.0.0.1", None, "give --certs FOLDER in place of --insecure"),
        ("plain", "localhost", "ours/ward-a", "runs without certificates"),
    ],
)
def test_what_no_waiting_helps_against_ends_at_once(serve, folders, tmp_path, kind, host, own, says):
    address = Address(f"{host}:{serve[kind]}", identity(folders / own) if own else None, give_up=60.0)
    began = time.monotonic()
    with pytest.raises(Refused, match=says) as found:
        join(PLAN, "ward-a", tmp_path / "a", address=address)
    assert found.value.exit_code == 3 and time.monotonic() - began < 30
    with pytest.raises(Refused, match=says):
        status(address)


def test_those_who_fit_are_not_refused(serve, folders):
    handshake.refuse_unlike(f"localhost:{serve['tls']}", identity(folders / "ours/ward-a"))
    handshake.refuse_unlike(f"127.0.0.1:{serve['plain']}", None)


def test_nobody_and_somebody_else_are_waited_for(folders):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        closed = silent.getsockname()[1]
    for own in (None, identity(folders / "ours/ward-a")):
        handshake.refuse_unlike(f"127.0.0.1:{closed}", own)
    with pytest.raises(GaveUp):
        status(Address(f"127.0.0.1:{closed}"), timeout=0.5)


def test_an_operator_may_ask_and_nothing_else(serve, folders, tmp_path):
    address = Address(f"localhost:{serve['tls']}", identity(folders / "ours/ops"))
    assert status(address)["missing"] == list(NAMES)
    with pytest.raises(Refused, match="ops is an operator, who may ask for the status and no more") as found:
        join(PLAN, "ops", tmp_path / "x", address=address)
    assert found.value.name == "operator"
    with pytest.raises(certs.CertificateError, match="an operator's, who may ask for `cutlayer status` alone"):
        certs.read_identity(folders / "ours/ops", "client")
    assert not (folders / "ours/ops" / certs.WEIGHTS_KEY).exists()


def test_a_target_that_is_none(folders):
    with pytest.raises(ValueError, match="a server is HOST:PORT"):
        handshake.refuse_unlike("localhost", None)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path):
    """And one that is half copied is not: the old one is shown until the new one is whole."""
    home = tmp_path / "certs"
    certs.make(home, ["localhost"], ["ward-a", "ward-b"])
    service = Service(PLAN, NAMES, tmp_path / "server", listen="localhost:0", identity=home / "server")
    own, port = identity(home / "ward-a"), service.network.port
    shown = lambda: certs.serial(ssl.get_server_certificate(("localhost", port)).encode())  # noqa: E731
    try:
        address = Address(f"localhost:{port}", own)
        before = shown()
        key = (home / "server" / "key.pem").read_bytes()
        certs.make(home, ["localhost"], ["ward-a"], renew=True)
        new = (home / "server" / "key.pem").read_bytes()
        (home / "server" / "key.pem").write_bytes(key)
        assert shown() == before
        (home / "server" / "key.pem").write_bytes(new)
        assert shown() == certs.serial((home / "server" / "cert.pem").read_bytes()) != before
        assert status(address)["state"] == "waiting", "the client shows its new certificate, too: the old is revoked"
        assert certs.read_identity(home / "ward-a").cert != own.cert
        said = [json.loads(line) for line in (tmp_path / "server" / "audit.jsonl").read_text().splitlines()]
        events = [line["event"] for line in said]
        assert events.index("certificates not read again") < events.index("certificates read again")
    finally:
        service.close()


def test_the_end_of_a_certificate_is_said_weeks_ahead_and_once_a_day(tmp_path, caplog):
    home = tmp_path / "certs"
    certs.make(home, ["localhost"], ["ward-a"], days=20)
    log = logging.getLogger("test")
    expiry = Expiry(log)
    for _ in range(2):
        expiry.own(identity(home / "server"), "server")
    (line,) = [record.facts for record in caplog.records if record.getMessage() == "certificate ends soon"]
    assert line["whose"] == "server" and line["days"] == 19 and "--renew" in line["way_out"]
    assert set(expiry.facts()) == {"server", "authority"}


def test_a_server_whose_certificate_has_ended_is_waited_for_and_it_is_said(folders, tmp_path, monkeypatch):
    """It can be renewed without a restart: whoever waits goes on then."""
    monkeypatch.setattr(channel, "NEXT", 600.0)  # one look is enough here, and may take its time
    home = tmp_path / "certs"
    certs.make(home, ["localhost"], ["ward-a"])
    own = identity(home / "ward-a")
    with ended_server(home) as port, pytest.raises(GaveUp, match="its certificate has expired") as found:
        status(Address(f"localhost:{port}", own), timeout=60.0)
    assert found.value.exit_code == 4


@contextmanager
def ended_server(home):
    """Something that shakes hands with a certificate of yesterday."""
    authority = _load_authority(home)
    issue(home, authority, "server", timedelta(days=-1), ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "server" / "cert.pem", home / "server" / "key.pem")
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("localhost", 0)) as door:
        ended = threading.Event()

        def answer():
            while not ended.is_set():
                with suppress(OSError):
                    line, _ = door.accept()
                    with line, suppress(OSError):
                        context.wrap_socket(line, server_side=True).close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield door.getsockname()[1]
        ended.set()
        door.shutdown(socket.SHUT_RDWR)


def test_names_and_folders_of_operators(folders, tmp_path):
    with pytest.raises(certs.CertificateError, match="named as a client and as an operator"):
        certs.make(tmp_path / "c", ["localhost"], ["ward-a"], operators=["Ward-A"])
    with pytest.raises(certs.CertificateError, match="--operator '-x'"):
        certs.make(tmp_path / "c", ["localhost"], [], operators=["-x"])
    with pytest.raises(certs.CertificateError, match="not one of a client; --renew"):
        certs.make(folders / "ours", [], ["ops"])
    with pytest.raises(certs.CertificateError, match="not one of an operator; --renew"):
        certs.make(folders / "ours", [], [], operators=["ward-a"])
    assert not (tmp_path / "c").exists()


def test_a_secret_that_root_hands_to_our_group_alone_is_taken(tmp_path, monkeypatch):
    """So orchestrators mount them; what anybody else may read is refused all the same."""
    path, about = tmp_path / "key.pem", SimpleNamespace(st_uid=0, st_mode=0o100440)
    path.write_bytes(b"key")
    monkeypatch.setattr(files.os, "geteuid", lambda: 10001)
    assert not files._open_to_others(about)
    for other in (
        SimpleNamespace(st_uid=10001, st_mode=0o100440),
        SimpleNamespace(st_uid=0, st_mode=0o100444),
        SimpleNamespace(st_uid=0, st_mode=0o100460),
    ):
        assert files._open_to_others(other)
    monkeypatch.setattr(files.os, "geteuid", lambda: 0)
    assert files._open_to_others(about), "root itself needs no group"


@pytest.mark.parametrize(
    "target", ["localhost", "localhost:99999", "https://localhost:7443", ":7443", "local host:7443"]
)
def test_a_server_that_is_no_host_and_port_is_refused_before_anybody_is_called(target, folders):
    """A name with a scheme was looked up for an hour."""
    with pytest.raises(ValueError, match=r"a server is HOST:PORT, as server\.example\.org:7443; got"):
        Address(target, certs.read_identity(folders / "ours/ward-a"))
