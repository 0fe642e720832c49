"""Variants of one plan: what was typed becomes plans, each is trained as it would be alone, and nothing is lost."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial
from statistics import mean

import pytest
from toys import tiny_plan

from cutlayer import Bypass
from cutlayer.audit.alone import ALONE, EQUAL_COST
from cutlayer.audit.compare import files as compare_report
from cutlayer.audit.compare.run import Shelf, check, compare, summaries, with_alone
from cutlayer.audit.compare.variant_text import variants
from cutlayer.audit.split_buys import best_in_words
from cutlayer.audit.store import ResultStore
from cutlayer.core.seeds import derive
from cutlayer.data import Digits
from cutlayer.data.base import parts
from cutlayer.data.partitions import Dirichlet
from cutlayer.detectors import GradientScrutinizer, LeakMeter
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit, NoGuard
from cutlayer.rules import FedAvg, FedMuon, Latest
from cutlayer.training import Pretrained
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import Relay, SplitFed

DATA = Digits(limit=120)
RULES = ["rule=FedAvg", "rule=FedMuon(lr={0.01,0.1})"]


def base(**changes) -> Plan:
    fields = {"data": DATA, "epochs": 2, "batch_size": 12, "clients": 3, "rounds": SplitFed(), "local_steps": 2}
    return tiny_plan(**{**fields, "partition": Dirichlet(alpha=1.0), "private_seed": None, **changes})


# ------------------------------------------------------------------------------ what was typed
def test_braces_and_semicolons_become_plans():
    found = variants(
        base(), ["plan", "rule=FedMuon(lr={0.01,0.1})", "roles=Frozen(share=0.5); local_steps={1,5}; val_share=0"]
    )
    assert [one.name for one in found] == [
        "plan", "rule=FedMuon(lr=0.01)", "rule=FedMuon(lr=0.1)",
        "roles=Frozen(share=0.5); local_steps=1; val_share=0", "roles=Frozen(share=0.5); local_steps=5; val_share=0",
    ]  # fmt: skip
    assert found[0].plan == base()
    assert found[2].plan == base(rule=FedMuon(lr=0.1))
    assert found[4].plan == base(roles=Frozen(share=0.5), local_steps=5, val_share=0)
    assert [(one.family, one.axis, one.setting) for one in found[:4]] == [
        ("", "", None), ("rule=FedMuon(lr=…)", "lr", 0.01), ("rule=FedMuon(lr=…)", "lr", 0.1),
        ("roles=Frozen(share=0.5); local_steps=…; val_share=0", "local_steps", 1.0),
    ]  # fmt: skip


def test_every_kind_of_field_can_be_typed():
    plan = replace(base(), rounds=Relay(), rule=Latest())
    texts = [
        "shared_client_network=False",
        "frozen_parts=head,tail",
        "protocol=Bypass(fusion='hybrid')",
        "client-optimizer=SGD(lr=0.1)",
        "clients_per_round=None",
        "start=model.safetensors",
    ]
    found = [one.plan for one in variants(plan, [*texts[:4], texts[5], "guard=LightSplit(ratio=2)"])]
    assert (
        not found[0].shared_client_network
        and found[1].frozen_parts == ("head", "tail")
        and found[2].protocol == Bypass(fusion="hybrid")
    )
    assert found[3].client_optimizer == SGD(lr=0.1) and found[4].start == Pretrained("model.safetensors")
    assert found[5].guard == LightSplit(ratio=2)
    assert variants(replace(plan, guard=LightSplit(ratio=2)), ["plan", "guard=none"])[1].plan.guard == NoGuard()


def test_commas_inside_a_spec_part_nothing():
    """One of a detector's settings was read as another detector."""
    several = "client_detectors=LeakMeter(budget='ssim<=0.6', policy='stop'), GradientScrutinizer"
    plans = [one.plan for one in variants(base(), ["plan", several])]
    assert plans[1].client_detectors == (LeakMeter(budget="ssim<=0.6", policy="stop"), GradientScrutinizer())


def test_semicolons_in_quotes_are_letters():
    found = variants(base(), ["plan", 'data=Npz(path="a;b.npz"); local_steps=5'])
    assert found[1].plan.data.path == "a;b.npz" and found[1].plan.local_steps == 5


def test_numbers_that_come_in_two_braces_are_no_axis():
    found = variants(base(), ["rule={FedAvg,FedMuon}; local_steps={1,5}"])
    assert len(found) == 4 and all(one.setting is None for one in found)


