"""Features and labels that stand for something else at another site, or in what is predicted later, are refused."""

import csv
import random
from dataclasses import replace

import numpy as np
import pytest
from peers import hello
from rehearsal import NAMES
from toys import tiny_plan

from cutlayer.data import Npz, Table
from cutlayer.data.meaning import Meaning
from cutlayer.engines.folder import keep_meaning
from cutlayer.engines.grpc.admission import Admission, Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.deploy import Service, join
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.local import start
from cutlayer.engines.predict import Inputs, predict
from cutlayer.guards import LightSplit
from cutlayer.nets import MLP
from cutlayer.training.plan.plan import Plan

PLAN = Plan(net=MLP(widths=(4, 4)), clients=2, epochs=1, batch_size=8)
HERE = ("age", "pressure", "sex", "risk")


@pytest.fixture
def table(tmp_path):
    """A table of these columns, with these words for the two sexes and the two risks."""

    def write(name, columns=HERE, sexes=("f", "m"), risks=("high", "low"), seed=0):
        draw = random.Random(seed)
        rows = [
            {
                "age": str(draw.randint(20, 90)),
                "pressure": str(draw.randint(90, 180)),
                "sex": sexes[place % 2],
                "risk": risks[place // 2 % 2],
            }
            for place in range(40)
        ]
        with (tmp_path / name).open("w", newline="") as file:
            lines = csv.DictWriter(file, columns)
            lines.writeheader()
            lines.writerows(rows)
        return Table(path=str(tmp_path / name), target="risk")

    return write


OTHER = {
    "columns": ({"columns": ("pressure", "age", "sex", "risk")}, "columns are pressure, age, sex, not age, pressure"),
    "values": ({"sexes": ("female", "male")}, "column 'sex' has female, male, not f, m"),
    "classes": ({"risks": ("low", "none")}, "classes are low, none, not high, low"),
}


@pytest.mark.parametrize(("changes", "words"), OTHER.values(), ids=OTHER)
def test_sites_whose_numbers_mean_something_else_do_not_train_together(changes, words, table, tmp_path):
    """Shapes and counts were equal, and the run went on over columns in another order."""
    service = Service(PLAN, ["a", "b"], tmp_path / "server", listen="127.0.0.1:0", identity=None)
    address = Address(f"127.0.0.1:{service.network.port}", give_up=2.0)
    try:
        data = {"a": table("a.csv"), "b": table("b.csv", **changes)}
        sites = [join(PLAN, name, tmp_path / name, address=address, data=own) for name, own in data.items()]
        sites[0].channel.open()
        with pytest.raises(Refused, match=r"the (classes|columns) of b are not those of a: .* all sites"):
            sites[1].channel.open()
        for site in sites:
            site.channel.close()
        assert words in Meaning.of(data["b"].load()).difference(Meaning.of(data["a"].load()))
    finally:
        service.close()


@pytest.mark.parametrize(("changes", "words"), OTHER.values(), ids=OTHER)
def test_a_network_predicts_what_means_the_same_as_what_it_has_learnt(changes, words, table, tmp_path):
    plan = replace(PLAN, clients=1, data=table("train.csv"))
    start.train(plan, tmp_path / "run")
    assert (tmp_path / "run" / "meaning.json").stat().st_mode & 0o77 == 0, "facts of a client's data are its own"
    assert len(predict(tmp_path / "run", Inputs(data=table("again.csv"))).found)
    with pytest.raises(ValueError, match=words):
        predict(tmp_path / "run", Inputs(data=table("other.csv", **changes)))


@pytest.fixture
def come(table, tmp_path):
    """A client that enrols in its folder and ends before its first step, as if its machine had gone down."""
    plan = replace(PLAN, data=table("plan.csv", seed=2))
    service = Service(PLAN, ["a", "b"], tmp_path / "server", listen="127.0.0.1:0", identity=None)
    address = Address(f"127.0.0.1:{service.network.port}", give_up=2.0)

    def once(data):
        site = join(plan, "a", tmp_path / "a", address=address, data=data)
        site.books.close()
        site.audit.close()
        site.lock.release()

    yield once
    service.close()


def test_a_site_that_comes_back_with_other_columns_is_refused(table, come):
    come(table("a.csv"))
    with pytest.raises(
        ValueError, match=r"columns are pressure, age, sex, not age.* order, or begin anew with another --out"
    ):
        come(table("b.csv", columns=("pressure", "age", "sex", "risk")))


def test_a_site_that_comes_back_goes_on_with_the_samples_it_began_with(table, come, tmp_path, monkeypatch):
    """Another file whose columns and classes mean the same was trained on as if nothing had happened."""
    come(table("a.csv"))
    with pytest.raises(ValueError, match=r"a was begun with other samples than those of Table\(.*b.csv.* --data"):
        come(table("b.csv", seed=1))
    with pytest.raises(ValueError, match=r"begun with other samples than those of Table\(.*plan.csv"):
        come(None)
    monkeypatch.chdir(tmp_path)
    come(Table(path="a.csv", target="risk"))


def test_a_rehearsal_that_comes_back_goes_on_with_its_share(table, come):
    come(None)
    with pytest.raises(ValueError, match="begun with other samples than those of Table"):
        come(table("a.csv"))
    come(None)


def test_who_says_nothing_of_its_names_is_let_in_beside_who_does():
    plan = tiny_plan(clients=3)
    room = Admission(plan, NAMES, Limits())
    for name, codes in zip(NAMES, ({}, {"classes": "a" * 64}, {"columns": "b" * 64}), strict=True):
        room.admit(name, hello(plan, name, meaning=codes))
    with pytest.raises(Refused, match="the classes of ward-c are not those of ward-b"):
        room.admit("ward-c", hello(plan, "ward-c", meaning={"classes": "c" * 64}))
    with pytest.raises(Refused, match="meaning is"):
        room.admit("ward-c", hello(plan, "ward-c", meaning={"classes": "what they are"}))


def test_data_that_the_plan_cannot_be_about_are_refused_with_the_reason():
    room = Admission(tiny_plan(clients=1, guard=LightSplit(ratio=1e6)), ["a"], Limits())
    with pytest.raises(Refused, match=r"does not fit data of .*: .*ratio is how many times narrower the cut gets"):
        room.admit("a", hello(room.plan, "a"))
    assert room.task is None and room.missing() == ["a"]


def test_codes_are_alike_for_who_has_the_key_alone():
    one = Meaning(("high", "low"), (("age", ()), ("sex", ("f", "m"))), "digest")
    assert one.codes(b"key") == Meaning.from_dict(one.as_dict()).codes(b"key")
    assert set(one.codes(b"key")) == {"classes", "columns", "words"}
    assert not set(one.codes(b"key").values()) & set(one.codes(b"other").values())


def test_rows_without_labels_get_the_names_that_were_learnt(tmp_path):
    """A site's own data may name classes that the plan's, which the folder names, do not."""
    draw, y = np.random.default_rng(0), np.arange(40) % 2
    for name, classes in (("own", ["well", "ill"]), ("plan", ["no", "yes"])):
        np.savez(tmp_path / f"{name}.npz", x=draw.random((40, 4)), y=y, classes=np.array(classes))
    np.savez(tmp_path / "new.npz", x=draw.random((5, 4)))
    plan = replace(PLAN, clients=1, data=Npz(str(tmp_path / "plan.npz")))
    start.train(plan, tmp_path / "run")
    keep_meaning(tmp_path / "run", Meaning.of(Npz(str(tmp_path / "own.npz")).load()))
    assert predict(tmp_path / "run", Inputs(data=Npz(str(tmp_path / "new.npz")))).classes == ("well", "ill")


def test_labels_that_are_only_numbered_stand_for_anything(tmp_path):
    arrays = {"x": np.random.default_rng(0).random((30, 4)), "y": np.arange(30) % 3}
    np.savez(tmp_path / "bare.npz", **arrays)
    np.savez(tmp_path / "named.npz", **arrays, classes=np.array(["a", "b", "c"]))
    bare, named = (Meaning.of(Npz(str(tmp_path / name)).load()) for name in ("bare.npz", "named.npz"))
    assert bare == Meaning() and named.classes == ("a", "b", "c")
    assert bare.difference(named) == named.difference(bare) == ""
