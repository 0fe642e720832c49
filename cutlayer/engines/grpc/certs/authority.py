"""What `cutlayer certs` does: make an authority and its parties, add, renew, revoke, show."""

import hmac
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .base import (
    AUTHORITY,
    ISSUED,
    NAME,
    PARTS,
    REVOKED,
    SERVER,
    WEIGHTS_KEY,
    CertificateError,
    Use,
    host_names,
    party_names,
)
from .files import OLD, WRITING, listed, locked, new_folder, read, read_secret, replace, trouble_told, write
from .lists import TIME, Entry, list_text, read_list

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from .x509 import Key

LEAF_DAYS = 825
AUTHORITY_DAYS = 3650


@trouble_told()
def make(
    folder: Path,
    hosts: Sequence[str],
    clients: Sequence[str],
    days: int | None = None,
    renew: bool = False,
    operators: Sequence[str] = (),
) -> list[str]:
    """Make what is not there yet, replace what is named if `renew`; returns what happened, in sentences."""
    from . import x509  # noqa: F401 - if it is missing, say so before anything is written

    folder = Path(folder)
    if not hosts and not clients and not operators:
        raise CertificateError("name at least one --host of the server, one --client or one --operator")
    hosts = host_names(hosts)
    uses = _uses(party_names(clients), party_names(operators, "--operator"), bool(hosts))
    if days is not None and days < 1:
        raise CertificateError(f"--days is at least 1; got {days}")
    if not hosts and not any((folder / name).is_dir() for name in (SERVER, OLD + SERVER)):
        raise CertificateError(f"{folder} has no server yet: name the hosts clients will reach it by, with --host")
    with locked(folder):
        notes = [] if os.path.lexists(folder / AUTHORITY) else [_make_authority(folder, days)]
        authority = _load_authority(folder)
        lifetime = authority.lifetime(days)
        record = _keep_record(folder)
        # Refuse before anything is written.
        there = {name: _is_there(folder, name, use, record, authority, renew) for name, use in uses.items()}
        for name, use in uses.items():
            if there[name] and not renew:
                notes.append(_keep(folder, authority, name, hosts, lifetime))
            else:
                issue(folder, authority, name, lifetime, hosts if name == SERVER else (), use)
                # What stands in the record but not in a folder is replaced as well.
                old = there[name] or any(entry.name == name for entry in record)
                notes.append(_told(folder, name, hosts, old))
        _keep_record(folder)
    return notes


def _uses(clients: Sequence[str], operators: Sequence[str], server: bool) -> dict[str, Use]:
    """Who is named, and what for."""
    lower = {name.lower() for name in clients}
    if both := [name for name in operators if name.lower() in lower]:
        raise CertificateError(f"{both[0]!r} is named as a client and as an operator; choose another name")
    parties: dict[str, Use] = {SERVER: "server"} if server else {}
    return parties | dict.fromkeys(clients, "client") | dict.fromkeys(operators, "operator")


@trouble_told()
def revoke(folder: Path, names: Sequence[str]) -> list[str]:
    """Put all certificates of these clients on the server's list; returns what happened, in sentences."""
    folder = Path(folder)
    if not (folder / SERVER).is_dir():
        raise CertificateError(f"there is no {folder / SERVER}: the list of revoked certificates lies in it")
    with locked(folder):
        known = sorted({entry.name for entry in _record(folder)} - {SERVER})
        for name in names:
            if name == SERVER:
                raise CertificateError(
                    "clients keep no list of revoked certificates: if the server's key is in wrong hands, make a new "
                    "authority in a new folder and hand out all certificates again"
                )
            if name not in known:
                raise CertificateError(f"no certificate was made for {name!r}; there is {', '.join(known) or 'none'}")
        return [
            f"revoked {name}: copy {folder / SERVER / REVOKED} to the server"
            if _revoke(folder, name)
            else f"{name} was revoked before"
            for name in dict.fromkeys(names)
        ]


# ------------------------------------------------------------------ the table
@dataclass(frozen=True)
class Row:
    """One certificate in the table of `cutlayer certs DIR --show`."""

    who: str
    serial: str
    expires: str
    days_left: int
    revoked: str | None


