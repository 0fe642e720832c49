"""Tests that name files outside the package: each starts as a process does in which none was named."""

import sys
from pathlib import Path

import pytest

import cutlayer
from cutlayer.core.outside.files import NAMED, PACKAGE

OWN = Path(cutlayer.__file__).parent


def _is_outside(name: str, made: Path) -> bool:
    """By letters: there are thousands of modules, and a path of each takes longer than most tests."""
    file = getattr(sys.modules[name], "__file__", None) or f"{OWN}/"
    return (name.startswith(f"{PACKAGE}.") and not file.startswith(f"{OWN}/")) or file.startswith(f"{made}/")


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch, tmp_path_factory):
    """What other tests of this process named is out of the way, and nothing is left behind."""
    made = tmp_path_factory.getbasetemp()
    monkeypatch.setenv(NAMED, "{}")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one).is_relative_to(made)])
    for name in [one for one in sys.modules if _is_outside(one, made)]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [one for one in sys.modules if _is_outside(one, made)]:
        del sys.modules[name]
