"""What a client could do alone: trained like the rest, at a cost that is counted, and said in the first sentence."""

from dataclasses import replace
from html import unescape

import pytest
from test_schema import strays
from toys import TASK, samples, tiny_parts, tiny_plan

import cutlayer.audit.matrix as room
from cutlayer.attacks import Decoder
from cutlayer.audit.alone import ALONE, EQUAL_COST, alone_plan, baselines, train_alone
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.report.terminal import print_table
from cutlayer.audit.rows import Verdict
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.split_buys import bought, in_words, over_seeds
from cutlayer.audit.store import ResultStore
from cutlayer.core.errors import NonFinite
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit, NoGuard, Quantize
from cutlayer.training.facts.sides import sides
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Alone, Bypass, Federated, Vanilla

LOADED = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
GUARD = LightSplit(ratio=2)
FLAT = {"ssim": 0.1, "ssim_either": 0.1, "ssim_p90": 0.1, "psnr": 9.0, "mse": 0.1, "ncc": 0.0, "lpips": None,
        "fg_ssim": None, "fg_psnr": None, "fg_lpips": None}  # fmt: skip


def quick(store, **changes):
    """An audit of which most is there already: what is looked at here are its clients alone."""
    for seed in (0, 1):
        store.put(f"{seed} | floors", {"blank": FLAT, "mean": FLAT})
    plan = tiny_plan(epochs=1, batch_size=16, private_seed=None, clients=2)
    given = {"guards": [GUARD], "attacks": [Decoder(steps=1, readers=("ridge",))], "images": 8, **changes}
    return audit(AuditSpec(plan, **given), LOADED, Resources(store=store))


@pytest.fixture(scope="module")
def made():
    return quick(ResultStore(), seeds=(0, 1))


# ------------------------------------------------------------------ the two rows
def test_an_audit_has_two_rows_more_a_seed_and_nothing_leaves_in_them(made):
    assert [(row["name"], row["seed"]) for row in made.alone] == [
        (ALONE, 0), (EQUAL_COST, 0), (ALONE, 1), (EQUAL_COST, 1)
    ]  # fmt: skip
    for row in made.alone:
        assert row["why_none"] is None and row["bytes"] == 0 and row["leaves"] == "nothing"
        assert 0 <= row["accuracy_worst"] <= row["accuracy"] <= 1 and row["fairness"]["worst"] <= 1
    assert all(row["guard"] in ("none", repr(GUARD)) for row in made.rows), "no attack's row"
    assert strays(report.as_data(made, "x")) == []


def test_at_equal_cost_the_client_computes_as_much_as_with_the_costliest_guard(made):
    most = max(row["sides"]["client"]["macs"] for row in made.rows)
    row = made.alone[1]
    assert row["costliest"] == repr(GUARD) and row["budget"] == most >= row["macs"]
    width = int(row["protocol"].removeprefix("Alone(width=").removesuffix(")"))
    wider = sides(alone_plan(made.plan, Alone(width=width + 1)), TASK)["client"]["macs"]
    assert wider > most, "and one channel more would be too much"


def test_where_a_guard_computes_nothing_there_is_nothing_to_spend():
    plan = tiny_plan()
    plans = {repr(guard): replace(plan, guard=guard) for guard in (NoGuard(), Quantize(bits=2))}
    costs = {name: sides(one, TASK)["client"]["macs"] for name, one in plans.items()}
    first, equal = baselines(plan, costs, TASK)
    assert first.plan is not None and equal.plan is None and "leaves 0 multiply-accumulates" in equal.why_none


def test_finished_ones_are_kept_and_another_costliest_guard_is_another_cell(made, monkeypatch):
    store = ResultStore()
    first = quick(store)
    monkeypatch.setattr(room, "train_alone", lambda *given: pytest.fail("it was there already"))
    assert quick(store).alone == first.alone
    seen = []
    monkeypatch.setattr(room, "train_alone", lambda one, *given: seen.append(one.name) or one.row(0))
    quick(store, guards=[LightSplit(ratio=1.5)])
    assert seen == [EQUAL_COST]


