"""Plug-ins of somebody else: each in one file that is no part of the package."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from cutlayer.core.outside.files import NAMED, PACKAGE

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    """Every test starts as a process does in which no file was named, and leaves none behind."""
    monkeypatch.setenv(NAMED, "{}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    assert NAMED in os.environ
    for name in set(sys.modules) - before:
        file = str(getattr(sys.modules[name], "__file__", "") or "")
        if name.startswith(f"{PACKAGE}.") or "plugins" in file or "pytest" in Path(file).parts[:3]:
            del sys.modules[name]


@pytest.fixture
def plugins(tmp_path, monkeypatch) -> Path:
    """A folder of its own with all plug-ins, in which commands are typed."""
    folder = tmp_path / "plugins"
    shutil.copytree(PLUGINS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    return folder
