"""One file and one line make a plug-in, and one line more in a contract table: a forgotten one fails here."""

import ast
from pathlib import Path

import pytest
from test_attacks import ATTACKS
from test_codecs import CODECS
from test_detectors import AT_SERVERS, DETECTORS
from test_protocols import PROTOCOLS
from test_rules import RULES
from test_text_attacks import TEXT_ATTACKS
from toys import ALL_GUARDS

import cutlayer
from cutlayer.core.spec import Spec, names, plug_ins, summary
from cutlayer.guards import every
from cutlayer.wire.codecs import BY_TAG

ROOT = Path(cutlayer.__file__).parent
# By kind: its folder, the classes that all of its kind descend from, and the table whose entries meet every law.
KINDS = {
    "guards": ("guards", {"Guard"}, ALL_GUARDS),
    "attacks": ("attacks", {"Attack"}, ATTACKS + TEXT_ATTACKS),
    "rules": ("rules", {"Rule"}, RULES),
    "detectors": ("detectors", {"Detector", "ServerDetector"}, DETECTORS + AT_SERVERS),
    "codecs": ("wire/codecs", {"Codec"}, CODECS),
    "protocols": ("training/protocols", {"Protocol"}, PROTOCOLS),
}
all_kinds = pytest.mark.parametrize("kind", KINDS)


def classes(files):
    """Each class that is defined in these files, and the names of those of this package that it is made from."""
    found = {}
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        foreign = {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
                   for alias in node.names}  # fmt: skip
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)} - foreign
    return found


@all_kinds
def test_every_plug_in_of_a_folder_has_its_import_line(kind):
    """Files are read, not imported: one that needs an extra must not be left out where the extra is missing."""
    folder, kin, _ = KINDS[kind]
    parents = classes((ROOT / folder).rglob("*.py"))
    bases, grown = set(kin), True
    while grown:
        grown = {name for name, above in parents.items() if above & kin} - kin
        kin = kin | grown
    here = {name for name in classes((ROOT / folder).glob("*.py")) if not name.startswith("_")}
    assert set(names(kind)) == (kin & here) - bases, "parts/ hold what is no plug-in, and so do names with a _"


@all_kinds
def test_every_plug_in_of_a_folder_is_in_the_table_that_laws_run_over(kind):
    assert {type(entry) for entry in KINDS[kind][2]} == set(names(kind).values())


@all_kinds
def test_every_plug_in_says_in_a_line_what_it_is(kind):
    for name, thing in names(kind).items():
        assert summary(thing).endswith((".", ")")), f"{name}: {summary(thing)!r} is not a sentence"


def test_what_a_folder_imports_and_is_no_plug_in_stays_out():
    class Kind(Spec):
        """A base."""

    class Zebra(Kind):
        """A plug-in."""

    class ABC(Kind):
        """An abbreviation, which comes first."""

    here = {"Kind": Kind, "Zebra": Zebra, "ABC": ABC, "Spec": Spec, "names": names, "number": 3}
    assert plug_ins(here, Kind) == ["ABC", "Zebra"]


def test_no_two_codecs_have_the_same_tag():
    assert {tag: type(codec) for tag, codec in BY_TAG.items()} == {one.tag: one for one in names("codecs").values()}
    assert len(BY_TAG) == len(names("codecs"))


def test_the_suite_of_guards_has_each_guard_that_stands_by_itself_at_any_cut():
    left_out = {"NoGuard", "Chain", "JPEG", "HEVC", "DST", "Haar", "PCA"}  # the last three: DCT stands for them
    assert set(names("guards")) - {type(guard).__name__ for guard in every()} == left_out