def test_they_can_be_left_out_and_the_verdicts_do_not_hang_on_them(made, monkeypatch):
    monkeypatch.setattr(room, "train_alone", lambda *given: pytest.fail("nobody asked for it"))
    without = quick(ResultStore(), alone=False, seeds=(0, 1))
    assert without.alone == [] and without.verdicts() == made.verdicts()
    data = report.as_data(without, "x")
    assert data["split_buys"] == data["split_buys_words"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": Vanilla()},
        {"protocol": Bypass()},
        {"protocol": Federated(), "clients": 2, "rounds": SplitFed()},
        {"clients": 2, "rounds": Wave()},
        {"clients": 3, "rounds": SplitFed(), "clients_per_round": 2},
        {"clients": 2, "roles": Frozen(share=0.5), "shared_client_network": False},
        {"guard": GUARD, "micro_batches": 2},
        {"frozen_parts": ("body",)},
    ],
    ids=str,
)
def test_every_plan_has_a_client_alone(changes):
    plan = alone_plan(tiny_plan(**changes, epochs=1, batch_size=8))
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    run.train()
    assert len(run.evaluate(run.parts.test)) == plan.clients and run.ledger.bytes.total() == 0
    assert run.progress.taken == [len(run.clients[one].order(0)) for one in range(plan.clients)], "all its batches"


def test_settings_that_touch_no_client_alone_make_no_other_one():
    plan = tiny_plan(epochs=1, batch_size=8, clients=2)
    other = replace(plan, local_steps=3, server_optimizer=SGD(lr=0.3), largest_move=0, rounds=SplitFed())
    assert alone_plan(plan) == alone_plan(other)
    # and it is true that they do not:
    one, two = (
        LocalRun(replace(alone_plan(plan), **changes), tiny_parts(), classes=TASK.classes)
        for changes in ({}, {"local_steps": 3, "server_optimizer": SGD(lr=0.3), "largest_move": 0})
    )
    for run in (one, two):
        run.train()
    ours, theirs = one.tensors(), two.tensors()
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_a_resumed_training_alone_is_the_undisturbed_one():
    plan = alone_plan(tiny_plan(epochs=2, batch_size=8, clients=2))
    whole, begun, resumed = (LocalRun(plan, tiny_parts(), classes=TASK.classes) for _ in range(3))
    whole.train()
    begun.train(stop=lambda: begun.progress.step >= 4)
    resumed.restore(*begun.snapshot())
    resumed.train()
    ours, theirs = whole.tensors(), resumed.tensors()
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_numbers_that_are_lost_are_said_and_end_nothing(monkeypatch):
    def lost(self, **given):
        raise NonFinite("the loss is NaN")

    monkeypatch.setattr(LocalRun, "train", lost)
    plan = tiny_plan(epochs=1)
    one = baselines(plan, {"none": 10**9}, TASK)[0]
    row = train_alone(one, plan, tiny_parts(), TASK, "cpu", lambda share: None)
    assert row["accuracy"] is None and "the loss is NaN" in row["why_none"]


# ------------------------------------------------------------------ what the split buys
def told(alone, equal=None, guards=(("none", 0.9, 1.0),), costliest="none", of_all=28, grades=None):
    rows = [{"guard": guard, "seed": 0, "accuracy": accuracy} for guard, accuracy, _ in guards]
    empty = {
        "seed": 0,
        "accuracy_worst": 0.0,
        "accuracy_chance": 0.1,
        "steps": 28,
        "steps_of_all": of_all,
        "fairness": None,
        "why_none": "it is too small",
    }
    by_themselves = [
        {**empty, "name": ALONE, "accuracy": alone, "costliest": None},
        {**empty, "name": EQUAL_COST, "accuracy": equal, "costliest": costliest},
    ]
    graded = {guard: (grades or {}).get(guard, "g") for guard, *_ in guards}
    verdicts = [Verdict(guard, graded[guard], "g", leak, "", [], [], [], []) for guard, _, leak in guards]
    found = bought(rows, by_themselves, verdicts)
    return found, in_words(found, by_themselves)


