"""Why a server that is there does not talk to us: asked at the start, with sockets of our own.

gRPC calls every failed handshake "unavailable", as if nobody were there. Waiting helps against the one and never
against the other: a certificate of another authority, another host's, or TLS on one side alone.
"""

import contextlib
import socket
import ssl

from . import certs
from .session import Refused

PATIENCE = 5.0  # seconds for a look, at most
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how an HTTP/2 client begins
SETTINGS, ALERT = 4, 0x15  # what an HTTP/2 server begins with; what a TLS server says to somebody without TLS
DATES = (9, 10)  # OpenSSL: not valid yet, and no longer
NAMES = (62, 64)  # OpenSSL: for another host, for another address


def refuse_unlike(target: str, identity: certs.Identity | None, patience: float = PATIENCE) -> str:
    """Refused, with the way out, if the server at `target` can never be ours. Otherwise what is the matter with it,
    as far as it can be told: it may be mended while we wait."""
    server = _Server(target, min(PATIENCE, max(0.1, patience)))
    with contextlib.suppress(OSError):
        if identity is not None:
            return server.refuse_unlike_tls(identity)
        if server.speaks() == "tls":
            raise Refused("tls", f"{target} asks for certificates: give --certs FOLDER in place of --insecure")
    return ""


def place_of(target: str) -> tuple[str, int]:
    """Host and port. A scheme before them would be looked up as a part of the name, for as long as one waits."""
    host, _, port = target.rpartition(":")
    if not host or {*host} & {*"/ "} or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"a server is HOST:PORT, as server.example.org:7443; got {target!r}")
    return host.strip("[]"), int(port)


class _Server:
    """Whoever answers there."""

    def __init__(self, target: str, patience: float):
        self.target, (self.host, self.port), self._patience = target, place_of(target), patience

    def refuse_unlike_tls(self, identity: certs.Identity) -> str:
        context = ssl.create_default_context(cadata=identity.ca.decode())
        context.set_alpn_protocols(["h2"])
        try:
            with self._line() as line, context.wrap_socket(line, server_hostname=self.host):
                return ""
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in DATES:
                return "its certificate has expired, or the clock of one side is wrong; renewed, it is taken at once"
            raise self._unlike(error.verify_code) from error
        except ssl.SSLError as error:
            if self.speaks() == "plain":
                raise Refused(
                    "tls",
                    f"{self.target} runs without certificates (--insecure), and this side has them: start the server "
                    "with --certs",
                ) from error
            return ""

    def _unlike(self, code: int) -> Refused:
        if code in NAMES:
            return Refused(
                "certificate",
                f"the certificate of {self.target} is not for {self.host}: reach it by a name it was made for, or "
                f"add this one with `cutlayer certs … --host {self.host}`",
            )
        return Refused(
            "certificate",
            f"the certificate of {self.target} was not made by the authority in this side's folder: is it the right "
            "server? All folders have to come from one `cutlayer certs`",
        )

    def speaks(self) -> str:
        """What is heard there by somebody without TLS: "plain" HTTP/2, "tls", or what cannot be told."""
        with self._line() as line:
            line.sendall(PREFACE)
            try:
                first = line.recv(9)
            except OSError:
                first = b""
        if len(first) == 9 and first[3] == SETTINGS:
            return "plain"
        # Some TLS servers hang up without a word: a greeting of ours tells what they are.
        return "tls" if first[:1] == bytes([ALERT]) or self._greets() else "?"

    def _greets(self) -> bool:
        """Whether a TLS server is there, whoever it is."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with self._line() as line, context.wrap_socket(line):
                return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        except OSError:
            return False

    def _line(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), self._patience)
