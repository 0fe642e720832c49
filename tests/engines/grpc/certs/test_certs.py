"""Certificates: who gets which file, what each is good for, and what a second run changes."""

import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from certificates import ENDED, HOSTS, SOON, everything, extension, listed, load, put
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.certs import (
    CertificateError,
    authority,
    common_name,
    files,
    make,
    read_identity,
    revoke,
    serial,
    show,
)


@pytest.fixture
def run(command):
    return partial(command, "certs")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------ what is made
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o022])
def test_folders_and_modes(tmp_path, umask):
    before = os.umask(umask)
    try:
        make(tmp_path / "c", ["localhost"], ["a"])
    finally:
        os.umask(before)
    assert {str(path.relative_to(tmp_path / "c")): oct(mode(path)) for path in (tmp_path / "c").rglob("*")} == {
        ".lock": "0o600",
        "authority": "0o700", "authority/ca.key": "0o600", "authority/ca.pem": "0o644",
        "authority/issued.txt": "0o644",
        "server": "0o700", "server/ca.pem": "0o644", "server/cert.pem": "0o644", "server/key.pem": "0o600",
        "server/revoked.txt": "0o644",
        "a": "0o700", "a/ca.pem": "0o644", "a/cert.pem": "0o644", "a/key.pem": "0o600",
        "a/weights.key": "0o600",
    }  # fmt: skip
    assert mode(tmp_path / "c") == 0o700


def test_a_key_is_closed_to_others_before_its_first_byte(tmp_path, monkeypatch):
    opened = {}

    def watch(path, flags, wanted=0o777):
        number = real(path, flags, wanted)
        opened[Path(path).name] = stat.S_IMODE(os.fstat(number).st_mode), bool(flags & os.O_EXCL)
        return number

    real = os.open
    before = os.umask(0)
    monkeypatch.setattr(files.os, "open", watch)
    try:
        make(tmp_path / "c", ["localhost"], ["a"])
    finally:
        os.umask(before)
    assert opened["key.pem"] == opened["ca.key"] == (0o600, True)


