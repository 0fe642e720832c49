"""Plug-ins of somebody else: each in one file that is no part of the package."""

import shutil
from pathlib import Path

import pytest
from named_files import nothing_named as nothing_named

PLUGINS = Path(__file__).parent / "plugins"
SHOWN = Path(__file__).parents[2] / "recipes" / "plugins"  # those the docs show


@pytest.fixture
def plugins(tmp_path, monkeypatch) -> Path:
    """A folder of its own with all plug-ins, in which commands are typed."""
    folder = tmp_path / "plugins"
    for home in (SHOWN, PLUGINS):
        shutil.copytree(home, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return folder
