"""Certificates and keys themselves: the one module that needs the package `cryptography`."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .base import CertificateError, Use

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509 import Certificate
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise CertificateError("certificates need the package cryptography: pip install 'cutlayer[deploy]'") from error

BACK = timedelta(minutes=5)  # a certificate is valid a little before it is made: clocks of two sites differ
OPERATOR = "operator"  # the unit in the name of one who may only ask
PURPOSE = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    OPERATOR: ExtendedKeyUsageOID.CLIENT_AUTH,
}

Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pem(certificate: Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def load(data: bytes, path: Path | None = None) -> Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise CertificateError(f"{path or 'what was shown'} is no certificate in PEM form") from error


def load_key(data: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        raise CertificateError(f"{path} is locked with a passphrase; only keys without one can be used") from None
    except (ValueError, UnsupportedAlgorithm):
        # Without the cause: nothing of a key belongs in a trace.
        raise CertificateError(f"{path} is no private key in PEM form; copy the whole folder again") from None


# ------------------------------------------------------------------ making
def self_signed(name: str, key: Key, lifetime: timedelta) -> Certificate:
    """An authority: it signs the certificates of parties, and no other authority (path length 0)."""
    subject = _subject(name)
    unsigned = _unsigned(subject, subject, key.public_key(), key, lifetime)
    return (
        unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .sign(key, SHA256())
    )


def signed(
    name: str,
    public: CertificatePublicKeyTypes,
    issuer: Certificate,
    key: Key,
    lifetime: timedelta,
    use: Use,
    hosts: Sequence[str] = (),
) -> Certificate:
    """A party's certificate: for one purpose, so that no client can pass for the server."""
    unsigned = (
        _unsigned(_subject(name, OPERATOR if use == OPERATOR else ""), issuer.subject, public, key, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([PURPOSE[use]]), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        unsigned = unsigned.add_extension(names, critical=False)
    return unsigned.sign(key, SHA256())


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public: CertificatePublicKeyTypes, key: Key, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - BACK)  # a lifetime below zero has ended: tests need such
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )


def _subject(name: str, unit: str = "") -> x509.Name:
    of = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    return x509.Name([*of, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# ------------------------------------------------------------------ reading
def name_of(certificate: Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise CertificateError(f"a certificate is made out to one name; this one has {len(names)}")
    value = names[0].value
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def hosts_of(certificate: Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def is_for(certificate: Certificate, use: Use) -> bool:
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return PURPOSE[use] in purposes and (use == "server" or (use == OPERATOR) == is_operators(certificate))


def is_operators(certificate: Certificate) -> bool:
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return OPERATOR in [unit.value for unit in units]


def issued_by(certificate: Certificate, authority: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def belong_together(certificate: Certificate, key: PrivateKeyTypes) -> bool:
    of_certificate, of_key = (
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (certificate.public_key(), key.public_key())
    )
    return of_certificate == of_key


def check_dates(certificate: Certificate, path: Path, mend: str) -> None:
    """Refuse a certificate that has ended, or not begun."""
    now = datetime.now(UTC)
    if now >= certificate.not_valid_after_utc:
        raise CertificateError(f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {mend}")
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; "
            "is the clock of this machine right?"
        )
