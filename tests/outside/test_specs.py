"""What is typed with its origin: read, written, refused; and what a text from elsewhere may not do."""

import multiprocessing
import pickle
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typed import TYPED

from cutlayer.core.outside import announced, load_named
from cutlayer.core.outside.placeholders import rewritten
from cutlayer.core.spec import NotNamed, names, spec
from cutlayer.guards import Chain, LightSplit
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.plan_text import read_guards, read_plan

GUARD = """
from dataclasses import dataclass
from cutlayer.guards import Guard, GuardModule

@dataclass(frozen=True, repr=False)
class Plain(Guard):
    "Nothing."
    number: float = 1.0
    def build(self, shape, public, private, task=None):
        return GuardModule()
"""
each_kind = pytest.mark.parametrize("kind", TYPED)


def told(file, words, **imports):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as refused:
        spec(file, "guards", **imports)
    assert "\n" not in str(refused.value)


@each_kind
def test_a_file_is_named_by_its_path(kind, plugins):
    file, text = TYPED[kind]
    thing = spec(f"{file}:{text}", kind)
    assert repr(thing) == f"{file}:{text}" and spec(repr(thing), kind) == thing
    assert spec(f"{plugins / file}:{text}", kind) == thing, "one file is one module, however its path is typed"
    assert spec(f"{file}:{text.partition('(')[0]}", kind) == type(thing)()


def test_a_module_is_named_by_its_name(plugins, monkeypatch):
    monkeypatch.syspath_prepend(plugins)
    guard = spec("sign_bit:SignBit(scale=3.0)", "guards")
    assert repr(guard) == "sign_bit:SignBit(scale=3.0)" and spec(repr(guard)) == guard
    assert spec("sign_bit.py:SignBit(scale=3.0)") == guard, "not a second copy of its classes"


def test_a_file_that_another_one_imported_is_written_as_it_was_typed(tmp_path, monkeypatch):
    Path(tmp_path, "plain_beside.py").write_text(GUARD)
    Path(tmp_path, "imports_it.py").write_text(
        "from plain_beside import Plain\n\n\nclass Plainer(Plain):\n    'x.'\n"
    )
    monkeypatch.chdir(tmp_path)
    spec("imports_it.py:Plainer()", "guards")
    guard = spec("plain_beside.py:Plain(number=2.0)", "guards")
    assert repr(guard) == "plain_beside.py:Plain(number=2.0)" and type(guard).__module__ == "plain_beside"
    assert spec(repr(guard), imports=False) == guard, "it was named here"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(repr, (guard,)) == repr(guard), "in a process that helps, too"


def test_nested_in_chains_and_plans(plugins):
    chain = spec("Chain(LightSplit(ratio=2), sign_bit.py:SignBit(scale=2))", "guards")
    assert isinstance(chain, Chain) and chain.parts[0] == LightSplit(ratio=2)
    plan = spec(
        f"Plan(guard={chain!r}, net=two_layers.py:TwoLayers(), client_detectors=(large_gradients.py:LargeGradients,))"
    )
    assert spec(repr(plan)) == plan and "two_layers.py:TwoLayers()" in repr(plan)
    assert read_plan(repr(plan)) == plan, "a plan's text is no recipe because there is .py: in it"
    assert [repr(one) for one in read_guards(["sign_bit.py:SignBit(scale={1.0,2.0})"])] == [
        "sign_bit.py:SignBit(scale=1.0)", "sign_bit.py:SignBit(scale=2.0)"
    ]  # fmt: skip


def test_a_path_with_spaces_stands_in_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my files (2)").mkdir()
    Path("my files (2)/it's.py").write_text(GUARD)
    guard = spec("Chain('my files (2)/it\\'s.py':Plain(number=2.0), WCC(weight=0.1))", "guards")
    assert spec(repr(guard)) == guard and repr(guard).startswith('Chain("my files (2)/it\'s.py":Plain')
    told("my files (2)/x.py:Plain()", "stands in quotes")


def test_only_origins_are_rewritten():
    for text in ("Npz(path='a.py:b')", 'Npz(path="C:x:y")', "A(b={'x': 1, 2: 'y:z'})", "Frozen(share=0.5)"):
        assert rewritten(text) == (text, {})
    plain, found = rewritten("A(outside_0, C:\\x\\y.py:B(1), a.b:C)")
    assert plain == "A(outside_0, outside__0(1), outside__1)"
    assert [str(one) for one in found.values()] == ["C:\\x\\y.py:B", "a.b:C"]


