"""A data source of somebody else: checked by laws as any plug-in, and refused in words."""

from pathlib import Path

import pytest

from cutlayer.audit import check
from cutlayer.core.spec import spec

READ = "    def read(self, folder):"
STRIPES = (Path(__file__).parents[2] / "recipes" / "plugins" / "stripes.py").read_text()


@pytest.fixture
def source(tmp_path):
    def written(old="", new=""):
        assert old in STRIPES
        (tmp_path / "stripes.py").write_text(STRIPES.replace(old, new) if old else STRIPES)
        return spec(f"{tmp_path / 'stripes.py'}:Stripes(count=40)", "data")

    return written


def test_its_laws_hold_and_are_more_than_its_text(source):
    found = check.check(source())
    assert [one.why for one in found if one.holds is False] == []
    assert sum(one.holds is True for one in found) >= 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".manual_seed(seed)", ".manual_seed(torch.initial_seed())", "read twice it is two sets"),
        ("    about: ClassVar[About] =", "    facts: ClassVar[About] =", "it has no about"),
        (
            READ,
            f"    def load(self, folder=None, scale=None):\n        return self.read(folder)\n\n{READ}",
            "limit=20 leaves 40",
        ),
    ],
)
def test_a_mistake_is_a_broken_law(old, new, words, source):
    broken = [one.why for one in check.check(source(old, new)) if one.holds is False]
    assert len(broken) == 1 and words in broken[0], broken


def test_one_without_a_limit_is_refused_in_words(source):
    with pytest.raises(ValueError, match="needs the field `limit"):
        source("    limit: int | None = None\n", "")
