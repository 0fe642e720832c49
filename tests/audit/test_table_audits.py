"""Audits of tables and series: what is asked of the data, how rows are judged, and the words of a verdict."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_schema import strays
from verdict_rows import COST, NO_FIGURES

from cutlayer.attacks import FORA, AttributeInference, Decoder, LabelClustering, Membership, UnSplit, suite
from cutlayer.audit import judge as judging
from cutlayer.audit.control import why_control_failed, why_invalid
from cutlayer.audit.facts import refuse_alike
from cutlayer.audit.floors import blind_guess, nearest
from cutlayer.audit.kinds import IMAGES, KINDS, RECORDS, SERIES, of_floors
from cutlayer.audit.matrix import audit
from cutlayer.audit.recording import attack_recording
from cutlayer.audit.report import files
from cutlayer.audit.report.row_plots import best_records
from cutlayer.audit.report.terminal import print_table
from cutlayer.audit.row_scores import of_column, spread, worth
from cutlayer.audit.rows import picture_key
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.tables import edges, refuse_unfit, still, with_secret_columns, without_copies
from cutlayer.audit.uncertainty import intervals
from cutlayer.audit.verdicts import read_secrets, refuse_secrets, verdict
from cutlayer.cli import audit as audit_command
from cutlayer.core.batch import Task
from cutlayer.core.columns import Column
from cutlayer.core.message import Kind, Message
from cutlayer.data import Table
from cutlayer.data.base import Loaded, Parts, Samples
from cutlayer.engines.local import start
from cutlayer.guards import Gaussian, LightSplit
from cutlayer.metrics.bootstrap import tail
from cutlayer.nets import MLP, SignalNet
from cutlayer.training.plan.plan import Plan

COLUMNS = (
    Column("age", 0, mean=40.0, spread=10.0),
    Column("town", 1, ("a", "b")),
    Column("fixed", 3),
    Column("dose", 4),
)


def records(count, seed=0):
    """A class that hangs on two columns; one column never changes, one has little to do with anything."""
    draw = torch.Generator().manual_seed(seed)
    age, dose = torch.randn(2, count, generator=draw)
    town = (torch.rand(count, generator=draw) < 0.4).long()
    x = torch.stack([age, 1.0 - town, town, torch.zeros(count), dose], 1)
    return Samples(x, (age + town > 0.4).long(), {"weight": (60 + 10 * dose + age).round().long()}, columns=COLUMNS)


def table(count=240):
    return Loaded(records(count, 1), records(80, 2), ("no", "yes"))


def series(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    walk = torch.randn(count, 2, 24, generator=draw).cumsum(2) / 4
    walk[:, 0] += torch.sin(torch.arange(24) / 2) * y[:, None]
    return Samples(walk, y)


def curves(count=160):
    return Loaded(series(count, 1), series(60, 2), ("no", "yes"))


# ------------------------------------------------------------------------------- what is refused
def test_a_table_of_one_class_is_refused():
    loaded = table()
    one = replace(loaded, train=replace(loaded.train, y=torch.ones_like(loaded.train.y)))
    with pytest.raises(ValueError, match="all records have the class 'yes'"):
        audit(AuditSpec(Plan(net=MLP())), one)


def test_fewer_auxiliary_records_than_columns_are_refused():
    with pytest.raises(ValueError, match=r"3 auxiliary records for 4 columns.*at least 4"):
        audit(AuditSpec(Plan(net=MLP(), aux_samples=3)), table())
    refuse_unfit(table(), aux=4)


def test_a_table_in_which_nothing_changes_is_refused_and_single_columns_are_named():
    loaded = table()
    assert still(loaded) == ["fixed"] and still(curves()) == []
    flat = replace(loaded, train=replace(loaded.train, x=torch.ones_like(loaded.train.x)))
    with pytest.raises(ValueError, match="none of the 4 columns changes"):
        refuse_unfit(flat, aux=100)


def test_an_attack_made_for_images_says_so_and_is_refused_if_it_was_typed():
    with pytest.raises(ValueError, match=r"UnSplit\(\) is for images, and the inputs here are records"):
        audit(AuditSpec(Plan(net=MLP()), attacks=[UnSplit()]), table())


@pytest.mark.parametrize("shape", [(5,), (2, 24)])
def test_of_a_suite_what_can_read_no_such_input_gives_its_reason(shape):
    task = Task(shape, 2)
    fit = {type(one) for one in suite("standard", task, True) if one.why_not(task, True) is None}
    assert {Decoder, FORA, Membership, LabelClustering} <= fit and UnSplit not in fit
    assert all(one.why_not(Task((1, 28, 28), 2), True) is None for one in suite("standard", task, True))


def test_secrets_of_another_kind_of_input_are_refused():
    assert read_secrets("records,labels") == ("records", "labels")
    refuse_secrets(("records", "labels"), Task((5,), 2), [Decoder(), LabelClustering()])
    with pytest.raises(ValueError, match="inputs here are records, there are no images: --secrets records"):
        refuse_secrets(("images",), Task((5,), 2), [Decoder()])


def test_secrets_that_no_attack_is_after_are_refused_before_hours_end_in_a_verdict_of_nothing():
    with pytest.raises(ValueError, match=r"no attack here is after membership.* --attack"):
        refuse_secrets(("records", "membership"), Task((5,), 2), [Decoder(), LabelClustering()])
    refuse_secrets(("membership",), Task((5,), 2), [Decoder(), Membership()])
    refuse_secrets((), Task((5,), 2), [Decoder()])


def test_records_of_large_numbers_are_not_all_alike():
    """Pixels are cut to [0, 1] before they are compared; there all of these are 1."""
    data = parts_of(table())
    far = replace(data, private=replace(data.private, x=data.private.x + 100))
    refuse_alike(far)
    with pytest.raises(ValueError, match="private records are all alike"):
        refuse_alike(replace(data, private=replace(data.private, x=torch.ones(9, 5), y=torch.ones(9))))


# ---------------------------------------------------------------------------- columns as secrets
def test_any_column_can_be_a_secret():
    attacks = [AttributeInference(attribute=name) for name in ("age", "town", "weight")]
    loaded = with_secret_columns(table(), attacks)
    assert torch.equal(loaded.train.s["town"], table().train.x[:, 2].long()), "a category is guessed as it is"
    for name in ("age", "weight"):  # a number the network reads, and one that was withheld from it
        counts = loaded.train.s[name].bincount()
        assert len(counts) == 5 and counts.min() > 0.12 * len(loaded.train)
        assert loaded.test.s[name].max() <= 4
    assert torch.equal(with_secret_columns(table(), []).train.s["weight"], table().train.s["weight"])


def test_a_number_of_few_values_is_a_kind_and_equal_quantiles_are_one_edge():
    loaded = table()
    few = replace(
        loaded,
        train=replace(loaded.train, s={"k": loaded.train.y}),
        test=replace(loaded.test, s={"k": loaded.test.y}),
    )
    assert torch.equal(with_secret_columns(few, [AttributeInference(attribute="k")]).train.s["k"], loaded.train.y)
    assert edges(torch.tensor([0.0] * 90 + [1.0] * 10)).tolist() == [0.0]


def test_a_column_that_is_not_there_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no column 'shoe size' to guess.*there is age, town, fixed, dose, weight"):
        audit(AuditSpec(Plan(net=MLP()), attacks=[AttributeInference(attribute="shoe size")]), table())


# ----------------------------------------------------------------------------------------- copies
def test_auxiliary_records_that_are_private_too_are_taken_out_unless_records_repeat_anyway():
    loaded = table()
    few = parts_of(loaded)
    apart = replace(few, aux=loaded.test, private=loaded.train)
    assert without_copies(apart) == (apart, 0)
    copied = replace(apart, aux=loaded.test[torch.arange(79)], private=loaded.test[torch.tensor([5, 79])])
    left, taken = without_copies(copied)
    assert taken == 1 and len(left.aux) == 78 and not (left.aux.x == loaded.test.x[5]).all(1).any()
    # Of two yes/no columns every record is there many times.
    marks = replace(loaded.train, x=loaded.train.x[:, 1:3], columns=())
    assert without_copies(replace(few, private=marks, aux=marks))[1] == 0
    assert without_copies(parts_of(curves()))[1] == 0


# ------------------------------------------------------------------------------ what the judge says
def reading(truth, guess, data, kind, units=None):
    forward = [Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(len(truth), 1)})]
    run = SimpleNamespace(task=SimpleNamespace(kind=kind))
    victim = SimpleNamespace(truth=truth, messages=forward, rows=[None], units=units, run=run)
    attacker = SimpleNamespace(reconstruct=lambda messages: guess)
    return judging._rows(data, Decoder(), attacker, victim, None)[0]


def parts_of(loaded):
    return Parts(loaded.train, loaded.train, loaded.train, loaded.test)


def test_records_are_judged_column_by_column():
    data = parts_of(table())
    truth = data.test.x
    guess = truth.mean(0).expand_as(truth).clone()
    guess[:, 1:3] = truth[:, 1:3]
    row = reading(truth, guess, data, "records")
    assert row["metric"] == "skill" and row["value"] == pytest.approx(1 / 3, abs=0.03)
    assert row["columns"][0]["name"] == "town" and row["columns"][0]["accuracy"] == 1 and row["still"] == ["fixed"]
    assert row["ssim"] is None and len(row["worst"]) == 10 and 0 < row["recon_std"] < 1


def test_series_are_judged_by_their_shape():
    data = parts_of(curves())
    truth = data.test.x
    row = reading(truth, 3 - 2 * truth, data, "series")
    assert row["value"] == pytest.approx(1) and row["correlation"] == pytest.approx(-1) and row["above_half"] == 1


@pytest.mark.parametrize(("loaded", "kind"), [(table(), "records"), (curves(), "series")], ids=["records", "series"])
def test_rows_with_nan_are_counted_and_one_row_for_all_is_a_failed_attack(loaded, kind):
    data = parts_of(loaded)
    truth = data.test.x
    guess = truth.clone()
    guess[3] = torch.nan
    row = reading(truth, guess, data, kind)
    assert row["broken"] == 1 and row["value"] < 1
    one = reading(truth, truth[:1].expand_as(truth), data, kind)
    assert one["recon_std"] == 0
    assert f"for every {KINDS[kind].one}" in why_invalid({**one, "secret": kind}, None)
    assert spread(truth[:1], truth[:1]) != spread(truth[:1], truth[:1]), "of a single one nothing can be said"


def test_the_nearest_record_is_no_blind_guess():
    truth, aux = table().test.x, table().train.x
    assert torch.equal(nearest(aux[:7], aux), aux[:7])
    guesses = {"nearest": nearest(truth, aux), "mean": aux.mean(0).expand_as(truth)}
    floors = {name: dict(worth(truth, guess, parts_of(table())).figures) for name, guess in guesses.items()}
    assert floors["nearest"]["skill"] > 0.5 and blind_guess(floors, "skill") < 0.1


def test_a_control_on_records_must_beat_the_class_mean():
    row = {"secret": "records", "recon_std": 0.5, "skill": 0.35}
    plan = SimpleNamespace(data="any", net="any")
    assert why_control_failed(Decoder(), row, {"skill": 0.2}, plan) is None
    assert "skill 0.350, below its bar of 0.400" in why_control_failed(Decoder(), row, {"skill": 0.3}, plan)


# -------------------------------------------------------------------------------------- verdicts
FLOORS = {
    name: {"ssim": None, "skill": 0.1, "skill_p90": 0.3, of_column("age"): 0.0, of_column("town"): 0.2}
    for name in ("mean", "class_mean")
}


def column(name, skill, reach=0.05):
    return {
        "name": name,
        "skill": skill,
        "interval": [skill - reach, skill + reach],
        "accuracy": None,
        "chance": None,
    }


def read_at(guard, skill, columns=(), **changes):
    """A row of an attack that read every record alike."""
    scores = torch.full((40,), skill, dtype=torch.float64)
    row = COST | NO_FIGURES | {
        "guard": guard, "attack": "Decoder()", "plain": "Decoder()", "secret": "records", "metric": "skill",
        "chance": None, "n": 40, "value": skill, "skill": skill, "skill_p90": tail(scores), "recon_std": 0.5,
        "columns": list(columns), "still": [], "above_half": 0.0, "worst": [[0, skill]],
        "sampled": {"scores": scores.tolist(), "units": None},
    } | changes  # fmt: skip
    return {**row, "interval": intervals(row)}


OPEN = read_at("none", 0.9, [column("age", 0.9), column("town", 0.9)])


def judged(*rows):
    return verdict([OPEN, *rows], FLOORS, "G()")


def test_records_are_graded_like_pictures():
    assert judged(read_at("G()", 0.12)).grade == "hides"
    assert judged(read_at("G()", 0.8)).grade == "does not protect"
    said = verdict([OPEN], FLOORS, "none")
    assert (
        said.grade == "open"
        and "rebuilds private records at skill 0.90 (a blind guess reaches 0.10)" in said.sentence
    )
    assert "records" not in said.untried and "images" not in said.untried


def test_a_single_column_that_comes_back_whole_decides():
    """A mean over columns hides it."""
    found = judged(read_at("G()", 0.12, [column("age", 0.88), column("town", 0.1)]))
    (secret,) = found.secrets
    assert found.grade == "does not protect" and secret.statistic == "column" and secret.column == "age"
    assert (
        secret.leak == pytest.approx(0.88 / 0.9)
        and "The column 'age' is read at 0.88 (0.83 to 0.93)" in found.sentence
    )


@pytest.mark.parametrize(
    "one", [column("age", 0.3, reach=0.4), column("town", 0.19, reach=0.01), column("new", 0.9)],
    ids=["may be chance", "no better than its own blind guess", "not read on the open cut"],
)  # fmt: skip
def test_a_column_that_is_not_surely_read_does_not_decide(one):
    assert judged(read_at("G()", 0.12, [one])).grade == "hides"


def test_a_column_read_worse_than_nothing_is_not_read():
    """Naming the commonest value of other records may score below 0, and to beat that is no feat."""
    floors = {name: {**figures, of_column("age"): -0.4} for name, figures in FLOORS.items()}
    found = verdict([OPEN, read_at("G()", 0.12, [column("age", -0.2)])], floors, "G()")
    assert found.grade == "hides" and found.secrets[0].statistic != "column"


def test_a_column_is_held_against_its_own_blind_guess():
    """Were it another column's, one that the class gives away would excuse one that it does not."""
    found = judged(read_at("G()", 0.12, [column("town", 0.55)])).secrets[0]
    assert found.floor == 0.2 and found.leak == pytest.approx(0.35 / 0.7)


