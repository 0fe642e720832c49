"""What README and docs say is tried out: Python runs, commands parse, links and make targets exist."""

import ast
import contextlib
import importlib
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import tables
import torch
from named_files import nothing_named as nothing_named
from pages import PAGES, ROOT, blocks, commands_of, files_of
from typer.main import get_command

import cutlayer
from cutlayer import __version__
from cutlayer.attacks import Attack
from cutlayer.audit.compare.variant_text import variants
from cutlayer.bench import run as bench
from cutlayer.cli import app as cli
from cutlayer.core.spec import HOMES, names, spec
from cutlayer.guards import Guard
from cutlayer.training.plan.fields import FIELDS
from cutlayer.training.plan.plan_text import change, read_guards, read_plan

torch.set_num_threads(1)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def run_page(page: Path) -> dict[str, Any]:
    """The names a page's Python leaves behind, all its blocks run in order in an empty folder."""
    made: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    with TemporaryDirectory() as folder, contextlib.chdir(folder), torch.random.fork_rng():
        torch.manual_seed(0)
        for line, text in blocks(page, "python"):
            # Empty lines in front: a traceback then shows the line of the page.
            exec(compile("\n" * line + text, str(page), "exec"), made)
    return made


@cache
def known() -> dict[str, Any]:
    """Every command by its name. They are made of all their options, which takes a while."""
    return get_command(cli.app).commands


def commands() -> list[tuple[str, list[str]]]:
    """(page, words) of each line that starts with `cutlayer`."""
    return [(page_name(page), words) for page in PAGES for words in commands_of(page, "console", "bash")]


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "python"))], ids=page_name)
def test_the_python_of_a_page_runs(page):
    assert run_page(page)


# What the docstring of `cutlayer` promises, and the sub-rooms whose names would clash in their room.
PUBLIC = {"cutlayer", *(f"cutlayer.{name}" for name, home in cutlayer._HOMES.items() if not home)}
BELOW = {"cutlayer.audit.compare", "cutlayer.guards.flower", "cutlayer.rules.flower", "cutlayer.wire.codecs"}