def test_the_authority_signs_parties_and_no_other_authority(made):
    ca = load(made / "authority" / "ca.pem")
    assert extension(ca, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    usage = extension(ca, x509.KeyUsage)
    assert usage.key_cert_sign and not usage.digital_signature and not usage.crl_sign
    assert all((made / party / "ca.pem").read_bytes() == (made / "authority" / "ca.pem").read_bytes()
               for party in ("server", "hospital-a", "hospital-b"))  # fmt: skip
    years = (ca.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=365)
    assert 9.9 < years <= 10


def test_each_certificate_serves_one_purpose(made):
    server, client = load(made / "server" / "cert.pem"), load(made / "hospital-a" / "cert.pem")
    assert list(extension(server, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert list(extension(client, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    names = extension(server, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    with pytest.raises(x509.ExtensionNotFound):
        extension(client, x509.SubjectAlternativeName)
    ca = load(made / "authority" / "ca.pem")
    for certificate in (server, client):
        certificate.verify_directly_issued_by(ca)
        assert not extension(certificate, x509.BasicConstraints).ca
        usage = extension(certificate, x509.KeyUsage)
        assert usage.digital_signature and not usage.key_cert_sign
        assert isinstance(certificate.public_key().curve, ec.SECP256R1)
        now = datetime.now(UTC)
        assert timedelta(minutes=4) < now - certificate.not_valid_before_utc < timedelta(minutes=20)
        assert timedelta(days=824) < certificate.not_valid_after_utc - now <= timedelta(days=825)


def test_openssl_agrees(made):
    """A second judge of the chain and of the purposes."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")

    def verdict(party, *options):
        words = [openssl, "verify", "-x509_strict", *options, "-CAfile", "authority/ca.pem", f"{party}/cert.pem"]
        return subprocess.run(words, cwd=made, capture_output=True, timeout=60).returncode == 0

    assert verdict("server", "-purpose", "sslserver", "-verify_hostname", "server.example.org")
    assert verdict("server", "-purpose", "sslserver", "-verify_ip", "127.0.0.1")
    assert not verdict("server", "-purpose", "sslserver", "-verify_hostname", "other.example.org")
    assert verdict("hospital-a", "-purpose", "sslclient")
    assert not verdict("hospital-a", "-purpose", "sslserver") and not verdict("server", "-purpose", "sslclient")


def test_names_and_serials(made):
    pems = {party: (made / party / "cert.pem").read_bytes() for party in ("server", "hospital-a", "hospital-b")}
    assert {party: common_name(text) for party, text in pems.items()} == {party: party for party in pems}
    numbers = {serial(text) for text in pems.values()} | {serial((made / "authority" / "ca.pem").read_bytes())}
    assert len(numbers) == 4 and min(numbers) > 1 << 90, "random, not counted"
    with pytest.raises(CertificateError, match="no certificate"):
        common_name(b"garbage")


def test_days_are_kept(tmp_path):
    make(tmp_path, ["localhost"], ["a"], days=9)
    left = load(tmp_path / "a" / "cert.pem").not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=8) < left <= timedelta(days=9)


# ------------------------------------------------------------------ a second run
def test_the_same_again_changes_nothing(own):
    before = everything(own)
    notes = make(own, HOSTS[:2], ["hospital-a", "hospital-a"])
    assert everything(own) == before
    assert [note.split()[0] for note in notes] == ["kept", "kept"] and all("--renew" in note for note in notes)


def test_new_clients_come_from_the_same_authority(own):
    before = everything(own)
    make(own, [], ["hospital-a", "clinic_3.b"])
    after = everything(own)
    assert {path for path in after if path not in before} == {
        own / "clinic_3.b" / part for part in (*certs.base.PARTS, certs.WEIGHTS_KEY)
    }
    assert {path for path in before if after[path] != before[path]} == {own / "authority" / "issued.txt"}
    assert read_identity(own / "clinic_3.b", use="client").ca == read_identity(own / "server").ca


def test_a_new_host_keeps_the_servers_key(own):
    before = read_identity(own / "server")
    [note] = make(own, ["10.0.0.5"], [])
    after = read_identity(own / "server", use="server")
    assert after.key == before.key and after.cert != before.cert
    names = extension(load(own / "server" / "cert.pem"), x509.SubjectAlternativeName)
    assert {str(name.value) for name in names} == {*HOSTS, "10.0.0.5"} and "cert.pem" in note
    assert listed(own) == {}


def test_renew_replaces_the_named_and_revokes_the_old(own):
    revoke(own, ["hospital-b"])
    before = {party: read_identity(own / party) for party in ("server", "hospital-a", "hospital-b")}
    make(own, [], ["hospital-a"], renew=True)
    make(own, ["new.example.org"], [], renew=True)
    after = {party: read_identity(own / party) for party in before}
    assert after["hospital-b"] == before["hospital-b"]
    for party in ("server", "hospital-a"):
        assert after[party].ca == before[party].ca
        assert after[party].key != before[party].key and after[party].cert != before[party].cert
    assert listed(own) == {serial(before[party].cert): party for party in before}
    assert certs.x509.hosts_of(load(own / "server" / "cert.pem")) == ["new.example.org"]
    assert sorted(path.name for path in own.iterdir()) == [".lock", "authority", "hospital-a", "hospital-b", "server"]


def test_revoke_is_for_all_certificates_of_a_name(own):
    first = serial((own / "hospital-a" / "cert.pem").read_bytes())
    shutil.rmtree(own / "hospital-a")  # handed out and not kept: the authority remembers
    with pytest.raises(CertificateError, match="--renew"):
        make(own, [], ["hospital-a"])
    assert revoke(own, ["hospital-a"])[0].startswith("revoked hospital-a")
    assert listed(own) == {first: "hospital-a"}
    assert revoke(own, ["hospital-a"]) == ["hospital-a was revoked before"]
    make(own, [], ["hospital-a"], renew=True)
    second = serial((own / "hospital-a" / "cert.pem").read_bytes())
    assert listed(own) == {first: "hospital-a"}
    revoke(own, ["hospital-a", "hospital-b"])
    assert set(listed(own)) == {first, second, serial((own / "hospital-b" / "cert.pem").read_bytes())}
    assert "REVOKED" in make(own, [], ["hospital-a"])[0]


@pytest.mark.parametrize("stage", ["write", "revoke", "swap"])
def test_a_renewal_that_is_stopped_leaves_a_whole_folder(own, monkeypatch, stage):
    """Killed, not failed: nothing cleans up on the way out."""
    before = read_identity(own / "hospital-a")
    real = Path.rename

    def dies(*_):
        raise KeyboardInterrupt

    def dies_at_the_second(path, target):
        if path.name.startswith(files.MAKING):
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_tidy", lambda folder: None)
        if stage == "swap":
            patch.setattr(Path, "rename", dies_at_the_second)
        else:
            patch.setattr(authority, "write" if stage == "write" else "_revoke", dies)
        with pytest.raises(KeyboardInterrupt):
            make(own, [], ["hospital-a"], renew=True)
    assert any(path.name.startswith(files.MAKING) for path in own.iterdir())
    make(own, [], ["hospital-c"])
    assert read_identity(own / "hospital-a") == before
    assert set(listed(own).values()) == ({"hospital-a"} if stage == "swap" else set())
    make(own, [], ["hospital-a"], renew=True)
    assert read_identity(own / "hospital-a").key != before.key
    assert set(listed(own)) == {serial(before.cert)}
    assert not [path for path in own.iterdir() if path.name.startswith((files.MAKING, files.OLD))]


def test_a_failure_cleans_up_at_once(own, monkeypatch):
    before = everything(own)
    monkeypatch.setattr(authority, "_revoke", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(own, [], ["hospital-a"], renew=True)
    assert everything(own) == before


def test_two_runs_at_once_wait_for_each_other(own):
    names = [f"clinic-{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: make(own, [], [name]), names))
        list(pool.map(lambda name: revoke(own, [name]), names))
    assert sorted(listed(own).values()) == names
    assert {row.who for row in show(own)} >= set(names)


# ------------------------------------------------------------------ the table and the command
def test_show_has_every_certificate(own):
    old = serial((own / "hospital-a" / "cert.pem").read_bytes())
    make(own, [], ["hospital-a"], days=10, renew=True)
    rows = show(own)
    assert [(row.who, row.revoked is not None) for row in rows] == [
        ("authority", False), ("server", False), ("hospital-a", False), ("hospital-a", True), ("hospital-b", False)
    ]  # fmt: skip
    assert [row.days_left for row in rows] == [3649, 824, 9, 824, 824]
    assert int(rows[3].serial, 16) == old
    shutil.rmtree(own / "authority")  # it is offline
    assert [row.who for row in show(own)] == ["server", "hospital-a", "hospital-b"]
    shutil.rmtree(own / "server")
    assert all(row.revoked.startswith("?") for row in show(own)), "nobody knows"


def test_show_says_what_has_expired(own):
    authority.issue(own, authority._load_authority(own), "late", ENDED)
    lines = certs.table(show(own))
    assert lines[0].split() == ["who", "serial", "expires", "revoked"]
    assert [line.split()[0] for line in lines if "EXPIRED" in line] == ["late"]


def test_the_command_from_nothing_to_revoked(run, tmp_path):
    folder = tmp_path / "c"
    code, out, err = run(
        folder, "--host", "Server.example.org", "--host", "10.0.0.5", "--client", "hospital-a", "--days", "30"
    )
    assert code == 0 and out == "" and "keep it offline" in err and "for server.example.org, 10.0.0.5" in err
    assert run(folder, "--client", "hospital-b")[0] == 0
    assert run(folder, "--revoke", "hospital-a")[0] == 0
    code, out, _ = run(folder, "--show")
    assert code == 0 and "(29 days left)" in out
    assert [line.split()[0] for line in out.splitlines()] == [
        "who",
        "authority",
        "server",
        "hospital-a",
        "hospital-b",
    ]
    code, out, _ = run(folder, "--show", "--json")
    rows = json.loads(out)
    assert [row["who"] for row in rows if row["revoked"]] == ["hospital-a"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "at least one --host"),
        (["--client", "a"], "--host"),
        (["--host", "h", "--client", ""], "--client has nothing behind it"),
        (["--host", "h", "--client", "x" * 65], "1 to 64"),
        (["--host", "h", "--client", ".."], "1 to 64"),
        (["--host", "h", "--client", "../a"], "1 to 64"),
        (["--host", "h", "--client", "é"], "1 to 64"),
        (["--host", "h", "--client", "a\n"], "1 to 64"),
        (["--host", "h", "--client", "server"], "choose another"),
        (["--host", "h", "--client", "Authority"], "choose another"),
        (["--host", "h", "--client", "a", "--client", "A"], "capital"),
        (["--host", "", "--client", "a"], "--host has nothing behind it"),
        (["--host", "h:50051", "--client", "a"], "without port"),
        (["--host", "*.example.org", "--client", "a"], "neither a host name"),
        (["--host", "https://h", "--client", "a"], "neither a host name"),
        (["--host", "10.0.0.256", "--client", "a"], "neither a host name"),
        (["--host", "-h", "--client", "a"], "neither a host name"),
        (["--host", "fe80::1%eth0", "--client", "a"], "neither a host name"),
        (["--host", "x" * 64, "--client", "a"], "neither a host name"),
        (["--host", "h", "--days", "0"], "at least 1"),
        (["--host", "h", "--days", "-3"], "at least 1"),
        (["--show", "--client", "a"], "go alone"),
        (["--show", "--revoke", "a"], "go alone"),
        (["--revoke", "a", "--renew"], "go alone"),
        (["--revoke", "a"], "there is no"),
        (["--show"], "there is no folder"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(run, tmp_path, arguments, says):
    code, out, err = run(tmp_path / "c", *arguments)
    assert code == 1 and out == "" and says in err and err.startswith("error: ") and err.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_the_longest_name_fits(tmp_path):
    make(tmp_path, ["localhost"], ["x" * 64])
    assert common_name((tmp_path / ("x" * 64) / "cert.pem").read_bytes()) == "x" * 64


@pytest.mark.parametrize(("days", "there"), [(3650, False), (10**15, False), (3650, True), (10**15, True)])
def test_no_certificate_outlives_the_authority(own, tmp_path, days, there):
    folder = own if there else tmp_path / "new"
    with pytest.raises(CertificateError, match=r"authority itself .* fewer"):
        make(folder, ["localhost"], ["new"], days=days)
    assert not (folder / "new").exists()


def test_the_usual_lifetime_ends_with_the_authority(tmp_path):
    authority._make_authority(tmp_path, None, lifetime=SOON)
    make(tmp_path, ["localhost"], ["a"])
    ends = [load(tmp_path / path).not_valid_after_utc for path in ("authority/ca.pem", "a/cert.pem")]
    assert ends[1] <= ends[0] and ends[0] - ends[1] < timedelta(minutes=1)


def test_an_expired_authority_makes_nothing(tmp_path):
    authority._make_authority(tmp_path, None, lifetime=ENDED)
    with pytest.raises(CertificateError, match=r"expired on \d{4}-.* start anew"):
        make(tmp_path, ["localhost"], ["a"])
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda c: (c / "hospital-a" / "key.pem").unlink(), "half there, without key.pem; --renew"),
        (lambda c: (c / "server" / "ca.pem").unlink(), "half there, without ca.pem"),
        (lambda c: [path.unlink() for path in (c / "hospital-a").iterdir()], "half there"),
        (lambda c: (shutil.rmtree(c / "hospital-a"), put(c / "hospital-a")), "not a folder"),
        (lambda c: put(c / "hospital-a" / "cert.pem"), "no certificate"),
        (lambda c: put(c / "hospital-a" / "ca.pem"), "another authority"),
        (lambda c: shutil.copy(c / "hospital-b" / "cert.pem", c / "hospital-a"), "another name"),
        (lambda c: shutil.rmtree(c / "hospital-a"), "bring it back"),
        (lambda c: shutil.rmtree(c / "server"), "shut out"),
        (lambda c: shutil.rmtree(c / "authority"), "bring it back"),
        (lambda c: (c / "authority" / "ca.key").unlink(), "ca.key is missing"),
        (lambda c: (c / "authority" / "ca.key").chmod(0o640), "chmod 600"),
        (lambda c: put(c / "authority" / "ca.key"), "no private key"),
        (lambda c: shutil.copy(c / "server" / "key.pem", c / "authority" / "ca.key"), "not the key"),
        (lambda c: put(c / "authority" / "issued.txt"), "damaged"),
        (lambda c: put(c / "server" / "revoked.txt"), "damaged"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused_with_the_reason(own, harm, says):
    harm(own)
    before = everything(own)
    with pytest.raises(CertificateError, match=says):
        make(own, HOSTS, ["new", "hospital-a"])
    assert {path.name for path in everything(own)} == {path.name for path in before} and not (own / "new").exists()


def test_renew_mends_a_half_made_folder_and_deletes_nothing_foreign(own):
    put(own / "hospital-a" / "cert.pem")
    (own / "hospital-a" / "key.pem").unlink()
    lost = {int(row.serial, 16) for row in show(own) if row.who == "hospital-a"}
    (own / "hospital-a" / "notes.txt").write_text("mine")
    with pytest.raises(CertificateError, match=r"notes\.txt"):
        make(own, [], ["hospital-a"], renew=True)
    (own / "hospital-a" / "notes.txt").unlink()
    make(own, [], ["hospital-a"], renew=True)
    assert read_identity(own / "hospital-a") and set(listed(own)) == lost and len(lost) == 1


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "readme").write_text("mine")
    make(tmp_path, ["localhost"], ["a"])
    assert (tmp_path / "readme").read_text() == "mine" and {row.who for row in show(tmp_path)} == {
        "authority", "server", "a"
    }  # fmt: skip
    with pytest.raises(CertificateError, match="half there"):
        make(tmp_path, [], ["data"])


def test_only_those_who_are_there_can_be_revoked(own):
    with pytest.raises(CertificateError, match="there is hospital-a, hospital-b"):
        revoke(own, ["hospital-a", "hospital-c"])
    with pytest.raises(CertificateError, match="new authority"):
        revoke(own, ["server"])
    assert listed(own) == {}


def test_places_that_cannot_be_used(tmp_path, run):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for place, says in ((tmp_path / "file", "not a folder"), (tmp_path / "file" / "c", "cannot use")):
        with pytest.raises(CertificateError, match=says):
            make(place, ["localhost"], ["a"])
    with pytest.raises(CertificateError, match="no certificates"):
        show(tmp_path / "empty")
    assert run(tmp_path / "file" / "c", "--host", "h")[0] == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_folder_without_permission(own):
    own.chmod(0o000)
    try:
        for act in (lambda: make(own, HOSTS, ["a"]), lambda: show(own)):
            with pytest.raises(CertificateError, match="cannot"):
                act()
    finally:
        own.chmod(0o700)


def test_without_cryptography_one_error_says_what_to_install(tmp_path):
    code = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('cryptography', 'grpc', 'torch'):\n"
        "            raise ImportError(name + ' is not installed')\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from pathlib import Path\n"
        "from cutlayer.cli.app import main\n"
        "from cutlayer.engines.grpc import certs\n"
        "assert not certs.Revoked(Path.cwd() / 'revoked.txt').holds(1)\n"
        "sys.argv = ['cutlayer', 'certs', 'made', '--host', 'localhost', '--client', 'a']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "pip install 'cutlayer[deploy]'" in done.stderr and not (tmp_path / "made").exists()