def test_a_relay_needs_no_rule():
    """The base has one, because its rounds merge; nobody asked for it."""
    assert base().rule == FedAvg()
    assert variants(base(), ["plan", "rounds=Relay"])[1].plan.rule == Latest()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "two variants or more"),
        (["rule=FedAvg"], "two variants or more"),
        (["plan", "rule=FedAvg()"], "'plan' and 'rule=FedAvg()' are the same plan"),
        (["plan", "rul=FedAvg"], "a plan has no field 'rul'; it has adapters, aux_samples, batch_size"),
        (["plan", "FedAvg"], "write field=value"),
        (["plan", "local_steps="], "write field=value"),
        (["plan", "seed=3"], "--seeds"),
        (["plan", "local_steps=2; local_steps=3"], "changes local_steps twice"),
        (["plan", "local_steps=two"], "local_steps=two: local_steps is a whole number"),
        (["plan", "rule=FedMuonn"], "did you mean FedMuon"),
        (["plan", "rule=FedMuon(lr=-1)"], "lr is a number above 0"),
        (["plan", "clients_per_round=9"], "clients_per_round is how many of the 3 client(s)"),
        (["plan", "rule=FedMuon(lr={)"], "never closed"),
    ],
)
def test_what_cannot_be_read_is_refused(texts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        variants(base(), texts)


def test_every_variant_is_built_before_the_first_is_trained():
    found = variants(base(), ["plan", "guard=LightSplit(ratio=1e9)"])
    with pytest.raises(ValueError, match=r"guard=LightSplit\(ratio=1e9\): .*ratio"):
        check(found, [0], None)
    found = variants(base(), ["plan", "clients=2000"])
    with pytest.raises(ValueError, match=r"clients=2000: .*clients"):
        check(found, [0], None)
    skewed = variants(base(), ["plan", "partition=Dirichlet(alpha=0.05, minimum=36)"])
    with pytest.raises(ValueError, match="no draw gave"):
        check(skewed, [0, 1], None)


# ------------------------------------------------------------------------------ training
def without_times(rows):
    def plain(row):
        history = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in row["history"]]
        return {**{name: value for name, value in row.items() if name != "seconds"}, "history": history}

    return json.loads(json.dumps([plain(row) for row in rows]))


@pytest.fixture(scope="module")
def chosen():
    return variants(base(), RULES)


@pytest.fixture(scope="module")
def rows(chosen):
    return compare(chosen, seeds=[0, 1])


