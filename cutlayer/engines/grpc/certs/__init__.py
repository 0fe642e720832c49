"""Who may take part: a private authority, one folder of certificates for each party, a list of revoked ones.

    DIR/authority/  ca.pem ca.key issued.txt               stays offline: whoever has ca.key can let anybody in
    DIR/server/     ca.pem cert.pem key.pem revoked.txt    goes to the server
    DIR/hospital-a/ ca.pem cert.pem key.pem weights.key    goes to that client, and to nobody else
    DIR/ops/        ca.pem cert.pem key.pem                goes to an operator, who may ask how a run stands

`cryptography` is loaded when a certificate is read or made, so that everything else works without it.
"""

from .authority import Row, make, revoke, show, table
from .base import REVOKED, WEIGHTS_KEY, CertificateError, Use
from .identity import Identity, again, common_name, ended, ends, is_operators, read_identity, serial
from .lists import Revoked

__all__ = [
    "REVOKED",
    "WEIGHTS_KEY",
    "CertificateError",
    "Identity",
    "Revoked",
    "Row",
    "Use",
    "again",
    "common_name",
    "ended",
    "ends",
    "is_operators",
    "make",
    "read_identity",
    "revoke",
    "serial",
    "show",
    "table",
]
