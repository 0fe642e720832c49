"""Who may take part, through a running service: certificates decide, at the start and while a connection is open."""

import random
import shutil
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from peers import Peer, Without, hello
from proxy import wait_for
from rehearsal import NAMES, Rehearsal, open_site, refuse_other_weights, undisturbed
from siege import conversation, unlike
from toys import tiny_plan

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.admission import STRIKES, Limits
from cutlayer.engines.grpc.certs import x509
from cutlayer.engines.grpc.certs.authority import _load_authority
from cutlayer.engines.grpc.channel import Address, GaveUp, call, status
from cutlayer.engines.grpc.service import ENROLL, STATUS
from cutlayer.engines.grpc.session import Refused, Type, note, read_note
from cutlayer.wire import frames as wire

PLAN = tiny_plan(epochs=2, batch_size=8, clients=3)
LIMITS = Limits(every=2, deadline=20.0, greeting=5.0, review=0.1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authority") / "certs"
    certs.make(folder, ["127.0.0.1", "localhost"], [*NAMES, "stranger"])
    return folder


@pytest.fixture
def room(authority, tmp_path):
    """Certificates of its own to change, and a service that asks for them."""
    folder = shutil.copytree(authority, tmp_path / "certs")
    run = Rehearsal(PLAN, tmp_path / "run", limits=LIMITS, identities=folder)
    yield run
    run.service.stop()


def finish(run, names=NAMES):
    for name in names:
        run.join(name)
    run.serve()
    result = run.end()
    assert result["exact"]
    refuse_other_weights(undisturbed(PLAN), run)
    return result


def test_nobody_enters_without_a_certificate(room):
    target = f"localhost:{room.port}"
    ca = (room.identities / "server" / "ca.pem").read_bytes()
    for credentials in (None, grpc.ssl_channel_credentials(ca)):
        with grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target) as channel:
            for method in (ENROLL, STATUS):
                with pytest.raises(grpc.RpcError) as found:
                    channel.unary_unary(method)(note(Type.HELLO, hello(PLAN, "ward-a")), timeout=5)
                assert found.value.code() is grpc.StatusCode.UNAVAILABLE
    assert finish(room)["refused"] == {}


def test_a_client_acts_under_its_own_name_alone(room):
    stranger, other = room.address("stranger"), room.address("ward-b")
    with pytest.raises(Refused, match="'stranger' is none of the clients") as found:
        open_site(PLAN, "stranger", stranger, room.folder / "x", room.parts)
    assert found.value.name == "unknown client"
    for purpose in ("train", "predict"):
        with Peer(other) as peer:
            peer.send(note(Type.HELLO, hello(PLAN, "ward-a", purpose=purpose)))
            assert peer.refusal() == "name"
    with pytest.raises(Refused, match="the certificate is ward-b's, not ward-a's: type --as ward-b") as found:
        open_site(PLAN, "ward-a", other, room.folder / "y", room.parts)
    assert found.value.name == "name"
    assert finish(room)["refused"] == {"unknown client": 1, "name": 3}


def test_whoever_is_revoked_does_not_enter_any_more(room):
    """Not even to be silent: a certificate that is no longer good holds no place while it says nothing."""
    certs.revoke(room.identities, ["stranger"])
    address = room.address("stranger")
    with Peer(address) as silent:
        assert silent.refusal(2.0) == "revoked"
    for method in (ENROLL, STATUS):
        with pytest.raises(Refused) as found:
            read_note(call(address, method, note(Type.HELLO, hello(PLAN, "stranger")), 5.0), Type.WELCOME)
        assert found.value.name == "revoked"
    assert finish(room)["refused"] == {"revoked": 3}


def test_whoever_is_revoked_while_the_line_is_open_is_dropped(room, patient_with):
    """The others go on without it once the deadline is over."""
    patient_with("ward-a", "ward-b")
    room.service.admission.limits = replace(LIMITS, deadline=1.0)
    room.join("ward-a")
    room.join("ward-b")
    room.serve()
    with Peer(room.address("ward-c")) as peer:
        peer.greet(hello(PLAN, "ward-c"))
        certs.revoke(room.identities, ["ward-c"])
        assert peer.refusal() == "revoked"
    with Peer(room.address("ward-c")) as peer:
        peer.send(note(Type.HELLO, hello(PLAN, "ward-c")))
        assert peer.refusal() == "revoked"
    result = room.end()
    assert not result["exact"] and {row["client"] for row in result["skipped"]} == {"ward-c"}
    assert result["refused"] == {"revoked": 2}
    refuse_other_weights(undisturbed(replace(PLAN, partition=Without((2,)))), room)


