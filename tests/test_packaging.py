"""What is promised of the package: everything it needs is locked, and its extras are those that errors name."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from cutlayer.cli.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if "==" in line
)


def test_the_lock_has_everything_that_is_tested_in_a_version_that_fits():
    asked = [
        *PROJECT["dependencies"],
        *(one for name in ("dev", "docs") for one in PROJECT["optional-dependencies"][name]),
    ]
    needs = [Requirement(text) for text in asked]
    assert [one.name for one in needs if one.name.lower() not in LOCKED] == []
    assert [str(one) for one in needs if not one.specifier.contains(LOCKED[one.name.lower()])] == []


def test_what_the_package_itself_needs_is_small():
    assert not {"mlxtend", "scikit-learn", "pandas", "scipy", "transformers", "grpcio", "ray"} & {
        re.split(r"[<>=\[]", one)[0] for one in PROJECT["dependencies"]
    }


def test_every_extra_that_an_error_names_is_there():
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


def test_readme_names_every_extra():
    named = set(re.findall(r"`\.\[(\w+)\]`", (ROOT / "README.md").read_text()))
    assert named == set(PROJECT["optional-dependencies"])