def test_the_kind_of_input_follows_from_the_floors():
    assert of_floors(FLOORS) is RECORDS and of_floors({"mean": {"correlation_either": 0.1}}) is SERIES
    assert of_floors({"mean": {"ssim": 0.1}}) is IMAGES


def test_the_best_read_record_is_shown_as_the_table_has_it():
    truth = torch.tensor([[0.0, 1, 0, 0, 1.5], [1.0, 0, 1, 0, 2.0]])
    guess = torch.tensor([[9.0, 0, 1, 0, 0.0], [1.1, 0.2, 0.4, 0, 2.0]])
    row = read_at("none", 0.9, worst=[[1, 0.97]])
    (best,) = best_records(truth, [row], {picture_key(row): guess}, COLUMNS)
    assert (best.guard, best.number, best.skill) == ("none", 1, 0.97)
    assert best.cells == [("50", "51"), ("b", "b"), ("0", "0"), ("2", "2")]


# ----------------------------------------------------------------------------------- end to end
def small(net):
    return Plan(net=net, epochs=2, batch_size=16, aux_samples=100, private_seed=1)


def test_a_table_is_audited_from_training_to_report(tmp_path):
    spec = AuditSpec(
        small(MLP(widths=(12, 8))), [Gaussian(scale=3.0)],
        [Decoder(steps=30, readers=("ridge", "mlp"), hidden=16), AttributeInference("age", steps=20), Membership()],
        optional_attacks=[UnSplit()], images=60, alone=False,
    )  # fmt: skip
    result = audit(spec, table())
    rows = {(row["guard"], row["secret"]): row for row in result.rows}
    assert {secret for _, secret in rows} == {"records", "attribute", "membership"}
    assert rows["none", "records"]["valid"] and rows["none", "records"]["value"] > 0.5
    guarded, unguarded = (rows[guard, "records"]["value"] for guard in ("Gaussian(scale=3.0)", "none"))
    assert guarded < unguarded
    assert rows["none", "attribute"]["value"] > rows["none", "attribute"]["chance"]
    assert "auxiliary records" in " ".join(rows["none", "records"]["knows"])
    assert (
        result.left_out["UnSplit"].startswith("it is for images, and the inputs here are records")
        and "column 'fixed'" in result.left_out
    )

    files.write(result, tmp_path / "out", "from a test")
    written = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert strays(written) == []
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The record that was read best" in page
    assert "Column by column" in page and "best-read column" in page and "60 private records" in page
    assert (tmp_path / "out" / "columns.png").stat().st_size > 1000
    print_table(result)


