"""A copy of the checkout to plant a bug in, with a Python that imports the package from nowhere else."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")

# Goes with pytest: says what failed and how long files took, and whether the package was that of the copy.
PLUGIN = """
import collections, json, os, pathlib, resource, sys

resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # a bug in a size may ask for all memory there is
seconds, failed = collections.Counter(), []

def pytest_runtest_logreport(report):
    seconds[report.nodeid.partition("::")[0]] += report.duration
    if report.failed:
        failed.append(report.nodeid)

def pytest_collectreport(report):
    if report.failed:
        failed.append(report.nodeid)

def pytest_sessionfinish():
    came = {name: getattr(one, "__file__", None) for name, one in list(sys.modules.items())}
    ours = {name: file for name, file in came.items() if name.partition(".")[0] == "cutlayer" and file}
    own = {pathlib.Path.cwd(), pathlib.Path(os.environ["TMPDIR"])}  # tests write modules of their own
    strangers = [file for file in ours.values() if own.isdisjoint(pathlib.Path(file).resolve().parents)]
    facts = {"seconds": seconds, "failed": failed, "strangers": strangers}
    pathlib.Path(os.environ["MUTANTS_FACTS"]).write_text(json.dumps(facts))
"""
RUNNING: set[subprocess.Popen] = set()


@dataclass
class Outcome:
    code: int | None  # None: it took too long
    seconds: dict[str, float]
    failed: list[str]


class Copy:
    """The checkout once more, and a Python that knows no other.

    The usual environment offers an editable install, to processes that tests start as well, whatever their PYTHONPATH
    is. This one has its packages by path, which skips their .pth files and with them the editable install's finder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "copy"
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED)
        if (ROOT.parent / "shared").is_dir():  # data sets, which tests look for beside the checkout
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        venv.create(folder / "python", symlinks=True)
        own = next((folder / "python").glob("lib/python*/site-packages"))
        (own / "copy.pth").write_text(f"{self.root}\n{sysconfig.get_path('purelib')}\n")
        (own / "mutants_plugin.py").write_text(PLUGIN)
        (folder / "tmp").mkdir()

    def run(self, tests: list[str], limit: float | None, *options: str) -> Outcome:
        facts = self.folder / "facts.json"
        facts.unlink(missing_ok=True)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        own = {"PYTHONPATH": str(self.root), "TMPDIR": str(self.folder / "tmp"), "MUTANTS_FACTS": str(facts)}
        command = [str(self.folder / "python" / "bin" / "python"), "-m", "pytest", "-q", "-p", "mutants_plugin"]
        command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", *options, *tests]
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=os.environ | threads | own, stdout=output, stderr=output, process_group=0
            )
            RUNNING.add(process)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                RUNNING.discard(process)
                stop(process)  # also what tests have started and left behind
        found = json.loads(facts.read_text()) if facts.is_file() else {"seconds": {}, "failed": [], "strangers": []}
        if strangers := found.pop("strangers"):
            sys.exit(f"{self.root}: the package came from somewhere else: {', '.join(strangers[:3])}")
        return Outcome(code, **found)


def stop(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def copied() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        yield Copy(Path(folder).resolve())
