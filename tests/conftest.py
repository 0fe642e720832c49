"""One thread everywhere: bit equality holds only for equal thread counts, and busy cores punish spinning."""

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from progress import GoingOn, Passed

from cutlayer.attacks import Decoder
from cutlayer.audit import floors

torch.set_num_threads(1)
os.fsync = os.fdatasync = lambda number: None  # nobody pulls a plug here, and disks are slow


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--go-on", action="store_true", help="leave out tests of a campaign that have passed already")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.go_on:
        config.pluginmanager.register(GoingOn(Passed()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes take longest: last, they would keep one core busy and the others waiting."""
    _slice(items)
    items.sort(key=lambda item: ("grpc" not in item.path.parts, not _starts_processes(item.path)))


def _slice(items: list[pytest.Item]) -> None:
    """Of a matrix marked `one_in(n)` every n-th case is a test, and all of them are the campaign's."""
    seen = Counter[str]()
    for item in items:
        if (mark := item.get_closest_marker("one_in")) and not item.get_closest_marker("campaign"):
            law = item.nodeid.partition("[")[0]
            if seen[law] % mark.args[0]:
                item.add_marker(pytest.mark.campaign)
            seen[law] += 1


@cache
def _starts_processes(path: Path) -> bool:
    return any(word in path.read_text() for word in ("subprocess", "spread(", "--jobs"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The decoder of a stranger's head is a figure beside others that no verdict rests on, and it takes longer than
    all the rest of a small audit: here it learns next to nothing, in campaigns as much as anywhere.
    """
    floors.Decoder = Decoder if item.get_closest_marker("campaign") else _hardly_trained


def _hardly_trained(**given: object) -> Decoder:
    return Decoder(**{**given, "steps": 2, "width": 4, "hidden": 8})


@pytest.fixture(autouse=True)
def start() -> None:
    """Every test draws the same numbers, whichever ran before it in its process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a command that ran in this process may have set others


@pytest.fixture
def double() -> Iterator[None]:
    """Build and compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """`command("train", ...)` -> (exit code, standard output, standard error)."""
    from cutlayer.cli.app import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cutlayer", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        written = capsys.readouterr()
        return code, written.out, written.err

    return call
