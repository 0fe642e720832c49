"""The list of what papers describe: every command can be typed, and grids have as many runs as their tables."""

import contextlib
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import papers
import pytest
import test_docs
from pages import ROOT
from test_recipes import task_of

from cutlayer.audit.compare.variant_text import variants
from cutlayer.data import Digits, Fashion, MissingData, Npz, Scenes
from cutlayer.training.plan.fields import FIELDS
from cutlayer.training.plan.plan_text import change, read_guards, read_plan
from cutlayer.training.plan.shapes import cut_shapes

THINGS = papers.things(papers.LIST.read_text())
SHIPPED = (Digits, Fashion, Scenes)  # no file is needed


def short(paper):
    """The name of a paper without what it is about."""
    return paper.partition(":")[0].partition(" (")[0]


def test_the_list_has_all_that_was_read_in_the_papers():
    counts = Counter(short(one.paper) for one in THINGS)
    # LightSplit's one grid stands in four lines, one a data set.
    assert counts == {
        "SEAL": 22, "KD-UFSL": 12, "FORA": 27, "LightSplit": 29, "Thesis, ch. 2": 21, "Thesis, ch. 3": 16,
        "Thesis, ch. 4": 8, "Thesis, ch. 5": 12,
    }  # fmt: skip


WITHOUT_A_PLAN = ("bench", "check", "predict")  # those are about parts, and a run that is there


def plans(name, words):
    """All plans that a command is about, guards and all: parts that do not go together are refused."""
    typed = test_docs.known()[name].make_context(name, list(words)).params
    changes = {key: value for key, value in typed.items() if key in FIELDS and value is not None}
    guards = changes.pop("guard", None) if name in ("audit", "sweep") else None
    with contextlib.chdir(ROOT):
        plan = change(read_plan(typed["plan"]), changes)
        if name == "compare":
            return [one.plan for one in variants(plan, typed["with_"])]
        return [replace(plan, guard=guard) for guard in read_guards(guards)] if guards else [plan]


def test_what_is_not_there_says_why():
    missing = [one for one in THINGS if one.why_not]
    assert all(len(one.why_not.split()) > 5 for one in missing)
    assert len(missing) <= 6


@pytest.mark.parametrize("paper", dict.fromkeys(one.paper for one in THINGS), ids=short)
def test_every_command_can_be_typed(paper):
    """Options exist, specs can be read, recipes are there."""
    for one in THINGS:
        if one.paper != paper or not one.command:
            continue
        _, name, *rest = words = shlex.split(one.command)
        try:
            test_docs.test_a_command_of_a_page_can_be_typed("docs/papers.txt", words)
            for plan in plans(name, rest) if name not in WITHOUT_A_PLAN else ():
                if not isinstance(plan.data, Npz):  # a file of one's own, whose shape nobody knows
                    cut_shapes(plan, task_of(plan))
        except Exception as error:
            raise AssertionError(f"{one.thing}: {one.command}") from error


@pytest.mark.parametrize("paper", dict.fromkeys(one.paper for one in THINGS), ids=short)
def test_where_data_are_missing_a_command_says_which_file_and_where(paper, tmp_path, monkeypatch):
    """Typed, and not only read: it ends with that before anything is computed."""
    monkeypatch.setenv("CUTLAYER_DATA", str(tmp_path))
    monkeypatch.chdir(ROOT)
    for command in {one.command: None for one in THINGS if one.paper == paper and one.command}:
        _, name, *rest = shlex.split(command)
        if name in WITHOUT_A_PLAN or isinstance(plans(name, rest)[0].data, SHIPPED):
            continue
        with pytest.raises(MissingData, match=r"^there is no .+") as raised:
            test_docs.known()[name].main(rest, standalone_mode=False)
        assert str(tmp_path) in str(raised.value) and "point at the" in str(raised.value), command


def test_a_grid_has_the_runs_that_it_says():
    said = [one for one in THINGS if re.match(r"\d+ runs", one.note)]
    assert len(said) == 5
    for one in said:
        words = shlex.split(one.command)
        texts = [words[place + 1] for place, word in enumerate(words) if word == "--with"]
        with contextlib.chdir(ROOT):
            assert len(variants(read_plan(words[2]), texts)) == int(one.note.split()[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a | b", "line 2 is no"),
        ("a | b | c", "line 2 has neither"),
        ("a | b | cutlayer train | c | d", "line 2 is no"),
    ],
)
def test_a_line_of_another_kind_is_refused(line, words):
    with pytest.raises(ValueError, match=words):
        papers.things(f"== A\n{line}")


def test_the_page_is_made_of_the_list():
    lines = ["== A: b", "this | Sec. 1 | cutlayer demo | a note", "that | Sec. 2 | no: because of it"]
    made = papers.page("\n".join([*lines, "so | Sec. 3 | from Python: a()"]))
    assert "| this | Sec. 1 | `cutlayer demo` (a note) |" in made and "| not there: because of it |" in made
    assert "| from Python: `a()` |" in made
    assert made.startswith("3 things: 1 with a command, 1 from Python alone, 1 not there.")
    assert Path(papers.LIST).name in (ROOT / "tools/tables.py").read_text()
