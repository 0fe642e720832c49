"""Between machines, plug-ins from outside the package are compared by their source; what has none is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from named_files import nothing_named as nothing_named
from rehearsal import Rehearsal, refuse_other_weights, undisturbed
from toys import TinyNet, tiny_plan

from cutlayer.core.outside.files import NAMED
from cutlayer.core.spec import spec
from cutlayer.engines.grpc.deploy import Service
from cutlayer.nets.own import Own

PLUGINS = Path(__file__).parents[2] / "outside" / "plugins"


def plan(folder, **changes):
    guard, rule = (spec(f"{folder}/{one}") for one in ("sign_bit.py:SignBit(scale=0.5)", "half_way.py:HalfWay()"))
    rounds = spec("SplitFed(version=2)")
    return tiny_plan(
        **{"guard": guard, "rule": rule, "rounds": rounds, "clients": 3, "epochs": 2, "batch_size": 6} | changes
    )


@pytest.fixture
def two(tmp_path, monkeypatch):
    """The same plug-ins on two machines, each in a place of its own."""
    monkeypatch.setenv(NAMED, "{}")
    for name in ("here", "there"):
        shutil.copytree(PLUGINS, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "here", tmp_path / "there"


def test_serve_and_join_agree_on_code_wherever_it_lies(two, tmp_path):
    ours, theirs = map(plan, two)
    assert type(ours.guard) is not type(theirs.guard) and ours.fingerprint() == theirs.fingerprint()
    assert str(tmp_path) not in repr(ours.agreed()), "where a file lies is nobody's business"
    rehearsal = Rehearsal(ours, tmp_path / "run")
    rehearsal.plan = theirs  # of the clients
    for name in rehearsal.names:
        rehearsal.join(name)
    rehearsal.serve()
    rehearsal.end()
    refuse_other_weights(undisturbed(ours), rehearsal)


def test_another_source_is_another_plan(two, tmp_path):
    here, there = two
    text = (there / "sign_bit.py").read_text()
    (there / "sign_bit.py").write_text(text.replace("clamp(-1, 1)", "clamp(-3, 3)"))
    ours, theirs = plan(here), plan(there)
    assert repr(ours.guard).rpartition(":")[2] == repr(theirs.guard).rpartition(":")[2]
    rehearsal = Rehearsal(ours, tmp_path / "run")
    rehearsal.plan = theirs
    rehearsal.join("ward-a").join(20)
    assert "the plans differ: code is HalfWay" in str(rehearsal.errors[0])
    rehearsal.service.network.stop()


def test_what_has_no_source_is_refused_between_machines(tmp_path):
    for make, why in (
        (lambda: TinyNet().head((1, 12, 12)), "a lambda has no name"),
        (_Made(), "an object of the class _Made"),
    ):
        own = replace(tiny_plan(), net=Own(make, "1", None))
        with pytest.raises(ValueError, match=f"cannot be compared between machines: .*{why}"):
            Service(own, ["a"], tmp_path / "s", listen="127.0.0.1:0", identity=None)


class _Made:
    def __call__(self):
        return TinyNet().head((1, 12, 12))
