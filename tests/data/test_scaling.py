"""Inputs far from 0 to 1 are standardised by the training rows, and what is predicted later goes by that scale."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cutlayer.data import Npz, Table
from cutlayer.data.scaling import AS_THEY_ARE, Scale
from cutlayer.engines.local import start
from cutlayer.engines.predict import Inputs, predict
from cutlayer.nets import MLP
from cutlayer.training.batches import as_batch, task_of
from cutlayer.training.plan.plan import Plan

DRAW = np.random.default_rng(0)
Y = np.arange(60) % 2
ROWS = (DRAW.normal(size=(60, 3)) + Y[:, None]) * [1, 1000, 0.01] + [0, 5000, 40]


@pytest.fixture
def saved(tmp_path):
    def save(name="mine.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return str(tmp_path / name)

    return save


def test_raw_numbers_are_standardised_by_the_training_rows(saved):
    loaded = Npz(saved(x=ROWS, y=Y, x_test=ROWS[:6] + 1e6, y_test=Y[:6])).load()
    x = loaded.train.x.double()
    assert x.mean(0).abs().max() < 1e-5 and (x.std(0, correction=0) - 1).abs().max() < 1e-5
    assert loaded.test.x.min() > 100, "the test rows have no say in it"
    assert "from -" in loaded.scale.why or "from 3" in loaded.scale.why


def test_a_series_has_a_scale_for_each_channel(saved):
    x = np.stack([np.full((8, 5), 3.0), DRAW.normal(size=(8, 5)) * 500], 1)
    loaded = Npz(saved(x=x, y=np.arange(8) % 2, x_test=x, y_test=np.arange(8) % 2), signals=True).load()
    assert (loaded.train.x[:, 0] == 0).all(), "a channel that never changes is only centred"
    assert abs(float(loaded.train.x[:, 1].std(correction=0)) - 1) < 1e-5


@pytest.mark.parametrize("x", [ROWS[:, :1], DRAW.uniform(size=(60, 4)), DRAW.integers(0, 256, (60, 4), np.uint8)])
def test_numbers_that_are_near_stay_as_they_are(saved, x):
    loaded = Npz(saved(x=x, y=Y, x_test=x, y_test=Y)).load()
    assert loaded.scale is None
    assert torch.equal(loaded.train.x, torch.from_numpy(x.astype(np.uint8 if x.dtype == np.uint8 else np.float32)))


def test_token_ids_are_names_and_are_never_scaled(saved):
    x = DRAW.integers(0, 50000, (60, 7))
    loaded = Npz(saved(x=x, y=Y), vocabulary=50000).load()
    assert loaded.scale is None and loaded.train.x.dtype == torch.int64
    assert set(loaded.train.x.flatten().tolist()) <= set(x.flatten().tolist())
    # Whole from the file to the head, and both sides know what they are.
    assert as_batch(loaded.train, torch.arange(3)).x.dtype == torch.int64
    task = task_of(loaded.train[torch.arange(3)], 3)
    assert (task.kind, task.vocabulary) == ("texts", 50000)


def test_another_file_is_put_on_a_known_scale(saved, tmp_path):
    known = Npz(saved(x=ROWS, y=Y)).load().scale
    other = Npz(saved("other.npz", x=ROWS * 2, y=Y, x_test=ROWS[:5], y_test=Y[:5])).load(None, known)
    torch.testing.assert_close(other.test.x, known.apply(torch.from_numpy(ROWS[:5]).float()))
    assert other.scale == known
    same = Npz(saved("other.npz", x=ROWS, y=Y)).load(None, AS_THEY_ARE)
    assert float(same.train.x.max()) > 1000
    with pytest.raises(ValueError, match="learnt from 3 features and keeps the scale of each; the data have 2"):
        Npz(saved("other.npz", x=ROWS[:, :2], y=Y)).load(None, known)


def test_a_table_of_other_people_is_put_on_the_scale_of_the_first(tmp_path):
    for name, factor in (("a.csv", 1), ("b.csv", 3)):
        rows = [f"{row[1] * factor},{'xy'[label]},{label}" for row, label in zip(ROWS, Y, strict=True)]
        (tmp_path / name).write_text("\n".join(["income,letter,y", *rows]))
    first, second = (Table(name, "y").load(tmp_path) for name in ("a.csv", "b.csv"))
    torch.testing.assert_close(first.train.x, second.train.x)  # each on its own: a factor is not seen
    moved = Table("b.csv", "y").load(tmp_path, first.scale).train.x
    income = first.train.x[:, 0].double() * first.scale.spread[0] + first.scale.mean[0]
    expected = ((3 * income - first.scale.mean[0]) / first.scale.spread[0]).float()
    torch.testing.assert_close(moved[:, 0], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(moved[:, 1:], first.train.x[:, 1:]), "categories have no scale"


def test_a_scale_is_kept_and_read_back():
    scale = Scale((1.5, 2.0), (0.1, 3.0), "why")
    assert Scale.from_dict(json.loads(json.dumps(scale.as_dict()))) == scale


def test_a_run_keeps_its_scale_and_predicts_by_it(saved, tmp_path):
    plan = Plan(net=MLP(widths=(4, 4)), data=Npz(saved(x=ROWS, y=Y)), epochs=2, batch_size=16, private_seed=1)
    folder = tmp_path / "run"
    result = start.train(plan, folder)
    assert "standardised by the training rows" in result["inputs"][0]
    assert (folder / "input_scale.json").stat().st_mode & 0o77 == 0, "facts of a client's data are its own"
    raw = Npz(saved("test.npz", x=ROWS[::-1] * 7, y=Y[::-1], x_test=ROWS, y_test=Y))
    direct = Npz(saved("all.npz", x=ROWS, y=Y, x_test=ROWS, y_test=Y))
    found = [predict(folder, Inputs(data=source)) for source in (raw, direct)]
    assert torch.equal(found[0].found, found[1].found)
    # Its own training rows are the reference only where no run is.
    assert not torch.equal(raw.load().test.x, raw.load(None, Npz(plan.data.path).load().scale).test.x)


def test_a_client_that_joins_goes_by_its_own_rows_and_by_the_same_when_it_comes_back(saved):
    from cutlayer.engines.grpc.deploy import own_parts

    plan, own = Plan(net=MLP(widths=(4, 4)), clients=2), Npz(saved("ward.npz", x=ROWS * 3, y=Y))
    _, first = own_parts(plan, 0, own, None)
    assert first.scale == own.load().scale
    grown = Npz(saved("ward.npz", x=np.concatenate([ROWS * 3, ROWS * 50]), y=np.tile(Y, 2)))
    _, again = own_parts(plan, 0, grown, None, first.scale)
    assert again.scale == first.scale != grown.load().scale


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            {"x": DRAW.integers(0, 900, (60, 4)), "y": Y},
            r"token ids, say how many the tokenizer has, e.g. vocabulary=\d+; if .* amounts, .*float32",
        ),
        ({"x": ROWS, "y": Y * 0}, r"y of .*mine.npz has one class only in 60 rows"),
        ({"x": ROWS, "y": np.array([object()] * 60)}, "it holds Python objects, which could run code"),
    ],
)
def test_what_is_refused(saved, source, words):
    with pytest.raises(ValueError, match=words) as refused:
        Npz(saved(**source)).load()
    assert "allow_pickle" not in str(refused.value)


def test_tokens_that_are_none(saved):
    for x in (ROWS, -np.ones((60, 3), int), np.ones((60, 3, 2), int)):
        with pytest.raises(ValueError, match="token ids are whole numbers from 0 up"):
            Npz(saved(x=x, y=Y), vocabulary=100).load()
    with pytest.raises(
        ValueError, match=r"token ids run from 0 to 99; those of train row 0 from 100 to 100.*tokenizer"
    ):
        Npz(saved(x=np.full((60, 3), 100), y=Y), vocabulary=100).load()
    with pytest.raises(ValueError, match="signals or token ids, not both"):
        Npz("a.npz", signals=True, vocabulary=100)
    with pytest.raises(ValueError, match=r"how many token ids there are, .* got -1"):
        Npz("a.npz", vocabulary=-1)


def test_a_table_given_to_npz_and_files_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text("a,y\n1,x\n2,z\n")
    with pytest.raises(ValueError, match=rf"{tmp_path}/people.csv is a table .*Table\(path='people.csv', target="):
        Npz("people.csv").load()
    Path("people.npz").write_text("a,y\n1,x\n2,z\n")
    with pytest.raises(ValueError, match=r"not an .npz archive of plain arrays") as refused:
        Npz("people.npz").load()
    assert "pickle" not in str(refused.value)
    with pytest.raises(FileNotFoundError, match=rf"no other.npz in {tmp_path}, nor in {tmp_path}/data: name"):
        Npz("other.npz").load()
    with pytest.raises(FileNotFoundError, match=r"there is no /nowhere/other.npz: name"):
        Npz("/nowhere/other.npz").load()


def test_a_table_of_one_class(tmp_path):
    (tmp_path / "a.csv").write_text("a,y\n1,x\n2,x\n3,x\n")
    with pytest.raises(ValueError, match=r"the column 'y' of .*a.csv has one class only in 3 rows"):
        Table("a.csv", "y").load(tmp_path)
