"""What of a campaign is done, on disk: a campaign that was killed goes on where it was, on the same package.

`.campaign/` has a file for each campaign and each state of the package; its lines are its finished parts. Whoever
changes `cutlayer/` begins anew: figures of two packages are not added up.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".campaign"


def package() -> str:
    """A hash of every source file of the package."""
    sha = sha256()
    for path in sorted((ROOT / "cutlayer").rglob("*.py")):
        sha.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return sha.hexdigest()[:12]


def commit() -> str:
    """Where the figures come from; a package with changes of its own says so."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    found = git("rev-parse", "--short=10", "HEAD") or "unknown"
    return f"{found}, changed since" if git("status", "--porcelain", "cutlayer") else found


class Passed:
    """Tests of a campaign that have passed, by name: `--go-on` leaves them out."""

    def __init__(self, folder: Path | None = None):
        folder = FOLDER if folder is None else folder
        folder.mkdir(exist_ok=True)
        self._path = folder / f"passed-{package()}.txt"

    def names(self) -> set[str]:
        return set(self._path.read_text().splitlines()) if self._path.exists() else set()

    def add(self, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{name}\n")


class GoingOn:
    """A campaign that was killed goes on where it was, as long as the package is the same."""

    def __init__(self, passed: Passed):
        self._passed = passed

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = self._passed.names()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "campaign" in report.keywords:
            self._passed.add(report.nodeid)


class Progress:
    """The finished parts of one campaign."""

    def __init__(self, name: str, folder: Path | None = None):
        folder = FOLDER if folder is None else folder
        folder.mkdir(exist_ok=True)
        self._path = folder / f"{name}-{package()}.jsonl"
        self.done: dict[str, Any] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            try:
                part, told = json.loads(line)
            except ValueError:
                continue  # killed in the middle of it
            self.done[part] = told

    def parts(self, wanted: Iterable[str], work: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        """Each part that is wanted, with what `work` makes of it, now or earlier."""
        for part in wanted:
            if part not in self.done:
                self.done[part] = json.loads(json.dumps(work(part)))
                self._add(part)
            yield part, self.done[part]

    def _add(self, part: str) -> None:
        with self._path.open("ab") as file:
            file.write(b"\n" + json.dumps([part, self.done[part]]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
