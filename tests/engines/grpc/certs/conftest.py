"""Certificates as `cutlayer certs` makes them."""

import shutil

import pytest
from certificates import HOSTS

from cutlayer.engines.grpc.certs import make


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An authority, a server and two clients, not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "certs"
    make(folder, HOSTS, ["hospital-a", "hospital-b"])
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy to change."""
    return shutil.copytree(made, tmp_path / "certs")