def test_series_are_audited_from_training_to_report(tmp_path):
    spec = AuditSpec(
        small(SignalNet(norm="group")), [LightSplit(ratio=8)], [Decoder(steps=20, readers=("ridge", "conv"))],
        images=48, alone=False,
    )  # fmt: skip
    result = audit(spec, curves())
    assert {row["metric"] for row in result.rows} == {"correlation"} and result.rows[0]["value"] > 0.7
    assert {"mean", "class_mean", "nearest", "unaligned"} == set(result.floors)
    files.write(result, tmp_path / "out", "from a test")
    assert strays(json.loads((tmp_path / "out" / "audit.json").read_text())) == []
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The series that were read best" in page and "spectral error" in page
    print_table(result)


def test_a_recording_of_a_table_is_attacked_column_by_column(tmp_path):
    write_csv(tmp_path / "people.csv", table())
    data = Table(str(tmp_path / "people.csv"), "y", attributes=("weight",))
    start.train(
        replace(small(MLP(widths=(12, 8))), data=data), tmp_path / "run", follow=start.Following(record=1 << 20)
    )
    attacks = [Decoder(steps=20, readers=("ridge",)), AttributeInference("age", steps=20)]
    found, victim, guesses = attack_recording(tmp_path / "run", attacks, images=32)
    read, guessed = found["rows"]
    assert read["secret"] == "records" and {one["name"] for one in read["columns"]} == {"age", "town", "dose"}
    assert guessed["target"] == "age" and guessed["value"] > guessed["chance"]
    files.write_attack(found, victim.truth, victim.y, guesses, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"attack.json", "columns.png"}


def write_csv(path, loaded):
    lines = ["age,town,fixed,dose,weight,y"]
    for part in (loaded.train, loaded.test):
        for x, y, weight in zip(part.x, part.y.tolist(), part.s["weight"].tolist(), strict=True):
            lines.append(f"{float(x[0]):.4f},{'ab'[int(x[2])]},7,{float(x[4]):.4f},{weight},{y}")
    path.write_text("\n".join(lines))


def test_columns_that_never_change_are_one_line(monkeypatch, capsys):
    for names, words in (([], ""), (["a"], "the column 'a' never changes"), (list("abcdefgh"), "'e' and 3 more")):
        monkeypatch.setattr("cutlayer.audit.tables.still", lambda loaded, names=names: names)
        audit_command._say_still(None)
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == bool(names)
