"""Names: of folders and files, of clients and hosts."""

import contextlib
import ipaddress
import re
from collections.abc import Sequence
from typing import Literal

AUTHORITY, SERVER = "authority", "server"  # folders that no client may be named after
REVOKED, ISSUED = "revoked.txt", "issued.txt"
PARTS = ("ca.pem", "cert.pem", "key.pem")
WEIGHTS_KEY = "weights.key"  # of all clients together, and of no server: by it they know each other's weights

# The first character keeps '.', '..', hidden files and things that look like options out of the folder.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Use = Literal["server", "client", "operator"]  # an operator may ask how a run stands, and nothing else


class CertificateError(ValueError):
    """Certificates that are not there, or cannot be trusted; the message says what to do."""


def party_names(names: Sequence[str], option: str = "--client") -> list[str]:
    """Each once, in order; refused if a folder could not bear the name."""
    seen: dict[str, str] = {}
    for name in names:
        if not NAME.fullmatch(name):
            raise CertificateError(
                f"{option} {name!r}: a name is 1 to 64 letters, digits, '.', '_' or '-', and starts with none of '.-'"
            )
        if name.lower() in (AUTHORITY, SERVER):
            raise CertificateError(
                f"{option} {name!r}: that is the folder of the {name.lower()}; choose another name"
            )
        if seen.setdefault(name.lower(), name) != name:
            raise CertificateError(f"{option} {name!r} and {seen[name.lower()]!r} differ in capital letters alone")
    return list(seen.values())


def host_names(texts: Sequence[str]) -> list[str]:
    """Each once, in order: names in lower case, addresses in their usual form."""
    return list(dict.fromkeys(map(_host, texts)))


def _host(text: str) -> str:
    with contextlib.suppress(ValueError):
        if "%" not in text:  # a zone means something on one machine alone
            return str(ipaddress.ip_address(text))
    host = text.lower()
    labels = host.split(".")
    # A last label of digits is a mistyped address: no top-level domain is a number.
    if len(host) > 253 or labels[-1].isdigit() or not all(LABEL.fullmatch(label) for label in labels):
        raise CertificateError(
            f"--host {text!r} is neither a host name nor an IP address; give it without port, path or '*', "
            "e.g. server.example.org"
        )
    return host
