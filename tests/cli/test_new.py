"""`cutlayer new` and `cutlayer --version`."""

from pathlib import Path

import pytest

from cutlayer import __version__
from cutlayer.cli.new import recipes

ROOT = Path(__file__).parents[2]


def test_the_version(command):
    assert command("--version") == (0, f"cutlayer {__version__}\n", "")


def test_every_recipe_is_listed_with_its_first_line(command):
    code, out, _ = command("new")
    listed = {line.split()[0] for line in out.splitlines()}
    assert code == 0 and listed == set(recipes()) >= {"fashion", "own_model", "plugins/nearest"}
    assert all(len(line.split()) > 3 for line in out.splitlines())


def test_a_copy_is_the_recipe_and_nothing_is_written_over(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("new", "fashion")
    assert code == 0 and "try it: cutlayer train fashion.py:quick" in err
    assert (tmp_path / "fashion.py").read_bytes() == (ROOT / "recipes" / "fashion.py").read_bytes()
    code, _, err = command("new", "recipes/fashion.py")
    assert code == 1 and "fashion.py is already there: name another file" in err


def test_the_command_to_try_can_be_pasted(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my plans").mkdir()
    assert "cutlayer train 'my plans/a.py:quick'" in command("new", "fashion", "my plans/a.py")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fashon"], "did you mean fashion"),
        (["fashion", "nowhere/a.py"], "there is no folder nowhere"),
        (["fashion", "mine.txt"], "a recipe is a Python file: cutlayer new fashion mine.py"),
    ],
)
def test_what_cannot_be_copied_says_why(command, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("new", *words)
    assert code == 1 and said in err and err.count("\n") == 1
