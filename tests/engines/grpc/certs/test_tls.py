"""Who is let in over real sockets, by which certificate."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from certificates import ENDED, SOON, load

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.certs import (
    Identity,
    Revoked,
    authority,
    common_name,
    make,
    read_identity,
    serial,
)
from cutlayer.engines.grpc.certs.x509 import key_pem, new_key, pem, signed

DIRECT = [("grpc.enable_http_proxy", 0)]


@contextmanager
def serving(identity, revoked=None):
    """A server that answers with the name in the caller's certificate; yields its port."""

    def answer(request, context):
        shown = context.auth_context()["x509_pem_cert"][0]
        if revoked is not None and revoked.holds(serial(shown)):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "revoked")
        return common_name(shown).encode()

    method = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("toy", {"who": method}),))
    keys = grpc.ssl_server_credentials([(identity.key, identity.cert)], identity.ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", keys)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait(10)


def ask(port, ca, key=None, cert=None, host="127.0.0.1"):
    """Who the server says we are."""
    with grpc.secure_channel(f"{host}:{port}", grpc.ssl_channel_credentials(ca, key, cert), DIRECT) as channel:
        return channel.unary_unary("/toy/who")(b"", timeout=20).decode()


def refused(*arguments, **named):
    with pytest.raises(grpc.RpcError) as error:
        ask(*arguments, **named)
    return error.value.code()


def made_out(folder, name, use, hosts=(), lifetime=SOON):
    """A certificate of this authority as no user gets it."""
    signer, key = authority._load_authority(folder), new_key()
    certificate = signed(name, key.public_key(), signer.certificate, signer.key, lifetime, use, hosts)
    return Identity(signer.pem, pem(certificate), key_pem(key))


@pytest.fixture(scope="module")
def port(made):
    with serving(read_identity(made / "server")) as number:
        yield number


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_enters_under_its_own_name(made, port, host):
    for name in ("hospital-a", "hospital-b"):
        client = read_identity(made / name)
        assert ask(port, client.ca, client.key, client.cert, host=host) == name


def test_nobody_enters_without_a_certificate(made, port):
    assert refused(port, read_identity(made / "hospital-a").ca) == grpc.StatusCode.UNAVAILABLE


def test_nobody_enters_with_a_certificate_of_another_authority(made, port, tmp_path):
    make(tmp_path, ["localhost"], ["hospital-a"])
    other = read_identity(tmp_path / "hospital-a")
    ours = read_identity(made / "hospital-a").ca
    assert refused(port, ours, other.key, other.cert) == grpc.StatusCode.UNAVAILABLE
    assert refused(port, other.ca, other.key, other.cert) == grpc.StatusCode.UNAVAILABLE


def test_nobody_enters_with_a_certificate_that_a_client_signed(made, port):
    """A client holds a key that this authority signed; it must not be an authority by that."""
    client, key = read_identity(made / "hospital-a"), new_key()
    issuer, signer = load(made / "hospital-a" / "cert.pem"), certs.x509.load_key(client.key, Path("key"))
    forged = pem(signed("hospital-b", key.public_key(), issuer, signer, SOON, "client"))
    assert refused(port, client.ca, key_pem(key), forged + client.cert) == grpc.StatusCode.UNAVAILABLE


def test_nobody_enters_with_an_expired_certificate(made, port):
    late = made_out(made, "hospital-a", "client", lifetime=ENDED)
    assert refused(port, late.ca, late.key, late.cert) == grpc.StatusCode.UNAVAILABLE
    fresh = made_out(made, "hospital-a", "client")
    assert ask(port, fresh.ca, fresh.key, fresh.cert) == "hospital-a", "the date alone made the difference"


def test_the_servers_certificate_is_none_of_a_client(made, port):
    server = read_identity(made / "server")
    assert refused(port, server.ca, server.key, server.cert) == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("use", "hosts", "enters"), [
    ("server", ["127.0.0.1"], True),
    ("client", ["127.0.0.1"], False),
    ("server", ["127.0.0.2"], False),
])  # fmt: skip
def test_a_client_does_not_talk_to_another_client_as_the_server(made, use, hosts, enters):
    """Even one that holds the right host: the purpose decides."""
    client = read_identity(made / "hospital-a")
    with serving(made_out(made, "server", use, hosts)) as number:
        if enters:
            assert ask(number, client.ca, client.key, client.cert) == "hospital-a"
        else:
            assert refused(number, client.ca, client.key, client.cert) == grpc.StatusCode.UNAVAILABLE


def test_a_revoked_client_is_known_by_what_it_shows(own):
    """A running server turns a client away from the moment it is on the list, and lets its new certificate in."""
    before, other = read_identity(own / "hospital-a"), read_identity(own / "hospital-b")
    with serving(read_identity(own / "server"), Revoked(own / "server" / "revoked.txt")) as number:
        assert ask(number, before.ca, before.key, before.cert) == "hospital-a"
        make(own, [], ["hospital-a"], renew=True)
        assert refused(number, before.ca, before.key, before.cert) == grpc.StatusCode.PERMISSION_DENIED
        after = read_identity(own / "hospital-a")
        assert ask(number, after.ca, after.key, after.cert) == "hospital-a"
        assert ask(number, other.ca, other.key, other.cert) == "hospital-b"
        (own / "server" / "revoked.txt").write_text("")
        assert refused(number, other.ca, other.key, other.cert) == grpc.StatusCode.UNKNOWN, (
            "a damaged list admits none"
        )


def greeter(made, version):
    """A client's TLS context that speaks this version alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(made / "hospital-a" / "ca.pem")
    context.load_cert_chain(made / "hospital-a" / "cert.pem", made / "hospital-a" / "key.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    return context


def spoken(context, port):
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
    ):
        return secure.version()


def can_offer(made, version):
    """Whether the local library can speak a version with a server that takes it: else a refusal shows nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server" / "cert.pem", made / "server" / "key.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = version
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def take_one():
            with listening.accept()[0] as raw:
                raw.settimeout(20)
                with suppress(OSError):
                    context.wrap_socket(raw, server_side=True).close()

        taker = threading.Thread(target=take_one)
        taker.start()
        try:
            return spoken(greeter(made, version), listening.getsockname()[1]) is not None
        except OSError:
            return False
        finally:
            taker.join(30)


@pytest.mark.parametrize(
    ("version", "name"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_tls_of_today_is_spoken(made, port, version, name):
    assert spoken(greeter(made, version), port) == name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_tls_of_yesterday_is_refused(made, port, version):
    if not can_offer(made, version):
        pytest.skip(f"{ssl.OPENSSL_VERSION} here cannot offer {version.name}")
    with pytest.raises((ssl.SSLError, ConnectionError)):  # gRPC hangs up without a word
        spoken(greeter(made, version), port)