@trouble_told()
def show(folder: Path) -> list[Row]:
    """Every certificate that was made: the authority's, the server's, the clients'."""
    from . import x509

    folder = Path(folder)
    if not folder.is_dir():
        raise CertificateError(f"there is no folder {folder}; `cutlayer certs {folder} --host … --client …` makes it")
    entries = sorted(_record(folder), key=lambda entry: (entry.name != SERVER, entry.name, entry.when))
    ca = folder / AUTHORITY / "ca.pem"
    if ca.exists():
        entries.insert(0, _entry(x509.load(read(ca), ca), AUTHORITY))
    if not entries:
        raise CertificateError(f"there are no certificates in {folder}")
    # Without the server's folder nobody knows who is revoked, and an empty column would say: nobody.
    unknown = None if (folder / SERVER).is_dir() else f"? no {SERVER}/"
    revoked = {entry.serial: entry.when.strftime(TIME) for entry in read_list(folder / SERVER / REVOKED)}
    now = datetime.now(UTC)
    return [
        Row(
            entry.name,
            f"{entry.serial:040x}",
            entry.when.strftime(TIME),
            (entry.when - now).days,  # rounded down: below zero from the moment of expiry on
            revoked.get(entry.serial, unknown),
        )
        for entry in entries
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text, a heading first."""
    cells = [("who", "serial", "expires", "revoked")]
    for row in rows:
        left = f"{row.days_left} days left" if row.days_left >= 0 else "EXPIRED"
        cells.append((row.who, row.serial, f"{row.expires[:10]} ({left})", (row.revoked or "")[:10]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


# ------------------------------------------------------------------ the authority
@dataclass(frozen=True)
class Authority:
    """The certificate that all believe, and the key that signs."""

    certificate: "Certificate"
    key: "Key" = field(repr=False)
    pem: bytes

    def weights_key(self) -> bytes:
        """The one key of all its clients, as text. It follows from the authority's own, which no server has."""
        from . import x509

        return hmac.digest(x509.key_pem(self.key), b"cutlayer: weights that clients hand on", "sha256").hex().encode()

    def lifetime(self, days: int | None) -> timedelta:
        """How long a new certificate lives; none outlives the authority."""
        left = self.certificate.not_valid_after_utc - datetime.now(UTC)
        if days is not None and days > left.days:
            raise CertificateError(
                f"--days {days}: the authority itself ends in {left.days} days; take fewer, or start a new folder"
            )
        return min(timedelta(days=days or LEAF_DAYS), left)


def _make_authority(folder: Path, days: int | None, lifetime: timedelta = timedelta(days=AUTHORITY_DAYS)) -> str:
    from . import x509

    home = folder / AUTHORITY
    others = ", ".join(path.name for path in _parties(folder))
    if others:
        raise CertificateError(
            f"{home} is missing, but there is {others}: bring it back from where it is kept, "
            "or start anew in an empty folder"
        )
    if days is not None and days >= AUTHORITY_DAYS:
        raise CertificateError(f"--days {days}: the authority itself lives {AUTHORITY_DAYS} days; take fewer")
    key = x509.new_key()
    # A number in the name: a certificate of another authority is then known as such, not as one badly signed.
    certificate = x509.self_signed(f"cutlayer authority {os.urandom(4).hex()}", key, lifetime)
    with new_folder(folder, AUTHORITY) as beside:
        write(beside / "ca.key", x509.key_pem(key), 0o600)
        write(beside / "ca.pem", x509.pem(certificate), 0o644)
        write(beside / ISSUED, list_text([]), 0o644)
    return f"made {home}: keep it offline, whoever has ca.key can let anybody in"


def _load_authority(folder: Path) -> Authority:
    from . import x509

    ca, ca_key = folder / AUTHORITY / "ca.pem", folder / AUTHORITY / "ca.key"
    pem = read(ca)
    certificate = x509.load(pem, ca)
    x509.check_dates(certificate, ca, "start anew in an empty folder and hand out all certificates again")
    key = x509.load_key(read_secret(ca_key), ca_key)
    if not isinstance(key, x509.Key) or not x509.belong_together(certificate, key):
        raise CertificateError(f"{ca_key} is not the key of {ca}; bring back the folder as it was made")
    return Authority(certificate, key, pem)


# ------------------------------------------------------------------ the parties
def issue(
    folder: Path,
    authority: Authority,
    name: str,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
    use: Use | None = None,
) -> None:
    """A new key and certificate in a folder of their own; what that name had before is revoked."""
    from . import x509

    key = x509.new_key()
    use = use or ("server" if name == SERVER else "client")
    certificate = x509.signed(name, key.public_key(), authority.certificate, authority.key, lifetime, use, hosts)
    with new_folder(folder, name) as beside:
        write(beside / "key.pem", x509.key_pem(key), 0o600)
        write(beside / "cert.pem", x509.pem(certificate), 0o644)
        write(beside / "ca.pem", authority.pem, 0o644)
        if name == SERVER:
            write(beside / REVOKED, list_text(_with_revoked(folder, name)), 0o644)
        else:
            if use == "client":
                write(beside / WEIGHTS_KEY, authority.weights_key(), 0o600)
            # Before the new folder takes its place: stopped in between, the old certificate is out, not both in.
            _revoke(folder, name)


def _keep(folder: Path, authority: Authority, name: str, hosts: Sequence[str], lifetime: timedelta) -> str:
    """Leave a party as it is; new hosts of the server get into a new certificate for the key it has."""
    from . import x509

    home = folder / name
    own = x509.load(read(home / "cert.pem"), home / "cert.pem")
    if name == SERVER and not set(hosts) <= set(x509.hosts_of(own)):
        every = list(dict.fromkeys([*x509.hosts_of(own), *hosts]))
        again = x509.signed(SERVER, own.public_key(), authority.certificate, authority.key, lifetime, "server", every)
        replace(home / "cert.pem", x509.pem(again), 0o644)
        return f"{home} is now for {', '.join(every)}: copy its cert.pem to the server, the key is the same"
    if x509.is_for(own, "client") and not (home / WEIGHTS_KEY).exists():  # made before there were such keys
        replace(home / WEIGHTS_KEY, authority.weights_key(), 0o600)
        return f"added {home / WEIGHTS_KEY}: give the folder to {name} again"
    if any(entry.serial == own.serial_number for entry in read_list(folder / SERVER / REVOKED)):
        return f"kept {home}, which is REVOKED; --renew replaces it"
    return f"kept {home}; --renew replaces it"


def _one(use: Use) -> str:
    return "an operator" if use == "operator" else f"a {use}"


def _told(folder: Path, name: str, hosts: Sequence[str], old: bool) -> str:
    home = folder / name
    if name == SERVER:
        return f"{'renewed' if old else 'made'} {home} for {', '.join(hosts)}: copy it to the server"
    if old:
        return f"renewed {home}: give it to {name}, then copy {folder / SERVER / REVOKED} to the server"
    return f"made {home}: give it to {name} and to nobody else"


def _is_there(folder: Path, name: str, use: Use, record: Sequence[Entry], authority: Authority, renew: bool) -> bool:
    """Whether a party has its folder; refuses one that is not as it was made."""
    home = folder / name
    if not os.path.lexists(home):
        _refuse_missing(folder, name, record, renew)
        return False
    if home.is_symlink() or not home.is_dir():
        raise CertificateError(f"{home} is not a folder; move it away")
    files = {path.name for path in listed(home) if not path.name.endswith(WRITING)}
    foreign = sorted(files - {*PARTS, REVOKED, WEIGHTS_KEY})
    if renew and foreign:
        raise CertificateError(f"{home} holds {', '.join(foreign)}, which --renew would delete; move it away first")
    if not renew:
        _refuse_changed(home, use, files, authority)
    return True


def _refuse_missing(folder: Path, name: str, record: Sequence[Entry], renew: bool) -> None:
    alike = [entry.name for entry in record if entry.name.lower() == name.lower()]
    if any(other != name for other in alike):
        raise CertificateError(f"{name!r} and {alike[0]!r}, which was made before, differ in capital letters alone")
    if alike and name == SERVER:
        raise CertificateError(
            f"{folder / name} was made, but is gone: bring it back, its {REVOKED} says who is shut out"
        )
    if alike and not renew:
        raise CertificateError(
            f"{name} has a certificate already, whose folder is not in {folder}: bring it back, "
            "or --renew to make a new one and revoke the old"
        )


def _refuse_changed(home: Path, use: Use, files: set[str], authority: Authority) -> None:
    from . import x509

    missing = [part for part in PARTS if part not in files]
    if missing:
        raise CertificateError(f"{home} is only half there, without {', '.join(missing)}; --renew makes it anew")
    if read(home / "ca.pem") != authority.pem:
        raise CertificateError(f"{home} is of another authority; --renew makes it anew")
    own = x509.load(read(home / "cert.pem"), home / "cert.pem")
    if x509.name_of(own) != home.name:
        raise CertificateError(f"{home} holds the certificate of another name; --renew makes it anew")
    if not x509.is_for(own, use):
        raise CertificateError(f"{home} holds a certificate that is not one of {_one(use)}; --renew makes it anew")


# ------------------------------------------------------------------ the record of what was made
def _record(folder: Path) -> list[Entry]:
    """Every certificate made here: those written down, and those in the folders.

    A party's folder may be moved away, and its certificate can still be revoked.
    """
    from . import x509

    found = {entry.serial: entry for entry in read_list(folder / AUTHORITY / ISSUED)}
    for home in _parties(folder):
        text = read(home / "cert.pem")
        with suppress(CertificateError):  # one that is damaged is written down, and can be renewed
            entry = _entry(x509.load(text))
            if NAME.fullmatch(entry.name):
                found.setdefault(entry.serial, entry)
    return list(found.values())


def _keep_record(folder: Path) -> list[Entry]:
    record = _record(folder)
    path = folder / AUTHORITY / ISSUED
    if record != read_list(path):
        replace(path, list_text(record), 0o644)
    return record


def _revoke(folder: Path, name: str) -> bool:
    """Put all that `name` has on the list; whether anything was not on it."""
    path = folder / SERVER / REVOKED
    before, after = read_list(path), _with_revoked(folder, name)
    if after != before:
        replace(path, list_text(after), 0o644)
    return after != before


def _with_revoked(folder: Path, name: str) -> list[Entry]:
    """The list of revoked certificates once all that `name` has are on it."""
    gone = read_list(folder / SERVER / REVOKED)
    known = {entry.serial for entry in gone}
    now = datetime.now(UTC)
    own = [entry for entry in _record(folder) if entry.name == name and entry.serial not in known]
    return gone + [Entry(entry.serial, name, now) for entry in own]


def _entry(certificate: "Certificate", name: str | None = None) -> Entry:
    from . import x509

    return Entry(certificate.serial_number, name or x509.name_of(certificate), certificate.not_valid_after_utc)


def _parties(folder: Path) -> list[Path]:
    return [
        path
        for path in listed(folder)
        if NAME.fullmatch(path.name) and path.name != AUTHORITY and (path / "cert.pem").is_file()
    ]
