"""A party reads its own folder: its certificate, its key, the list of the revoked, and the key of all clients."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest
from certificates import ENDED, SOON, everything, put
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.certs import (
    CertificateError,
    Revoked,
    authority,
    make,
    read_identity,
    revoke,
    serial,
)
from cutlayer.engines.grpc.certs.x509 import key_pem, new_key


# ------------------------------------------------------------------ reading one's own folder
def test_an_identity_is_three_files_and_hides_its_key(made):
    identity = read_identity(made / "hospital-a")
    assert identity.key == (made / "hospital-a" / "key.pem").read_bytes()
    assert b"PRIVATE" in identity.key and "PRIVATE" not in repr(identity) and "key" not in repr(identity)


def locked_key():
    password = serialization.BestAvailableEncryption(b"x")
    return new_key().private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)


def other_kind_of_key():
    key = rsa.generate_private_key(65537, 2048)
    clear = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, clear)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda p: shutil.rmtree(p), "there is no folder"),
        (lambda p: (p / "ca.pem").unlink(), r"ca\.pem is missing"),
        (lambda p: (p / "cert.pem").unlink(), r"cert\.pem is missing"),
        (lambda p: (p / "key.pem").unlink(), r"key\.pem is missing"),
        (lambda p: (p / "key.pem").chmod(0o640), r"chmod 600 .*key\.pem"),
        (lambda p: (p / "key.pem").chmod(0o604), "chmod 600"),
        (lambda p: put(p / "key.pem"), "no private key"),
        (lambda p: put(p / "key.pem", locked_key()), "passphrase"),
        (lambda p: put(p / "key.pem", key_pem(new_key())), "not the key of"),
        (lambda p: put(p / "key.pem", other_kind_of_key()), "not the key of"),
        (lambda p: put(p / "cert.pem"), r"cert\.pem is no certificate"),
        (lambda p: put(p / "ca.pem", b""), r"ca\.pem is no certificate"),
        (lambda p: put(p / "ca.pem", (p / "cert.pem").read_bytes()), "not made by the authority"),
        (lambda p: ((p / "ca.pem").unlink(), (p / "ca.pem").mkdir()), "cannot use"),
    ],
)  # fmt: skip
def test_an_identity_that_cannot_work_is_refused(own, harm, says):
    harm(own / "hospital-a")
    with pytest.raises(CertificateError, match=says):
        read_identity(own / "hospital-a")


def test_an_identity_has_dates_and_a_purpose(own, monkeypatch):
    signer = authority._load_authority(own)
    authority.issue(own, signer, "late", ENDED)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    with pytest.raises(CertificateError, match=rf"expired on {yesterday} \d\d:\d\d UTC; .*--renew"):
        read_identity(own / "late")
    monkeypatch.setattr(certs.x509, "BACK", timedelta(hours=-2))
    authority.issue(own, signer, "early", SOON)
    with pytest.raises(CertificateError, match="clock"):
        read_identity(own / "early")
    with pytest.raises(CertificateError, match="folder of the client"):
        read_identity(own / "server", use="client")
    with pytest.raises(CertificateError, match="folder of the server"):
        read_identity(own / "hospital-a", use="server")


# ------------------------------------------------------------------ the list of the revoked
HEAD = "# cutlayer: serial, name, time\n"
LINE = "{:040x} hospital-a 2026-01-31T12:00:00Z\n"


def test_the_list_is_read_again_when_it_changes(own):
    path = own / "server" / "revoked.txt"
    gone = Revoked(path)
    number = serial((own / "hospital-a" / "cert.pem").read_bytes())
    assert not gone.holds(number)
    revoke(own, ["hospital-a"])
    assert gone.holds(number) and not gone.holds(number + 1)
    path.write_text(HEAD + "\n" + "# a remark\n" + LINE.format(7))  # by hand, in place
    assert gone.holds(7) and not gone.holds(number)


def test_an_unchanged_list_is_not_read_again(own, monkeypatch):
    gone = Revoked(own / "server" / "revoked.txt")
    monkeypatch.setattr(certs.lists, "read_list", lambda path: pytest.fail("read again"))
    assert not gone.holds(1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        LINE.format(7),
        HEAD[:-1],
        HEAD + LINE.format(7)[:-1],
        HEAD + LINE.format(7) + "0007 hospital",
        HEAD + "0007\n",
        HEAD + "7 a 2026-01-31\n",
        HEAD + "7 a 2026-02-31T12:00:00Z\n",
        HEAD + "seven a 2026-01-31T12:00:00Z\n",
        HEAD + "-7 a 2026-01-31T12:00:00Z\n",
        HEAD + "7 a 2026-01-31T12:00:00Z more\n",
        HEAD + "7 é 2026-01-31T12:00:00Z\n",
        HEAD + "\x00\n",
    ],
)
def test_a_garbled_list_shuts_the_door(own, text):
    """Every call fails until the list is mended, and the mended list is read."""
    path = own / "server" / "revoked.txt"
    gone = Revoked(path)
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(CertificateError, match="damaged"):
            gone.holds(8)
    with pytest.raises(CertificateError, match="damaged"):
        Revoked(path)
    path.write_text(HEAD + LINE.format(8))
    assert gone.holds(8)


def test_a_list_that_is_not_there(tmp_path):
    path = tmp_path / "server" / "revoked.txt"
    with pytest.raises(CertificateError, match="gone"):
        Revoked(path)
    path.parent.mkdir()
    gone = Revoked(path)
    assert not gone.holds(7)
    path.write_text(HEAD + LINE.format(7))
    assert gone.holds(7)
    path.unlink()
    with pytest.raises(CertificateError, match="gone"):
        gone.holds(7)
    path.mkdir()
    with pytest.raises(CertificateError, match="cannot use"):
        gone.holds(7)
    path.rmdir()
    path.write_text(HEAD)
    assert not gone.holds(7)


# ------------------------------------------------------------------ the key of all clients
def test_all_clients_have_one_key_for_weights_and_the_server_has_none(tmp_path):
    make(tmp_path, ["localhost"], ["a", "b"])
    make(tmp_path, [], ["c"])
    keys = {read_identity(tmp_path / name, "client").weights for name in "abc"}
    assert len(keys) == 1 and len(keys.pop()) == 32
    assert read_identity(tmp_path / "server", "server").weights is None
    found = (tmp_path / "a" / certs.WEIGHTS_KEY).read_bytes()
    assert not any(found in data for path, data in everything(tmp_path / "server").items())


def test_another_authority_gives_another_key(tmp_path):
    for name in ("one", "other"):
        make(tmp_path / name, ["localhost"], ["a"])
    assert read_identity(tmp_path / "one" / "a").weights != read_identity(tmp_path / "other" / "a").weights


def test_a_folder_from_before_gets_its_key_when_it_is_named_again(tmp_path):
    make(tmp_path, ["localhost"], ["a"])
    key = tmp_path / "a" / certs.WEIGHTS_KEY
    whole = key.read_bytes()
    key.unlink()
    assert read_identity(tmp_path / "a").weights is None
    assert make(tmp_path, [], ["a"]) == [f"added {key}: give the folder to a again"]
    assert key.read_bytes() == whole
    key.write_bytes(b"half")
    with pytest.raises(CertificateError, match="damaged"):
        read_identity(tmp_path / "a")