def test_what_cannot_be_named_is_refused_with_the_way_out(plugins):
    told("gone.py:SignBit()", "there is no file gone.py")
    told("sign_bit.py:Sign()", "sign_bit.py has no 'Sign'; it has SignBit")
    told("no.such.module:SignBit()", "there is no module no .*a file is named as path/to/file.py:Name")
    told("os:system('true')", r"os:system cannot stand among the guards: .* descends from cutlayer.guards.Guard")
    told("nearest.py:Nearest()", "cannot stand among the guards")
    told("cutlayer.guards:WCC(weight=1)", r"in the package itself: write WCC\(...\)")
    told("sign_bit.py:SignBit(scale=[x for x in 'ab'])", "arguments are numbers, strings or other specs")
    told("sign_bit.py:SignBit(scale=-1)", "scale is where learning starts")
    told("sign_bit.py:SignBit(width=1)", "SignBit takes scale=1.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\n\nx = 1 / 0\n", "broken.py cannot be imported: .*broken.py, line 3: ZeroDivisionError"),
        ("def f(:\n", "broken.py, line 1: SyntaxError"),
        ("\nimport no_such_thing\n", "line 2: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("\n\nraise SystemExit(3)\n", "line 3: SystemExit: 3"),
        ("x = 'é'\n".encode("latin-1"), "broken.py, line 1: .*: save it as UTF-8$"),
        ("x = 1\n".encode("utf-16"), r"broken.py: SyntaxError: .*: save it as UTF-8$"),
    ],
)
def test_a_file_that_cannot_be_imported_says_where(text, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    told("broken.py:X()", words)
    with pytest.raises(ValueError, match=words):
        read_plan("broken.py:plan")


def test_a_changed_file_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(GUARD)
    before = spec("mine.py:Plain")
    Path("mine.py").write_text(GUARD.replace("1.0", "7.0"))
    assert spec("mine.py:Plain").number == 7.0 and before.number == 1.0


def test_a_neighbour_that_is_there_twice_is_refused(plugins, tmp_path):
    load_named(["two_layers.py"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "widths.py").write_text("MIDDLE = 7\n")
    (other / "net.py").write_text((plugins / "two_layers.py").read_text())
    with pytest.raises(ValueError, match=r"widths is there twice, as .*other/widths.py and as .*plugins/widths.py"):
        spec(f"{other / 'net.py'}:TwoLayers()", "nets")


# --------------------------------------------------------------------------- texts that nobody typed here
def test_a_text_from_elsewhere_imports_nothing(plugins, monkeypatch):
    monkeypatch.syspath_prepend(plugins)
    for text, place in (("sign_bit.py:SignBit()", "sign_bit.py"), ("half_way:HalfWay()", "half_way")):
        with pytest.raises(NotNamed, match="imports nothing by itself") as refused:
            spec(text, imports=False)
        assert refused.value.origin.place == place
    assert "half_way" not in sys.modules and not [name for name in sys.modules if "sign_bit" in name]
    load_named(["sign_bit.py", "half_way"])
    assert spec("sign_bit.py:SignBit()", imports=False) and spec("half_way:HalfWay()", imports=False)
    assert spec("somewhere/else/sign_bit.py:SignBit()", imports=False), "digests tell whether it is the same file"


# --------------------------------------------------------------------------- installed packages
def install(monkeypatch, *entries):
    found = tuple(EntryPoint(name, value, announced.GROUP) for name, value in entries)
    monkeypatch.setattr(announced, "entries", lambda: found)


def test_installed_packages_announce_plug_ins(plugins, monkeypatch, command):
    monkeypatch.syspath_prepend(plugins)
    (plugins / "several.py").write_text(
        "from sign_bit import SignBit\nfrom half_way import HalfWay\n__all__ = ['HalfWay']\n"
    )
    install(monkeypatch, ("SignBit", "sign_bit:SignBit"), ("several", "several"), ("broken", "no_such_module"))
    assert (
        repr(spec("Chain(SignBit(scale=2.0), WCC(weight=0.1))", "guards").parts[0]) == "sign_bit:SignBit(scale=2.0)"
    )
    assert repr(spec("HalfWay()", "rules")) == "half_way:HalfWay()"
    told("SignBt()", "did you mean SignBit")
    code, out, err = command("list", "guards")
    assert code == 0 and "Only the sign of each number leaves, times one learned scale. [sign_bit:SignBit]" in out
    assert "HalfWay" not in out and "there is no module no_such_module" in err
    assert "SignBit" not in names("guards"), "the package itself has what it had"


def test_a_name_that_is_there_twice_is_refused(plugins, monkeypatch):
    monkeypatch.syspath_prepend(plugins)
    install(monkeypatch, ("WCC", "sign_bit:SignBit"), ("SignBit", "sign_bit:SignBit"), ("SignBit", "other:SignBit"))
    told(
        "WCC(weight=1)", r"WCC is there twice, as cutlayer.guards.wcc:WCC of cutlayer and as sign_bit:SignBit of the"
    )
    told("SignBit()", "SignBit is there twice, as sign_bit:SignBit of .* and as other:SignBit of")


def test_a_text_from_elsewhere_imports_no_installed_package(plugins, monkeypatch):
    monkeypatch.syspath_prepend(plugins)
    install(monkeypatch, ("SignBit", "sign_bit:SignBit"), ("several", "half_way"))
    told("SignBit()", "imports nothing by itself", imports=False)
    assert {"sign_bit", "half_way"}.isdisjoint(sys.modules)


# --------------------------------------------------------------------------- other processes
def read_back(data):
    thing = pickle.loads(data)
    return repr(thing), pickle.dumps(thing)


def test_everything_can_be_handed_to_another_process(plugins):
    recipe = read_plan("recipe.py:everything")
    things = [spec(f"{file}:{text}", kind) for kind, (file, text) in TYPED.items()] + [recipe]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for thing, (text, data) in zip(things, pool.map(read_back, map(pickle.dumps, things)), strict=True):
            assert text == repr(thing) and pickle.loads(data) == thing


def test_a_recipe_is_a_module(plugins):
    plan = read_plan("recipe.py:everything")
    assert isinstance(plan, Plan) and repr(plan.guard) == "sign_bit:SignBit(scale=1.0)"
    with pytest.raises(ValueError, match=r"recipe.py has no function 'nothing'; it has recipe.py:everything"):
        read_plan("recipe.py:nothing")