def test_a_client_with_a_new_certificate_goes_on(room):
    """Renewed in the middle: the old certificate is revoked, the connection drops, and the same client comes back."""
    room.join("ward-a")
    room.join("ward-b")
    room.serve()
    with Peer(room.address("ward-c")) as peer:
        peer.greet(hello(PLAN, "ward-c"))
        certs.make(room.identities, [], ["ward-c"], renew=True)
        assert peer.refusal() == "revoked"
    room.join("ward-c")
    assert room.end()["exact"]
    refuse_other_weights(undisturbed(PLAN), room)


def test_a_certificate_that_ends_while_the_line_is_open(room, monkeypatch):
    serial = certs.serial((room.identities / "stranger" / "cert.pem").read_bytes())
    mine = certs.serial((room.identities / "ward-c" / "cert.pem").read_bytes())
    over: set[int] = {serial}
    monkeypatch.setattr(certs, "ended", lambda pem: certs.serial(pem) in over)
    with pytest.raises(Refused, match="has expired") as found:
        status(room.address("stranger"))
    assert found.value.name == "expired"
    with Peer(room.address("ward-c")) as peer:
        peer.greet(hello(PLAN, "ward-c"))
        over.add(mine)
        assert peer.refusal() == "expired"
    over.clear()
    assert finish(room)["refused"] == {"expired": 2}


def test_when_a_certificate_ends(room):
    own = (room.identities / "ward-a" / "cert.pem").read_bytes()
    assert not certs.ended(own)
    signer = _load_authority(room.identities)
    key = x509.new_key()
    ended = x509.signed("ward-a", key.public_key(), signer.certificate, signer.key, timedelta(days=-1), "client")
    assert certs.ended(x509.pem(ended))
    late = Address(f"localhost:{room.port}", certs.Identity(signer.pem, x509.pem(ended), x509.key_pem(key)))
    with pytest.raises(GaveUp):
        call(late, STATUS, b"", 2.0)
    with Peer(late) as peer:
        peer.send(note(Type.HELLO, hello(PLAN, "ward-a")))
        assert peer.refusal().startswith("ended")
    assert finish(room)["refused"] == {}


def test_a_list_that_cannot_be_read_lets_nobody_in(room):
    """Until it is mended: then everybody goes on by themselves."""
    listed = room.identities / "server" / "revoked.txt"
    whole = listed.read_bytes()
    listed.write_bytes(b"damaged")
    with pytest.raises(Refused) as found:
        status(room.address("ward-a"))
    assert found.value.name == "internal" and "damaged" not in str(found.value)

    def mend():
        wait_for(lambda: room.service.network.refused["internal"] >= 2, 60.0, "a client was turned away")
        listed.write_bytes(whole)

    threading.Thread(target=mend, daemon=True).start()
    assert finish(room)["refused"]["internal"] >= 2


def test_a_server_of_another_authority_is_not_believed(room, tmp_path):
    other = tmp_path / "other"
    certs.make(other, ["localhost"], ["ward-a"])
    address = Address(f"localhost:{room.port}", certs.read_identity(other / "ward-a", "client"))
    with pytest.raises(Refused, match="not made by the authority"):
        call(address, STATUS, b"", 30.0)
    finish(room)


# ------------------------------------------------------------------------- certified, and hostile
def besiege(run, name, seed):
    """A client with a certificate whose every message is damaged; ends when it is shut out, or finds nobody left."""
    dice, names = random.Random(seed), []
    frames = [bytes(wire.encode(message)) for message in conversation(run.plan)]
    while True:
        try:
            site = open_site(run.plan, name, run.address(name), run.folder / name, run.parts, give_up=5.0)
        except GaveUp:
            return names
        plain = site.channel.send
        site.channel.send = lambda frame, plain=plain: plain(unlike(dice, bytes(frame), frames))
        try:
            site.run()
        except Refused as error:
            names.append(error.name)
            if error.name == "banned":
                return names
        except GaveUp:
            return names
        finally:
            site.channel.close()


def banned_and_unharmed(room, seed):
    names = []
    room.join("ward-a")
    room.join("ward-b")
    room._start(lambda: names.extend(besiege(room, "ward-c", seed)))
    room.serve()
    result = room.end()
    assert len(names) - (names[-1] == "banned") == STRIKES
    assert room.service.network.refused == Counter(names)
    assert not result["exact"] and {row["client"] for row in result["skipped"]} == {"ward-c"}
    refuse_other_weights(undisturbed(replace(PLAN, partition=Without((2,)))), room)


def test_a_certified_client_that_sends_damage_is_shut_out(room):
    """After three strikes, and the others end where they would have ended without it."""
    banned_and_unharmed(room, seed=3)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(40))
def test_certified_clients_that_send_damage_are_shut_out(room, seed):
    banned_and_unharmed(room, seed)
