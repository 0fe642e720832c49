"""Every line of the page on what parties can do names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "parties.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def test_every_test_that_is_named_is_there():
    assert len(NAMED) > 25
    for path, name in NAMED:
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_only_what_is_documented_goes_without_a_test():
    rows = [
        line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line
    ]
    for row in rows:
        if row[0] != "it" and "`tests/" not in row[-1]:
            assert row[1] == "documented", row