@pytest.mark.parametrize(
    ("alone", "sentence"),
    [
        (0.869, "The split buys 3.1 points of accuracy over a client alone (0.900 against 0.869)."),
        (0.912, "The split buys nothing: it is 1.2 points of accuracy below a client alone (0.900 against 0.912)."),
        (0.9002, "The split buys no accuracy over a client alone (0.900 against 0.900)."),
        (None, "What a client could do alone is not known: it is too small."),
    ],
)
def test_the_first_sentence_says_it_plainly(alone, sentence):
    assert told(alone)[1] == [sentence]


def test_without_a_row_of_the_open_cut_there_is_no_sentence_and_the_points_stay():
    """Every attack on it had ended in an error: after all the work the report ended in a StopIteration."""
    found, words = told(0.82, 0.84, (("A()", 0.85, 0.5),), costliest="A()")
    assert words == [] and found[0]["points"] == pytest.approx(3)


def test_a_client_alone_that_hardly_learnt_is_no_measure_of_the_split():
    first, second = told(0.15)[1]
    assert first.endswith("over a client alone (0.900 against 0.150), which hardly learnt in its 28 steps.")
    assert "more epochs" in second


def test_with_several_clients_the_steps_of_one_are_told_from_those_of_all():
    first = told(0.869, of_all=84)[1][0]
    assert "took 28 steps where all clients together took 84" in first and "more epochs" in first


def test_guards_stand_by_their_points_and_the_least_leak_is_said():
    guards = (("none", 0.9, 1.0), ("A()", 0.8, 0.5), ("B()", 0.85, 0.2), ("C()", 0.95, None))
    found, words = told(0.82, 0.84, guards, costliest="A()")
    assert [one["guard"] for one in found] == ["C()", "none", "B()", "A()"]
    assert [one["points"] for one in found] == pytest.approx([13, 8, 3, -2])
    assert [one["points_equal_cost"] for one in found] == pytest.approx([11, 6, 1, -4])
    assert words[1] == "With B(), behind which 20 % of the leak is left, it is +3.0 points."
    assert words[2].startswith("With A() it buys nothing: it is 4.0 points") and "computes as much" in words[2]


@pytest.mark.parametrize("grade", ["unknown", "task lost"])
def test_the_first_sentences_call_no_lower_bound_what_is_left(grade):
    """Weak attackers found 0 % behind a guard whose verdict was unknown, and the report began with that."""
    guards = (("none", 0.9, 1.0), ("A()", 0.8, 0.5), ("B()", 0.85, 0.0))
    words = told(0.82, None, guards, grades={"B()": grade})[1]
    assert words[1] == "With A(), behind which 50 % of the leak is left, it is −2.0 points."
    assert len(told(0.82, None, guards, grades={"A()": grade, "B()": grade})[1]) == 1


def test_accuracies_alone_are_means_over_the_seeds_that_could_be_trained(made):
    rows = [{**made.alone[0], "accuracy": 0.4}, {**made.alone[2], "accuracy": 0.6}]
    assert over_seeds(rows)[0]["accuracy"] == pytest.approx(0.5)
    lost = {**rows[1], "accuracy": None, "why_none": "lost"}
    assert over_seeds([rows[0], lost])[0]["accuracy"] == 0.4 and over_seeds([lost])[0]["why_none"] == "lost"


def test_the_report_says_it_behind_the_leak_and_the_table_has_both_rows(made, capsys):
    page = unescape(report.html(made, {"tradeoff.png": b"", "reconstructions.png": b""}, "x"))
    first = report.as_data(made, "x")["split_buys_words"][0]
    buys = page.index("<h2>What the split buys</h2>")
    assert page.index("<h2>What it costs</h2>") < buys < page.index(first) < page.index("who learns")
    assert page.count(EQUAL_COST) == 1
    print_table(made)
    shown = capsys.readouterr().err
    assert first in shown and EQUAL_COST in shown and shown.count("nothing leaves") == 2
