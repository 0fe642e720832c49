"""Why a server that is there does not talk to us: asked at the start, with sockets of our own.

gRPC calls every failed handshake "unavailable", as if nobody were there. Waiting helps against the one and never
against the other: a certificate of another authority, another host's, or TLS on one side alone.
"""

import contextlib
import socket
import ssl

from . import certs
from .session import Refused

PATIENCE = 5.0  # seconds for a look
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how an HTTP/2 client begins
SETTINGS, ALERT = 4, 0x15  # what an HTTP/2 server begins with; what a TLS server says to somebody without TLS


def refuse_unlike(target: str, identity: certs.Identity | None) -> None:
    """Refused, with the way out, if the server at `target` can never be ours; nothing if it may yet answer."""
    host, port = _place(target)
    with contextlib.suppress(OSError):
        if identity is None:
            if _answer_in_plain(host, port) == "tls":
                raise Refused("tls", f"{target} asks for certificates: give --certs FOLDER in place of --insecure")
            return
        _refuse_unlike_tls(target, host, port, identity)


def _refuse_unlike_tls(target: str, host: str, port: int, identity: certs.Identity) -> None:
    try:
        _shake_hands(host, port, identity)
    except ssl.SSLCertVerificationError as error:
        _refuse_servers(target, host, error)
    except ssl.SSLError as error:
        if _answer_in_plain(host, port) == "plain":
            raise Refused(
                "tls",
                f"{target} runs without certificates (--insecure), and this side has them: start it with --certs",
            ) from error


def _refuse_servers(target: str, host: str, error: ssl.SSLCertVerificationError) -> None:
    if error.verify_code in (9, 10):  # not yet valid, or expired: it may be renewed while we wait
        return
    if error.verify_code in (62, 64):  # host name, address
        raise Refused(
            "certificate",
            f"the certificate of {target} is not for {host}: reach it by a name it was made for, or add this one "
            f"with `cutlayer certs … --host {host}`",
        ) from error
    raise Refused(
        "certificate",
        f"the certificate of {target} was not made by the authority in this side's folder: is it the right server? "
        "All folders have to come from one `cutlayer certs`",
    ) from error


def _shake_hands(host: str, port: int, identity: certs.Identity) -> None:
    """As gRPC would, up to where the server has shown who it is."""
    context = ssl.create_default_context(cadata=identity.ca.decode())
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), PATIENCE) as line,
        context.wrap_socket(line, server_hostname=host),
    ):
        pass


def _answer_in_plain(host: str, port: int) -> str:
    """What speaks there: "plain" HTTP/2, "tls", or something that cannot be told."""
    with socket.create_connection((host, port), PATIENCE) as line:
        line.settimeout(PATIENCE)
        line.sendall(PREFACE)
        try:
            first = line.recv(9)
        except OSError:
            first = b""
    if len(first) == 9 and first[3] == SETTINGS:
        return "plain"
    # Some TLS servers hang up without a word: whether they are, a greeting of theirs tells.
    return "tls" if first[:1] == bytes([ALERT]) or _greets(host, port) else "?"


def _greets(host: str, port: int) -> bool:
    """Whether a TLS server is there, whoever it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), PATIENCE) as line, context.wrap_socket(line):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _place(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"a server is HOST:PORT; got {target!r}")
    return host.strip("[]"), int(port)
