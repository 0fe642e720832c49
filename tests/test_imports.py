"""Which room may import which: dependencies point one way, and the core needs torch and numpy alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cutlayer

ROOT = Path(cutlayer.__file__).parent

# Each room may import the rooms named here (and itself). Plug-ins know messages, figures and their own base: never an
# engine, never each other.
BASIC = {"spec", "seeds", "errors", "batch", "message"}
ALLOWED = {
    "errors": set(),
    "spec": set(),
    "seeds": set(),
    "batch": {"seeds"},
    "message": {"errors"},
    "codecs": {"spec"},
    "rules": {"spec"},
    "detectors": {"batch", "guards", "message", "metrics", "readers", "seeds", "spec"},
    "poison": {"batch", "data", "seeds", "spec"},
    "flower": {"rules"},
    "lpips": set(),
    "metrics": {"lpips"},
    "nets": {"spec"},
    "data": {"spec", "seeds"},
    "partitions": {"spec", "seeds", "data"},
    "optimizers": {"spec"},
    "schedules": {"spec"},
    "squeeze": {"spec"},
    "guards": BASIC | {"codecs", "squeeze"},
    "readers": {"metrics", "seeds"},
    "attacks": BASIC | {"guards", "metrics", "nets", "readers"},
    "wire": {"message", "codecs"},
    "ledger": {"message", "wire"},
    "transcript": {"message", "wire"},
    "remote": {"errors", "message", "squeeze"},
    "state": set(),
    "server": {"message", "errors", "seeds", "squeeze", "state"},
    "fusion": {"message", "errors", "seeds", "server"},
    "roles": {"spec", "seeds"},
    "split": {"batch", "guards", "remote"},
    "turn": {"batch", "errors", "message", "remote", "seeds", "split", "state"},
    "pieces": {"batch", "message", "seeds", "state", "turn"},
    "rounds": {"spec", "seeds", "roles"},
    "memory": {
        "batch", "message", "parties", "pixels", "plan", "plots", "remote", "roles", "seeds", "turn",
    },
    "plan": {
        "batch", "spec", "data", "detectors", "guards", "nets", "optimizers", "partitions", "poison", "roles",
        "rounds", "rules", "schedules", "split", "squeeze",
    },
    "parties": {
        "batch", "fusion", "message", "nets", "plan", "remote", "rounds", "seeds", "server", "split", "state", "turn",
    },
    "checkpoint": set(),
    "lookout": {"batch", "detectors", "errors", "split", "turn"},
    "halted": {"checkpoint", "errors"},
    "worker": {
        "batch", "codecs", "data", "errors", "guards", "ledger", "message", "optimizers", "parties", "pieces",
        "pixels", "plan", "remote", "rules", "seeds", "state", "turn", "lookout", "rounds", "detectors",
    },
    "course": {
        "detectors", "errors", "ledger", "message", "optimizers", "plan", "roles", "rounds", "rules", "seeds",
        "server", "state", "turn", "worker",
    },
    "engines": {
        "batch", "certs", "checkpoint", "course", "data", "errors", "fusion", "ledger", "message", "nets", "parties",
        "pieces", "pixels", "plan", "roles", "rounds", "seeds", "server", "split", "state", "turn", "wire", "worker",
        "halted",
    },
    "privacy": {"batch", "guards", "parties", "plan", "seeds", "split"},
    "rates": {"batch", "ledger", "message", "pixels", "plan"},
    "fairness": {"engines"},
    "vigil": {"engines"},
    "runs": {
        "checkpoint", "data", "engines", "errors", "fairness", "forecast", "ledger", "link", "memory",
        "message", "parties", "pixels", "plan", "privacy", "rates", "spec", "split", "transcript",
        "vigil", "halted",
    },
    "drill": {"engines"},
    "judge": {
        "attacks", "batch", "data", "engines", "guards", "lpips", "message", "metrics", "parties", "plan", "remote",
        "seeds", "server", "split", "turn", "drill",
    },
    "cells": {"checkpoint"},
    "jobs": {"audit", "cells"},
    "variants": {"braces", "cli_options", "plan", "spec", "typed"},
    "compare": {
        "cells", "checkpoint", "data", "engines", "errors", "fairness", "jobs", "ledger", "message", "plan", "seeds",
        "variants", "worker",
    },
    "compare_report": {"compare", "plots", "variants"},
    "cli_compare": {
        "cells", "cli_options", "compare", "compare_report", "jobs", "runs", "terminal", "typed", "variants",
    },
    "auxiliary": {"batch", "data"},
    "audit": {
        "attacks", "auxiliary", "batch", "cells", "data", "engines", "fairness", "forecast", "guards", "judge",
        "ledger", "link", "lpips", "memory", "message", "parties", "pixels", "plan", "privacy", "rates", "seeds",
        "drill", "detectors", "poison", "vigil",
    },
    "offline": {
        "attacks", "checkpoint", "engines", "judge", "lpips", "message", "plan", "runs", "transcript", "turn",
    },
    "verdict": set(),
    "plots": set(),
    "sweep": {"plots", "verdict"},
    "noticed": {"plots", "verdict"},
    "report": {"audit", "noticed", "plots", "privacy", "rates", "sweep", "verdict"},
    "link": {"spec"},
    "pixels": {"batch", "nets", "plan"},
    "forecast": {"ledger", "link", "message"},
    "bench_link": {
        "batch", "bench_deploy", "bench_parties", "engines", "forecast", "guards", "link", "measured", "nets", "plan",
        "split",
    },
    "bench_leak": {"batch", "bench_parties", "detectors", "engines", "measured", "plan"},
    "measured": set(),
    "bench_parties": {
        "batch", "certs", "data", "deploy", "engines", "errors", "link", "plan", "seeds", "terminal", "turn",
    },
    "bench_clients": {
        "batch", "data", "engines", "fusion", "measured", "memory", "message", "nets", "optimizers", "parties",
        "plan", "rounds", "seeds", "turn",
    },
    "bench_deploy": {
        "batch", "bench_parties", "engines", "forecast", "ledger", "link", "measured", "message", "nets",
        "optimizers", "parties", "plan", "turn", "wire", "worker",
    },
    "bench": {
        "attacks", "batch", "bench_clients", "bench_deploy", "bench_leak", "bench_link", "guards", "ledger",
        "measured", "message", "nets", "optimizers", "parties", "plan", "turn", "wire",
    },
    "demo": {"attacks", "data", "guards", "nets", "plan"},
    "certs": set(),
    "deploy": {
        "batch", "certs", "checkpoint", "course", "data", "engines", "errors", "message", "plan", "seeds", "worker",
        "halted",
    },
    "inference": {
        "batch", "certs", "checkpoint", "data", "engines", "ledger", "link", "message", "parties", "pixels",
        "plan", "runs", "seeds", "turn", "worker",
    },
    "logs": set(),
    "metering": set(),
    "cli_options": set(),
    "cli_deploy": {
        "certs", "checkpoint", "cli_options", "deploy", "engines", "inference", "link", "logs", "metering",
        "plan", "spec", "terminal", "typed",
    },
    "terminal": {"errors"},
    "braces": set(),
    "typed": {"braces", "cli_options", "guards", "plan", "spec"},
    "cli": {
        "bench", "cli_audit", "cli_compare", "cli_deploy", "cli_options", "data", "engines", "errors",
        "forecast", "link", "memory", "privacy", "rates", "runs", "spec", "terminal", "typed",
    },
    "cli_audit": {
        "attacks", "audit", "auxiliary", "cells", "cli_options", "demo", "engines", "forecast", "guards",
        "jobs", "link", "lpips", "offline", "plan", "report", "runs", "spec", "sweep", "terminal", "typed",
        "verdict",
    },
}  # fmt: skip


def imported(file):
    """Rooms of this package that a file imports, wherever in it the import stands."""
    inside = file.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*inside[: len(inside) - node.level], *(node.module or "").split(".")]
                base = [part for part in base if part]
            elif (node.module or "").split(".")[0] == "cutlayer":
                base = node.module.split(".")[1:]
            else:
                continue
            yield from [base[0]] if base else [alias.name for alias in node.names if alias.name != "__version__"]


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_dependencies_point_one_way(file):
    room = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if room != "__init__":
        assert set(imported(file)) - {room} <= ALLOWED[room]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_help_loads_no_torch():
    done = run("import sys, cutlayer.cli; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_core_imports_with_torch_and_numpy_alone():
    done = run(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('typer rich PIL matplotlib safetensors mlxtend pandas sklearn '\n"
        "                'dp_accounting opacus scipy').split():\n"
        "            raise ImportError(name + ' is not installed')\n"
        "sys.meta_path.insert(0, Gone())\n"
        "import cutlayer.audit, cutlayer.bench, cutlayer.privacy, cutlayer.report, cutlayer.runs, cutlayer.demo\n"
        "from cutlayer.spec import names, HOMES\n"
        "print(sum(len(names(kind)) for kind in HOMES) > 20)"
    )
    assert done.stdout.strip() == "True", done.stderr


def test_nothing_depends_on_torchvision():
    for file in ROOT.rglob("*.py"):
        assert "import torchvision" not in file.read_text()
