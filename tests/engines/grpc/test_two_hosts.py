"""Two hosts, as near as one machine comes to it: network namespaces with a wire between them, real processes, TLS."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cutlayer.core.spec import spec
from cutlayer.engines.grpc import certs
from cutlayer.engines.local.start import train

GUARD = "Chain(LightSplit(ratio=8), WCC(weight=0.1))"
PLAN = f"Plan(data=Digits(limit=300), clients=2, epochs=1, batch_size=32, guard={GUARD})"
SERVER, CLIENT = "10.231.77.1", "10.231.77.2"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts():
    """Names of two namespaces that reach each other and nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here to make network namespaces with")
    mark = f"{os.getpid() % 10_000}"
    one, other = f"cut-s{mark}", f"cut-c{mark}"
    made = ip("netns", "add", one)
    if made.returncode:
        pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
    try:
        ip("netns", "add", other)
        wire = ip(
            "link", "add", f"cs{mark}", "netns", one, "type", "veth", "peer", "name", f"cc{mark}", "netns", other
        )
        if wire.returncode:
            pytest.skip(f"this machine connects no network namespaces: {wire.stderr.strip()}")
        for name, device, address in ((one, f"cs{mark}", SERVER), (other, f"cc{mark}", CLIENT)):
            for words in (["addr", "add", f"{address}/24", "dev", device], ["link", "set", device, "up"]):
                assert ip("-n", name, *words).returncode == 0
        yield one, other
    finally:
        ip("netns", "del", one)
        ip("netns", "del", other)


def start(namespace, *words, out):
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "cutlayer.cli", *map(str, words)]
    return subprocess.Popen(command, stderr=out.open("w"), env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.campaign
def test_a_run_between_two_hosts_equals_a_local_one(hosts, tmp_path: Path):
    one, other = hosts
    certs.make(tmp_path / "certs", [SERVER], ["a", "b"])
    common = ["--threads", "1", "--certs"]
    server = start(
        one, "serve", PLAN, "--listen", f"{SERVER}:7443", "--client", "a", "--client", "b", *common,
        tmp_path / "certs" / "server", "--out", tmp_path / "server", out=tmp_path / "server.err",
    )  # fmt: skip
    clients = [
        start(
            other,
            "join",
            PLAN,
            f"{SERVER}:7443",
            "--as",
            name,
            "--private-seed",
            "7",
            *common,
            tmp_path / "certs" / name,
            "--out",
            tmp_path / name,
            out=tmp_path / f"{name}.err",
        )
        for name in ("a", "b")
    ]
    try:
        for party in (*clients, server):
            assert party.wait(120) == 0, [path.read_text() for path in tmp_path.glob("*.err")]
    finally:
        for party in (*clients, server):
            party.kill()
    train(replace(spec(PLAN, "plans"), private_seed=7), tmp_path / "local")
    local, body = (
        load_file(tmp_path / "local" / "last.safetensors"),
        load_file(tmp_path / "server" / "server.safetensors"),
    )
    assert body and all(torch.equal(local[f"server/net.{name}"], tensor) for name, tensor in body.items())
    for name in ("a", "b"):
        handed_on = load_file(tmp_path / name / "client.safetensors")
        assert all(torch.equal(local[f"shared/{key}"], tensor) for key, tensor in handed_on.items())
