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
    "lpips": set(),
    "metrics": {"lpips"},
    "nets": {"spec"},
    "data": {"spec", "seeds"},
    "partitions": {"spec", "seeds", "data"},
    "optimizers": {"spec"},
    "schedules": {"spec"},
    "squeeze": {"spec"},
    "guards": BASIC | {"codecs", "squeeze"},
    "attacks": BASIC | {"guards", "metrics", "nets"},
    "wire": {"message", "codecs"},
    "ledger": {"message", "wire"},
    "transcript": {"message", "wire"},
    "remote": {"message", "squeeze"},
    "server": {"message", "errors", "seeds", "squeeze"},
    "split": {"batch", "guards", "remote"},
    "turn": {"batch", "errors", "message", "remote", "seeds", "split"},
    "pieces": {"batch", "message", "seeds", "turn"},
    "rounds": set(),
    "memory": {"batch", "message", "remote", "turn"},
    "plan": {
        "batch", "spec", "data", "guards", "nets", "optimizers", "partitions", "rules", "schedules", "split",
        "squeeze",
    },
    "parties": {"batch", "message", "nets", "plan", "remote", "seeds", "server", "split", "turn"},
    "checkpoint": set(),
    "worker": {
        "batch", "data", "errors", "ledger", "message", "optimizers", "parties", "pieces", "plan", "seeds", "turn",
    },
    "course": {"ledger", "message", "optimizers", "plan", "rounds", "rules", "server", "turn", "worker"},
    "engines": {
        "batch", "certs", "checkpoint", "course", "data", "errors", "ledger", "message", "nets", "parties", "plan",
        "rounds", "seeds", "server", "split", "turn", "wire", "worker",
    },
    "privacy": {"batch", "guards", "parties", "plan", "seeds", "split"},
    "rates": {"batch", "ledger", "message", "plan"},
    "runs": {
        "checkpoint", "data", "engines", "errors", "ledger", "parties", "plan", "privacy", "rates", "spec",
        "transcript",
    },
    "judge": {
        "attacks", "batch", "data", "engines", "guards", "lpips", "message", "metrics", "parties", "plan", "remote",
        "seeds", "server", "split", "turn",
    },
    "cells": {"checkpoint"},
    "jobs": {"audit", "cells"},
    "auxiliary": {"batch", "data"},
    "audit": {
        "attacks", "auxiliary", "batch", "cells", "data", "engines", "guards", "judge", "ledger", "lpips", "memory",
        "message", "parties", "plan", "privacy", "rates", "seeds",
    },
    "offline": {
        "attacks", "checkpoint", "engines", "judge", "lpips", "message", "plan", "runs", "transcript", "turn",
    },
    "verdict": set(),
    "report": {"audit", "privacy", "verdict"},
    "link": {"spec"},
    "measured": set(),
    "bench_parties": {
        "batch", "certs", "data", "deploy", "engines", "errors", "link", "plan", "seeds", "terminal", "turn",
    },
    "bench_deploy": {
        "batch", "bench_parties", "engines", "ledger", "link", "measured", "message", "nets", "optimizers", "parties",
        "plan", "turn", "wire", "worker",
    },
    "bench": {
        "attacks", "batch", "bench_deploy", "guards", "ledger", "measured", "message", "nets", "optimizers",
        "parties", "plan", "turn",
    },
    "demo": {"attacks", "data", "guards", "nets", "plan"},
    "certs": set(),
    "deploy": {
        "batch", "certs", "checkpoint", "course", "data", "engines", "errors", "message", "plan", "seeds", "worker",
    },
    "inference": {
        "batch", "certs", "checkpoint", "data", "engines", "ledger", "message", "parties", "plan", "runs", "seeds",
        "turn", "worker",
    },
    "logs": set(),
    "metering": set(),
    "cli_options": set(),
    "cli_deploy": {
        "certs", "checkpoint", "cli_options", "deploy", "engines", "inference", "logs", "metering", "plan", "spec",
        "terminal", "typed",
    },
    "terminal": set(),
    "typed": {"cli_options", "guards", "plan", "spec"},
    "cli": {
        "attacks", "audit", "auxiliary", "bench", "cells", "cli_deploy", "cli_options", "data",
        "demo", "engines", "errors", "guards", "jobs", "lpips", "offline", "plan", "privacy", "report",
        "runs", "spec", "terminal", "typed", "verdict",
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