def test_a_row_is_what_the_plan_gives_alone(rows):
    assert [(row["variant"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("rule=FedAvg", "rule=FedMuon(lr=0.01)", "rule=FedMuon(lr=0.1)") for seed in (0, 1)
    ]
    plan = base(rule=FedMuon(lr=0.1), seed=1, private_seed=derive(1, "compare"))
    loaded = DATA.load()
    run = LocalRun(plan, parts(loaded, aux=0, val=0.1, seed=1), classes=10)
    run.train()
    row = rows[-1]
    assert row["accuracy"] == mean(run.evaluate(run.parts.test)) and row["val"] == run.progress.history[-1]["val"]
    assert [epoch["val"] for epoch in row["history"]] == [epoch["val"] for epoch in run.progress.history]
    assert row["plan"] == repr(plan) and row["failed"] is None and row["steps"] == run.progress.step
    counted = run.ledger.as_dict()["rows"]
    training = sum(one["bytes"] for one in counted if one["kind"] not in ("PREDICT", "EVALUATE"))
    assert row["bytes"] == row["history"][-1]["bytes"] == training < sum(one["bytes"] for one in counted)
    assert 0 < row["history"][0]["bytes"] < row["bytes"]


def test_what_a_rule_keeps_is_counted(rows):
    """A momentum for every parameter of client and server, kept in float32; averaging keeps nothing."""
    kept = {row["variant"]: row["rule_memory"] for row in rows}
    plan = base()
    run = LocalRun(plan, parts(DATA.load(), aux=0, val=0.1, seed=0), classes=10)
    parameters = [*run.networks[0].split.parameters(), *run.server.body.parameters()]
    assert kept["rule=FedAvg"] == 0
    assert kept["rule=FedMuon(lr=0.1)"] == sum(p.numel() * p.element_size() for p in parameters)


def test_an_interrupted_comparison_ends_like_an_undisturbed_one(chosen, rows, tmp_path):
    folder, seen = tmp_path / "cells", []

    def interrupt(event):
        seen.append(event)
        if event.done > 0.3:  # in the second epoch of the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(chosen, seeds=[0, 1], cells=ResultStore(folder, "x"), on_event=interrupt)
    assert len(list(folder.glob("*.safetensors"))) == 1 and len(list(folder.glob("*.half"))) == 1
    again = []
    found = compare(chosen, seeds=[0, 1], cells=ResultStore(folder, "x"), on_event=again.append)
    assert without_times(found) == without_times(rows)
    assert min(event.done for event in again) > 0.25, "the first run, and the first epoch of the second, were there"
    assert not list(folder.glob("*.half"))
    quiet = []
    assert without_times(compare(chosen, seeds=[0, 1], cells=ResultStore(folder, "x"), on_event=quiet.append)) == (
        without_times(rows)
    )
    assert not quiet


def test_the_words_below_the_curves_name_the_panels_that_there_are(rows):
    """There are three, and the middle one was called the right one."""
    lossless = [{**row, "history": [{**one} for one in row["history"]]} for row in rows]
    for epoch in (epoch for row in lossless for epoch in row["history"]):
        del epoch["val_loss"]
    for some, said in ((rows, True), (lossless, False)):
        page = compare_report.html(compare_report.as_data("", some, ""), {"convergence.png": b""})
        assert ("On the right the validation loss" in page) is said and "Beside it the same against" in page


def test_a_run_that_is_lost_does_not_stop_the_others():
    found = variants(base(epochs=1), ["rounds=Relay; client_optimizer=SGD(lr={1e30,0.05})"])
    rows = compare(found, seeds=[0])
    assert rows[0]["accuracy"] is None and "non-finite" in rows[0]["failed"] and rows[1]["failed"] is None
    lines = summaries(rows)
    assert [line["lost"] for line in lines] == [1, 0] and lines[0]["accuracy"] is None
    assert compare_report.reached(lines[0]) == "lost"
    assert compare_report.convergence(rows) and compare_report.sensitivity(found, rows)
    page = compare_report.html(compare_report.as_data("", rows, ""), {"convergence.png": b""})
    assert "1 of 1 lost" in page and rows[0]["failed"][:30] in page


def test_updates_that_were_rejected_are_told():
    rows = compare(variants(base(), ["rule=FedAvg(lr={1,1e38})"]), seeds=[0])
    assert rows[0]["rejected"] == 0 < rows[1]["rejected"] and "every update of epoch" in rows[1]["failed"]
    assert rows[1]["why_rejected"][0].keys() == {"client", "epoch", "round", "why"}
    page = compare_report.html(compare_report.as_data("", rows, ""), {"convergence.png": b""})
    assert "Updates that were rejected" in page


def test_without_validation_data_the_chart_shows_the_test_set():
    rows = compare(variants(base(epochs=1, val_share=0), ["local_steps={1,2}"]), seeds=[0])
    for row in rows:
        assert "val" not in row["history"][0] and row["history"][-1]["test"] == row["accuracy"]


def test_a_data_set_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(Digits, "load", lambda self, folder=None: read.append(self))
    shelf = Shelf(None)
    for plan in (base(), base(epochs=9), base(data=Digits(limit=50))):
        shelf(plan)
    assert read == [DATA, Digits(limit=50)]


# ------------------------------------------------------------------------------ figures and files
def made(variant, seed, accuracy, **more):
    facts = {"failed": None, "val": accuracy, "bytes": 100, "seconds": 1.0, "rule_memory": 8, "rejected": 0,
             "accuracy_chance": 0.1, "client_macs": 7, "client_parameters": 9, "steps": 20,
             "client_steps": 20}  # fmt: skip
    history = [{"epoch": 1, "val": accuracy / 2, "bytes": 50}, {"epoch": 2, "val": accuracy, "bytes": 100}]
    return {"variant": variant, "seed": seed, "accuracy": accuracy, "history": history, **facts, **more}


def test_summaries_of_known_numbers():
    fair = {"best": 0.9, "worst": 0.1, "worst_tenth": 0.1, "spread": 0.8, "deviation": 0.2}
    unfair = {"best": 0.7, "worst": 0.3, "worst_tenth": 0.3, "spread": 0.4, "deviation": 0.1}
    rows = [
        made("a", 0, 0.5, fairness=fair),
        made("a", 1, 0.7, fairness=unfair, rejected=2, bytes=300),
        made("b", 0, 0.6),
    ]
    line, other = summaries(rows)
    assert line["accuracy"] == pytest.approx(0.6) and line["deviation"] == pytest.approx(0.02**0.5)
    assert (line["best_client"], line["worst_client"]) == (pytest.approx(0.8), pytest.approx(0.2))
    assert (line["bytes"], line["rejected"], line["seeds"]) == (200, 2, 2)
    assert other["worst_client"] is None and other["deviation"] == 0.0


def test_points_are_those_over_the_client_alone_and_the_best_variant_is_said():
    by_itself = made(ALONE, 0, 0.55, bytes=0)
    lines = summaries([made("a", 0, 0.5, alone=ALONE), made("b", 0, 0.6, alone=ALONE), by_itself])
    assert [line["over_alone"] for line in lines] == [pytest.approx(-5), pytest.approx(5), None]
    assert best_in_words(lines) == (
        "The best variant, b, buys 5.0 points of accuracy over a client alone (0.600 against 0.550)."
    )
    best = made("b", 0, 0.6, alone=ALONE)
    assert "hardly learnt" in best_in_words(summaries([best, {**by_itself, "accuracy": 0.2}]))
    assert best_in_words(summaries([made("a", 0, 0.5)])) is None
    shared = best_in_words(summaries([best, {**by_itself, "client_steps": 5}]))
    assert "took 5 steps where all clients together took 20" in shared


@pytest.mark.parametrize(("guard", "width"), [("LightSplit(ratio=2)", True), ("NoGuard()", False)])
def test_clients_alone_are_variants_once_each(guard, width):
    plan = base()
    chosen = variants(plan, [f"guard={guard}", "rule=FedMuon"])
    found, left_out = with_alone(plan, chosen, None)
    assert [one.name for one in found[2:]] == [ALONE, EQUAL_COST][: 2 if width else 1]
    assert left_out.keys() == (set() if width else {EQUAL_COST})
    assert with_alone(plan, found, None)[0] == found, "those that are there are not added again"


def test_each_variant_has_points_over_the_client_alone_with_its_own_settings():
    """A variant with more epochs, or of other data, was set against a client alone with the plan's."""
    chosen = variants(base(epochs=1), ["rule=FedAvg", "epochs={1,2}; rule=FedMuon", "epochs=2; local_steps=5"])
    found, left_out = with_alone(base(epochs=1), chosen, None)
    longer = f"{ALONE} (epochs=2)"
    assert [(one.name, one.plan.epochs) for one in found[4:]] == [(ALONE, 1), (longer, 2)]
    assert [one.alone for one in found] == [ALONE, ALONE, longer, longer, "", ""]
    assert left_out.keys() == {EQUAL_COST, f"{EQUAL_COST} (epochs=2)"}
    rows = [
        made(one.name, 0, accuracy, alone=one.alone or None)
        for one, accuracy in zip(found, [0.5, 0.6, 0.7, 0.8, 0.4, 0.75], strict=True)
    ]
    lines = summaries(rows)
    assert [line["over_alone"] for line in lines] == [*map(pytest.approx, (10, 20, -5, 5)), None, None]
    assert "(0.800 against 0.750)" in best_in_words(lines) and f"over a {longer} (" in best_in_words(lines)


def test_a_variant_that_no_client_alone_can_have_is_compared_without_one():
    start = base(epochs=1)
    chosen = variants(start, ["plan", "adapters=LoRA(rank=2, at='4', side='server')"])
    found, left_out = with_alone(start, chosen, None)
    assert [one.alone for one in found] == [ALONE, "", ""]
    assert "no part is the server's" in left_out[f"{ALONE} ({chosen[1].name})"]


def test_curves_average_the_seeds_that_got_so_far():
    rows = [made("a", 0, 0.4), made("a", 1, 0.8), made("a", 2, 0.6)]
    rows[2]["history"] = rows[2]["history"][:1]
    first, second = compare_report.curves(rows)["a"]
    assert first == {
        "epoch": 1, "accuracy": pytest.approx(0.3), "low": pytest.approx(0.2), "high": pytest.approx(0.4),
        "bytes": 50, "loss": None,
    }  # fmt: skip
    assert second["accuracy"] == pytest.approx(0.6) and (second["low"], second["high"]) == (0.4, 0.8)


def test_a_comparison_becomes_files(chosen, rows, tmp_path):
    data = compare_report.as_data("Plan(<b>)", rows, "cutlayer compare <script>")
    compare_report.write(data, chosen, tmp_path / "a")
    assert {file.name for file in (tmp_path / "a").iterdir()} == {
        "compare.json", "compare.csv", "report.html", "convergence.png", "sensitivity.png", "clients.png",
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    data = json.loads((tmp_path / "a" / "compare.json").read_text())
    assert data["rows"] == json.loads(json.dumps(rows)) and data["variants"] == json.loads(
        json.dumps(summaries(rows))
    )
    page = (tmp_path / "a" / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", page), "nothing is loaded from elsewhere"
    assert "compare <script>" not in page and "<b>)" not in page
    for line in summaries(rows):
        assert line["variant"] in page and f"{line['accuracy']:.4f}" in page
    lines = list(csv.DictReader(io.StringIO((tmp_path / "a" / "compare.csv").read_text())))
    assert [float(line["accuracy"]) for line in lines] == [row["accuracy"] for row in rows]
    assert [float(line["clients_worst"]) for line in lines] == [row["fairness"]["worst"] for row in rows]


def test_one_chart_for_each_way_the_data_are_shared_out():
    clients = [{"classes": [1, 2], "accuracy": 0.5}, {"classes": [0, 3], "accuracy": None}]
    other = [{"classes": [2, 1], "accuracy": 0.5}] * 2
    rows = [made("a", 0, 0.5, clients=clients), made("b", 0, 0.5, clients=clients), made("c", 0, 0.5, clients=other)]
    assert len(compare_report.client_charts(rows)) == 2
    assert len(compare_report.client_charts([made("a", 0, 0.5, clients=clients[:1])])) == 0
    assert len(compare_report.client_charts([made("a", 0, 0.5)])) == 0


# ------------------------------------------------------------------------------ the command
QUICK = ["--data", "Digits(limit=120)", "--clients", "3", "--rounds", "SplitFed", "--epochs", "1", "--threads", "1"]


@pytest.fixture
def run(command):
    return partial(command, "compare")


def test_the_command_writes_files_and_prints_json(run, tmp_path):
    code, out, err = run(
        *QUICK, "--with", "rule=FedAvg", "--with", "clients_per_round=2", "--out", tmp_path / "a", "--json"
    )
    assert code == 0, err
    data = json.loads(out)
    assert [line["variant"] for line in data["variants"]] == ["rule=FedAvg", "clients_per_round=2", ALONE]
    assert "multiply-accumulates" in data["left_out"][EQUAL_COST] and "a client alone (" in data["split_buys"]
    assert [line["over_alone"] is None for line in data["variants"]] == [False, False, True]
    assert data["variants"][-1]["bytes"] == 0 and data["variants"][-1]["worst_client"] is not None
    assert data["command"].startswith("cutlayer compare --data") and data["out"] == str(tmp_path / "a")
    assert not (tmp_path / "a" / "cells").exists() and (tmp_path / "a" / "report.html").exists()
    code, _, err = run(*QUICK, "--with", "rule=FedAvg", "--with", "clients_per_round=2", "--resume", tmp_path / "a")
    assert code == 1 and "is finished: begin another" in err


@pytest.mark.campaign
def test_two_processes_give_the_same_table_in_words(run, tmp_path):
    words = [*QUICK, "--no-alone", "--with", "rule=FedAvg", "--with", "clients_per_round=2"]
    code, out, err = run(*words, "--cluster", "processes", "--jobs", "2", "--out", tmp_path / "two")
    assert code == 0 and out == "", err
    assert "rule=FedAvg" in err and "worst client" in err and "report.html" in err
    assert run(*words, "--out", tmp_path / "one")[0] == 0
    one, two = (json.loads((tmp_path / name / "compare.json").read_text())["rows"] for name in ("one", "two"))
    assert without_times(one) == without_times(two)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "rule=FedAvg"], "two variants or more"),
        (["--with", "plan", "--with", "clients_per_round=9"], "clients_per_round is how many"),
        (["--with", "plan", "--with", "net=SimpleCNN(depth=9)"], "depth"),
        (["--with", "plan", "--with", "guard=LightSplit(ratio=1e9)"], "1 to 2880 here"),
        (["--with", "plan", "--with", "clients_per_round=2", "--seeds", "0"], "--seeds is at least 1"),
        (["--with", "plan", "--with", "clients_per_round=2", "--jobs", "0"], "--jobs is at least 1"),
        (["--with", "plan", "--with", "clients_per_round=2", "--resume", "gone"], "there is no folder gone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_before_anything_is_trained(run, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*QUICK, *arguments)
    assert code == 1 and out == ""
    assert err.startswith("error: ") and words in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())