def imports(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of everything of this package that a Python text imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cutlayer":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "cutlayer")


def test_readme_docs_and_recipes_import_the_public_api_alone():
    told = [(page_name(page), text) for page in PAGES for _, text in blocks(page, "python", "py")]
    told += [(recipe.name, recipe.read_text()) for recipe in sorted((ROOT / "recipes").glob("*.py"))]
    found = [(where, module, name) for where, text in told for module, name in imports(text)]
    assert len(found) > 100, "the pages are read"
    assert [one for one in found if one[1] not in PUBLIC | BELOW] == []
    inside = {(module, name) for _, module, name in found if module not in BELOW and name}
    unknown = [(module, name) for module, name in inside if not hasattr(importlib.import_module(module), name)]
    assert unknown == []


def test_the_examples_of_readme_learn_something():
    assert run_page(ROOT / "README.md")["accuracy"] > 0.15, "a tenth would be chance"


def of_the_package(page: str, word: str) -> str:
    """A file that the page has `cutlayer new` make is the recipe that it is a copy of."""
    for recipe, copy in re.findall(r"\$ cutlayer new (\S+) (\S+\.py)", (ROOT / page).read_text()):
        word = word.replace(f"{copy}:", f"recipes/{recipe}.py:")
    return word


@cache
def desk(page: str) -> Path:
    """Where a page's commands are typed: beside the files it has its reader write, or in the repository."""
    if not (files := files_of(ROOT / page)):
        return ROOT
    folder = Path(mkdtemp())
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def typed_id(part: str | list[str]) -> str:
    return part if isinstance(part, str) else " ".join(part[1:])


@pytest.mark.parametrize(("page", "words"), commands(), ids=typed_id)
def test_a_command_of_a_page_can_be_typed(page, words):
    """Options exist and take such values, specs can be read, recipes are there."""
    _, name, *rest = (of_the_package(page, word) for word in words)
    assert name in known(), f"{page}: there is no command {name}"
    typed = known()[name].make_context(name, rest).params  # refuses unknown options and wrong types
    if name in ("train", "audit", "sweep"):
        with contextlib.chdir(desk(page)):
            read_everything(typed)
    if name == "compare":
        with contextlib.chdir(ROOT):
            changes = {key: value for key, value in typed.items() if key in FIELDS and value is not None}
            assert variants(change(read_plan(typed["plan"]), changes), typed["with_"])
    if name == "list":
        assert typed["kind"] in [*HOMES, "bench"]


def read_everything(typed: dict[str, Any]) -> None:
    """Read all that was typed for a training or an audit, as the command would."""
    changes = {key: value for key, value in typed.items() if key in FIELDS and value is not None}
    guards = changes.pop("guard", [])
    change(read_plan(typed["plan"]), changes)
    for text in [guards] if isinstance(guards, str) else guards:
        assert text == "all" or all(isinstance(guard, Guard) for guard in read_guards([text]))
    for text in typed.get("attack") or []:
        assert isinstance(spec(text, "attacks"), Attack)


def test_every_command_has_an_example():
    shown = {words[1] for page, words in commands() if page == "README.md"}
    assert shown == set(known())


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """What can stand behind a # of a link to the page: headings that GitHub and the site spell alike."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    told = [re.sub(r"`|\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    github = [re.sub(r"[^\w -]", "", line.strip().lower()).replace(" ", "-") for line in told]
    site = [re.sub(r"[^\w\s-]", "", line.encode("ascii", "ignore").decode()).strip().lower() for line in told]
    return set(github) & {re.sub(r"[-\s]+", "-", line) for line in site}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_headings_that_are_there(page):
    found = [
        (page.parent / file if file else page, at)
        for file, at in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    ]
    assert [(file.name, at) for file, at in found if file.suffix == ".md" and at not in anchors(file)] == []


def test_readme_names_the_make_targets_that_there_are():
    rules = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make (\w+)", (ROOT / "README.md").read_text()))
    assert named - rules == set(), "README names targets that are not there"
    assert rules - named == {"lint", "types", "unit", "clean"}, "a target for users is missing in README"


def test_readme_starts_with_what_it_is_and_the_two_commands():
    top = (ROOT / "README.md").read_text().split("\n## ")[0]
    assert top.index("make demo") < top.index("make test")


def test_the_tables_of_plug_ins_say_what_their_folders_say():
    assert {found[1]: page.name for page in PAGES for found in tables.BLOCK.findall(page.read_text())} == {
        "guards": "guards.md", "rules": "rules.md", "attacks": "attacks.md", "detectors": "detectors.md",
        "papers": "papers.md", "bench": "speed.md", "bench_gpu": "speed.md", "speed": "README.md",
    }  # fmt: skip
    stale = [page_name(page) for page in PAGES if tables.filled(page.read_text()) != page.read_text()]
    assert not stale, "`make docs` writes them anew"


def test_a_plug_in_that_is_new_to_its_folder_is_missed_in_the_table(monkeypatch):
    class Blur:
        """Something new | with a bar."""

    monkeypatch.setattr(tables, "names", lambda kind: {"Blur": Blur})
    written = tables.filled("before\n<!-- table: attacks -->\nold\n<!-- end -->\nbehind")
    assert written == (
        "before\n<!-- table: attacks -->\n| attack | is |\n|---|---|\n"
        "| `Blur` | Something new \\| with a bar. |\n<!-- end -->\nbehind"
    )


def test_every_codec_is_on_its_page_with_its_number():
    text = (ROOT / "docs/wire.md").read_text()
    assert [name for name, codec in names("codecs").items() if f"| {codec.tag} `{name}` |" not in text] == []


def test_every_protocol_is_on_its_page():
    text = (ROOT / "docs/protocols.md").read_text()
    assert [name for name in names("protocols") if f"`{name}`" not in text] == []


def test_every_field_of_audit_json_is_on_its_page():
    page = ROOT / "docs/audit.md"
    described = set(re.findall(r"`([\w ]+)`", page.read_text()))
    assert fields(run_page(page)["written"]) - described == set()


def fields(data: Any) -> set[str]:
    """All keys of nested JSON."""
    if isinstance(data, dict):
        return set(data) | {key for value in data.values() for key in fields(value)}
    return {key for value in data for key in fields(value)} if isinstance(data, list) else set()


def test_benchmarks_that_are_named_exist():
    for _, words in commands():
        if words[1] == "bench":
            wanted = known()["bench"].make_context("bench", words[2:]).params["names"] or []
            assert all(any(entry.startswith(word) for entry in bench.ENTRIES) for word in wanted)


def test_the_changelog_knows_this_version():
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_standard_text():
    """The digest of the Apache License 2.0 as its authors publish it, appendix included."""
    digest = sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_page_of_the_api_has_every_public_name():
    told = re.findall(r"^::: (.*)\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert [(home, name) for home, name in told if not hasattr(importlib.import_module(home), name)] == []
    public = [name for name, home in cutlayer._HOMES.items() if home]
    assert [name for name in public if name not in {name for _, name in told}] == []
