"""Names that load when they are used: found by dir() and by completion, and known to type checkers and editors."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("cutlayer", "cutlayer.training", "cutlayer.audit")


def fresh(code):
    """What a new process says that has used no name yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_all_public_names_before_one_is_used_and_loads_none(package):
    listed = fresh(f"import {package} as package, sys; print(*dir(package), 'torch' in sys.modules)")
    assert set(import_module(package).__all__) | {"__doc__", "__all__", "False"} <= listed
    assert "lazy" not in listed


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_there_are_where_they_are(package):
    """py.typed promises types, and a `__getattr__` has none: mypy took every name, misspelt ones too, for Any."""
    module = import_module(package)
    blocks = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If)]
    blocks = [one for one in blocks if ast.unparse(one.test) == "TYPE_CHECKING"]
    imports = [node for one in blocks for node in one.body]
    told = {alias.asname: node.module or "" for node in imports for alias in node.names}
    assert told == module._HOMES
    assert all("__getattr__" in ast.unparse(one.orelse) for one in blocks), "else any misspelt name is Any"
