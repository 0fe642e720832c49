"""What a server or a client reads of its own folder, and of a certificate it is shown."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from .base import WEIGHTS_KEY, CertificateError, Use
from .files import read, read_secret, trouble_told


@dataclass(frozen=True)
class Identity:
    """What a party shows and whom it believes: three PEM files; for clients, also what weights are sealed with."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)
    weights: bytes | None = field(default=None, repr=False)
    folder: Path | None = field(default=None, compare=False)  # where it was read, and may be read again


@trouble_told()
def read_identity(folder: Path, use: Use | None = None) -> Identity:
    """The certificates of one party, refused with the reason if no handshake could succeed with them."""
    from . import x509

    folder = Path(folder)
    if not folder.is_dir():
        raise CertificateError(f"there is no folder {folder}; `cutlayer certs` makes one for each party")
    ca, cert, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    shared = folder / WEIGHTS_KEY
    identity = Identity(
        read(ca), read(cert), read_secret(key), _weights_key(shared) if shared.exists() else None, folder
    )
    authority, own = x509.load(identity.ca, ca), x509.load(identity.cert, cert)
    x509.check_dates(authority, ca, "start anew in an empty folder")
    x509.check_dates(own, cert, "`cutlayer certs … --renew` makes a new one")
    if not x509.issued_by(own, authority):
        raise CertificateError(f"{cert} was not made by the authority in {ca}; copy the whole folder again")
    if not x509.belong_together(own, x509.load_key(identity.key, key)):
        raise CertificateError(f"{key} is not the key of {cert}; copy the whole folder again")
    if use == "client" and x509.is_operators(own):
        raise CertificateError(f"{folder} is an operator's, who may ask for `cutlayer status` alone; give a client's")
    if use is not None and not x509.is_for(own, use):
        raise CertificateError(f"the certificate in {folder} is not one of a {use}; give the folder of the {use}")
    return identity


def again(identity: Identity, use: Use | None) -> Identity:
    """The same party as its folder has it now; the same object where nothing has changed."""
    if identity.folder is None:
        return identity
    parts = {"ca.pem": identity.ca, "cert.pem": identity.cert, "key.pem": identity.key}
    try:
        if all((identity.folder / name).read_bytes() == known for name, known in parts.items()):
            return identity
    except OSError:
        pass  # read_identity says what is the matter
    return read_identity(identity.folder, use)


def _weights_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(read_secret(path).decode())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise CertificateError(f"{path} is damaged; copy the whole folder again")
    return key


def common_name(pem: bytes) -> str:
    """The name a certificate is made out to."""
    from . import x509

    return x509.name_of(x509.load(pem))


def ended(pem: bytes) -> bool:
    """Whether the time of a certificate is over."""
    from . import x509

    return x509.load(pem).not_valid_after_utc < datetime.now(UTC)


def ends(pem: bytes) -> datetime:
    """When the time of a certificate is over."""
    from . import x509

    return x509.load(pem).not_valid_after_utc


def is_operators(pem: bytes) -> bool:
    """Whether it was made for somebody who may only ask how a run stands."""
    from . import x509

    return x509.is_operators(x509.load(pem))


def serial(pem: bytes) -> int:
    """The number by which a certificate is revoked."""
    from . import x509

    return x509.load(pem).serial_number
