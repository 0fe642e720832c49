"""Tune: what is searched, what rules a guard out and when, which one is chosen, and what is said where none is."""

import csv
import io
import json
import runpy
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from toys import TinyNet, samples
from typer.testing import CliRunner

from cutlayer.attacks import Decoder
from cutlayer.audit.jobs import Failed
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.store import ResultStore
from cutlayer.audit.tune import files, run, study
from cutlayer.audit.tune.budget import Budget, cost, refuse_contradiction, refuse_impossible
from cutlayer.audit.tune.front import Checked, beaten, chosen, front, waiting, what_binds, why_chosen
from cutlayer.audit.tune.run import Here, Search, search
from cutlayer.audit.tune.space import draw, firsts, kinds
from cutlayer.audit.tune.study import Study
from cutlayer.audit.tune.trial import (
    Reference,
    Tried,
    TuneWork,
    again,
    attempt,
    finish,
    foreseen,
    noise,
    over_seeds,
    readings,
    reference,
)
from cutlayer.cli import app as cli
from cutlayer.core.batch import Task
from cutlayer.core.search import Between, Fixed, OneOf, corners, space_of, why_strange
from cutlayer.core.search import Search as Space
from cutlayer.core.spec import names
from cutlayer.data.base import Loaded
from cutlayer.guards import Chain, Guard, LightSplit, NoGuard, Noise, Quantize
from cutlayer.nets import MnistNet
from cutlayer.training.plan.plan import Plan

TASK = Task((1, 12, 12), 3)
FULL = Decoder(steps=5, hidden=16, readers=("ridge", "mlp"))


@pytest.fixture(scope="module")
def loaded():
    return Loaded(samples(96, 0), samples(48, 1), ("a", "b", "c"))


@pytest.fixture(scope="module")
def plan():
    return Plan(net=TinyNet(), epochs=1, batch_size=16, aux_samples=32)


def work(plan, loaded, budget):
    return TuneWork(AuditSpec(plan, (), readings([FULL]), seeds=(0,), images=24, alone=False), loaded, budget)


@pytest.fixture(scope="module")
def open_cut(plan, loaded):
    return reference(work(plan, loaded, Budget(leak=0.5)))


# ------------------------------------------------------------------ search spaces
@pytest.mark.parametrize("kind", names("guards").values(), ids=lambda kind: kind.__name__)
def test_every_guard_names_what_may_be_tried_or_says_why_nothing_is(kind):
    assert kind.search is not None, "give it `search: ClassVar[Search] = {...}`, or Fixed('why')"
    owner = next(one for one in kind.__mro__ if "search" in vars(one))
    assert owner is kind or owner not in names("guards").values(), "its space is that of another guard"
    assert why_strange(kind) is None
    for settings in corners(kind):
        replace(kind.usual(), **settings)


def test_a_space_that_cannot_be_searched_says_so():
    class Odd(Guard):
        search: ClassVar[Space] = {"ration": Between(1, 2)}

    class Empty(Guard):
        search: ClassVar[Space] = {}

    assert "ration" in why_strange(dataclass(frozen=True)(Odd))
    assert "Fixed" in why_strange(dataclass(frozen=True)(Empty))
    assert space_of(NoGuard) == {} and isinstance(NoGuard.search, Fixed)
    with pytest.raises(ValueError, match="below"):
        Between(2, 2)
    with pytest.raises(ValueError, match="two values"):
        OneOf(1, 1)


def test_a_drawn_number_stands_in_a_plan_with_three_digits_and_within_its_ends():
    assert Between(0.001, 1.0, log=True).rounded(0.00123456) == 0.00123
    assert Between(2.0, 128.0).rounded(127.9999) == 128.0
    assert Between(1, 8).rounded(3.4) == 3


def test_values_along_a_setting_go_from_end_to_end():
    assert Between(2.0, 128.0, log=True).along(4) == [2.0, 8.0, 32.0, 128.0]
    assert Between(1, 4).along(9) == [1, 2, 3, 4], "whole numbers, each once"
    assert OneOf("a", "b", "c").along(2) == ["a", "b", "c"]
    assert Between(2.0, 128.0, log=True).place(16.0) == pytest.approx(0.5) == OneOf("a", "b", "c").place("b")


class First:
    """Draws the first of everything, or what it was told."""

    def __init__(self, **told):
        self.told = told

    def suggest_categorical(self, name, choices):
        return self.told.get(name, choices[0])

    def suggest_int(self, name, low, high, *, log=False):
        return self.told.get(name, low)

    suggest_float = suggest_int


def test_what_is_typed_is_what_is_searched():
    found = kinds(["LightSplit", "Quantize(bits={2,4})"])
    assert [kind.name for kind in found] == ["LightSplit", "Quantize(bits=2)", "Quantize(bits=4)"]
    assert [dict(kind.space) for kind in found] == [dict(LightSplit.search), {}, {}]
    assert draw(First(guard="Quantize(bits=4)"), found, chains=False) == Quantize(bits=4)
    both = draw(First(then="Quantize(bits=2)"), found, chains=True)
    assert both == Chain(LightSplit(ratio=2.0), Quantize(bits=2))
    assert firsts(found, chains=False)[0] == {"guard": "LightSplit", "LightSplit.ratio": 8}, "the usual setting"
    assert {kind.made for kind in kinds([])} >= {LightSplit, Quantize}
    with pytest.raises(ValueError, match="its parts are searched"):
        kinds(["Chain"])


def test_a_guard_from_outside_is_searched_by_its_own_space(tmp_path):
    text = """
from dataclasses import dataclass, replace
from typing import ClassVar
from cutlayer.guards import Between, Guard, Search

@dataclass(frozen=True, repr=False)
class {name}(Guard):
    scale: float = 1.0
    {search}
"""
    (tmp_path / "mine.py").write_text(
        text.format(name="Mine", search='search: ClassVar[Search] = {"scale": Between(0.5, 2.0)}')
        + text.format(name="Mute", search="")
    )
    (kind,) = kinds([f"{tmp_path}/mine.py:Mine"])
    assert draw(First(guard=kind.name), [kind], chains=False).scale == 0.5
    with pytest.raises(ValueError, match="says nothing of what may be tried"):
        kinds([f"{tmp_path}/mine.py:Mute"])
    (fixed,) = kinds([f"{tmp_path}/mine.py:Mute(scale=3.0)"])
    assert fixed.plain.scale == 3.0 and not fixed.space


# ------------------------------------------------------------------ budgets
def test_budgets_that_nothing_can_meet_are_refused_at_once(plan):
    bare = cost(plan, TASK)
    with pytest.raises(ValueError, match="name a budget"):
        Budget()
    with pytest.raises(ValueError, match="0 to 1"):
        Budget(leak=20)
    with pytest.raises(ValueError, match="from 0 up"):
        Budget(loss=-1)
    with pytest.raises(ValueError, match="own layers take"):
        refuse_impossible(Budget(leak=0.2, client_macs=bare.client_macs - 1), plan, TASK)
    with pytest.raises(ValueError, match="frame alone"):
        refuse_impossible(Budget(bytes=0.01), plan, TASK)
    with pytest.raises(ValueError, match="unguarded cut meets"):
        refuse_impossible(Budget(loss=2, bytes=bare.bytes + 1), plan, TASK)
    refuse_impossible(Budget(leak=0.2, client_macs=bare.client_macs, bytes=50), plan, TASK)


def test_too_few_bits_for_so_many_labels_contradict_the_accuracy():
    """Fano: without an error log2(10) bits are needed, and at chance none."""
    with pytest.raises(ValueError, match="contradict each other"):
        refuse_contradiction(Budget(bytes=0.4, loss=0), 1.0, 10)
    refuse_contradiction(Budget(bytes=0.42, loss=0), 1.0, 10)
    refuse_contradiction(Budget(bytes=0.01, loss=90), 1.0, 10)


# ------------------------------------------------------------------ one guard
def test_a_guard_is_ruled_out_at_the_first_stage_that_can(plan, loaded, open_cut):
    def stage(guard, **budget):
        found = attempt(work(plan, loaded, Budget(**budget)), guard, open_cut)
        return found.stage, found

    assert stage(LightSplit(ratio=1e6), leak=0.5)[0] == "fit"
    where, found = stage(LightSplit(ratio=2), bytes=10)
    assert where == "cost" and found.accuracy is None and "bytes" in found.why
    where, found = stage(Quantize(bits=8), leak=0.0)
    assert where == "reader" and found.leak > 0 and "linear reader" in found.why
    roomy = work(plan, loaded, Budget(leak=1.0, bytes=1e9))
    waits = attempt(roomy, Quantize(bits=8), open_cut)
    assert waits.waits and waits.stage == "reader" and waits.why is None
    whole = finish(roomy, Quantize(bits=8), open_cut, waits)
    assert whole.stage == "attack" and whole.why is None and whole.whole
    assert whole.leak >= waits.leak >= found.leak, "what a cheap reader reads the full attack reads too"


def test_a_network_that_was_forgotten_is_trained_again_and_is_the_same(plan, loaded, open_cut):
    budget = Budget(leak=1.0, bytes=1e9)
    waits = attempt(here := work(plan, loaded, budget), Quantize(bits=8), open_cut)
    kept, anew = (finish(one, Quantize(bits=8), open_cut, waits) for one in (here, work(plan, loaded, budget)))
    assert kept._replace(seconds=0) == anew._replace(seconds=0)


def tried(guard, leak, loss, size, stage="attack"):
    return Tried(guard, stage, None if stage == "attack" else "out", leak, loss, size, 100)


SOME = [
    tried("A", 0.1, 5.0, 100.0),
    tried("B", 0.3, 1.0, 100.0),
    tried("C", 0.3, 1.0, 90.0),
    tried("D", 0.15, 1.5, 500.0),
    tried("E", 0.05, 0.0, 50.0, stage="reader"),
]


def test_the_front_and_the_choice_are_of_those_that_the_full_attack_has_read():
    assert {one.guard for one in front(SOME)} == {"A", "C", "D"}
    assert [one.guard for one in chosen(SOME, Budget(leak=0.3, loss=2))] == ["D", "B", "C"]
    assert [one.guard for one in chosen(SOME, Budget(leak=0.3, loss=2, bytes=95))] == ["C"]


def test_within_the_budget_the_shares_of_it_that_are_used_are_added_up():
    """Both named: one share of leak is worth one of loss. One named: it is a limit alone. None: the whole of both."""
    found = {"leak": 0.3, "loss": 1.0}
    assert Budget(leak=0.6, loss=4).used(found) == pytest.approx(0.75)
    assert Budget(leak=0.6).used(found) == pytest.approx(0.01), "the leak is a limit, and the loss is what is left"
    assert Budget(loss=4).used(found) == pytest.approx(0.3)
    assert Budget(bytes=9).used(found) == pytest.approx(0.31)
    assert Budget(leak=0.0, loss=0).used(found) == pytest.approx(7.0), "a limit of 0 is measured by something"
    assert Budget(leak=0.6, loss=4).used({"leak": None, "loss": 1.0}) is None
    useless = tried("Noise", 0.0, 70.0, 100.0)
    assert [one.guard for one in chosen([useless, *SOME], Budget(leak=0.2))] == ["D", "A", "Noise"]


def test_the_full_attack_goes_to_those_that_promise_most():
    some = [
        tried("A", 0.1, 5.0, 100.0, stage="reader")._replace(why=None),
        tried("B", 0.2, 1.0, 100.0, stage="reader")._replace(why=None),
        tried("C", 0.3, 1.0, 100.0, stage="reader")._replace(why=None),
        tried("D", 0.0, 0.0, 1.0, stage="reader"),
        tried("E", None, 3.0, 100.0, stage="reader")._replace(why=None),
    ]
    in_order = [one.guard for one in waiting(some, Budget(leak=0.4, loss=4))]
    assert in_order == ["B", "E", "A", "C"], "D was ruled out, and C leaks more than B and has nothing for it"
    whole = tried("F", 0.2, 1.0, 100.0)
    assert beaten(some[2], [whole]) and beaten(some[1], [whole]) and not beaten(some[0], [whole])
    assert not beaten(some[2], [some[1]]), "another that waits proves nothing"
    assert not beaten(some[4], [whole]), "what it leaks is not known"


def test_what_binds_is_the_budget_that_alone_stands_in_the_way():
    (said, *more) = what_binds(SOME[:4], Budget(leak=0.2, loss=2, bytes=200))
    assert "--leak binds: with --loss 2 and --bytes 200 the least that was found is 0.30 (B)" in said
    assert any("--loss binds" in one and "5.0 points (A)" in one for one in more)
    assert any("--bytes binds" in one and "500.0 (D)" in one for one in more)
    (both,) = what_binds([tried("F", 0.9, 9.0, 10.0)], Budget(leak=0.2, loss=2))
    assert "--leak and --loss bind together" in both
    (least,) = what_binds([tried("G", 0.9, 0.0, 10.0, stage="reader")], Budget(leak=0.2))
    assert "at least 0.90" in least


# ------------------------------------------------------------------ the search
class Planned(Here):
    """Answers at once; dies after so many."""

    def __init__(self, most=10**6):
        super().__init__(None)
        self.most = most
        self.asked = []

    def finished(self, seconds):
        done = []
        for job, given in self._waiting:
            if len(self.asked) == self.most:
                raise KeyboardInterrupt
            if job.name == run.REFERENCE:
                value = Reference(0.9, 0.1, 1000.0, {}, [])
            else:
                self.asked.append(job.name)
                value = self.made(job.work, given)
            done.append(run.Finished(job.name, value))
        self._waiting = []
        return done

    def made(self, what, given):
        if what is again:
            return self.reached(*given)
        return self.whole(given[2]) if what is finish else self.answer(given[0])

    def reached(self, guard, seed):
        return 0.9 if guard == NoGuard() else 0.82 + guard.stages()[-1].bits / 100

    def answer(self, guard):
        bits = guard.stages()[-1].bits
        return Tried(repr(guard), "reader", None, bits / 10, 8 - bits, 10.0 * bits, 1, 0.8, 20.0 * bits, 0.5)

    def whole(self, found):
        return found._replace(stage="attack", leak=found.leak * 1.25)


def searched(store, there, loaded, plan, trials=6, budget=None):
    budget = budget or Budget(leak=0.4)
    chances = Study(kinds(["Quantize"]), chains=False, budget=budget, seed=0)
    return search(work(plan, loaded, budget), chances, store, there, trials, lambda shown: None)


def test_a_tune_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, loaded, plan):
    whole = searched(ResultStore(), there := Planned(), loaded, plan)
    assert len(whole.tried) == 6 and len(set(there.asked)) == len(there.asked), "nothing is tried twice"
    assert there.asked[:3] == [f"Quantize(bits={bits})" for bits in (8, 3, 5)], "the usual one, and then by bytes"
    assert ["seed" in name for name in there.asked].index(True) == 6, "then the leaders under other seeds"
    assert there.asked[-1].startswith("the full attack"), "which comes last"
    folder = tmp_path / "cells"
    for done in (3, 3, 1):  # in the search, between, and after it
        with pytest.raises(KeyboardInterrupt):
            searched(ResultStore(folder), Planned(most=done), loaded, plan)
    again = searched(ResultStore(folder), rest := Planned(), loaded, plan)
    assert again.tried == whole.tried
    assert rest.asked == there.asked[7:], "only what is missing is tried"


def test_the_full_attack_reads_on_until_enough_keep_to_the_budget(loaded, plan, monkeypatch):
    """One of three that were trained; where it finds more than the budget allows others get a turn, twice as many at
    most."""
    monkeypatch.setattr(run, "TRIALS_A_FINALIST", 3)

    class Fails(Planned):
        def whole(self, found):
            return found._replace(stage="attack", leak=1.5)

    budget = Budget(leak=1.0, loss=4)  # a bit more takes a tenth of the one and spares a quarter of the other
    found = searched(ResultStore(), there := Planned(), loaded, plan, budget=budget)
    most_bits = sorted(there.asked[:6], reverse=True)
    read = [name for name in there.asked if name.startswith("the full attack")]
    assert read == [f"the full attack on {guard}" for guard in most_bits[:2]]
    assert chosen(found.tried, budget)[0].guard == most_bits[0]
    none = searched(ResultStore(), Fails(), loaded, plan, budget=budget)
    assert sum(one.whole for one in none.tried) == 4 and not chosen(none.tried, budget)


def test_a_leader_by_one_lucky_training_is_found_out_under_other_seeds(loaded, plan):
    """Eight bits gain ten points by luck, and lose nine under other seeds: they are not even attacked."""

    class Lucky(Planned):
        def answer(self, guard):
            found = super().answer(guard)
            return found._replace(loss=-10.0) if guard.bits == 8 else found

        def reached(self, guard, seed):
            return 0.81 if guard == Quantize(bits=8) else super().reached(guard, seed)

    budget = Budget(leak=1.0, loss=1.5)
    tried = searched(ResultStore(), Lucky(), loaded, plan, budget=budget).tried
    found = {one.guard: one for one in tried}
    lucky = found["Quantize(bits=8)"]
    assert lucky.trainings == 3 and lucky.loss == pytest.approx(8 / 3) and lucky.doubt == pytest.approx(19 / 3)
    assert chosen(tried, budget)[0].guard == "Quantize(bits=7)"
    assert found["Quantize(bits=7)"].trainings == 3, "who leads then was trained as often"


def test_over_other_seeds_the_limit_is_held_against_mean_and_standard_error():
    one = tried("A", 0.1, 1.0, 100.0)._replace(accuracy=0.89)
    missed = over_seeds(one, Budget(leak=0.5, loss=2), [0.9, 0.9], [0.85, 0.84])  # 1, 5 and 6 points
    assert missed.loss == pytest.approx(4) and missed.doubt == pytest.approx((7 / 3) ** 0.5)
    assert "loss under other seeds" in missed.why
    assert over_seeds(one, Budget(leak=0.5, loss=3), [0.9, 0.9], [0.85, 0.84]).why is None, "not told apart from 3"


def test_a_training_ends_early_only_where_no_usual_curve_reaches_the_limit():
    assert foreseen([0.5, 0.6], 8, [0.9] * 8) is None, "too early to say"
    assert foreseen([0.1] * 3, 8, [0.9] * 8) == pytest.approx(0.1), "nothing was gained, nothing is to come"
    doubled = foreseen([0.4, 0.6, 0.65, 0.7], 8, [0.9] * 8)
    assert doubled == pytest.approx(0.8), "as much as from two epochs to four"
    assert foreseen([0.1] * 4, 8, [0.2, 0.3, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9]) == pytest.approx(0.5), "rates fall late"
    assert foreseen([0.1] * 8, 8, [0.9] * 8) is None, "it has ended"


def test_a_hopeless_training_is_ended_and_says_what_it_loses_at_least(plan, loaded):
    long = replace(plan, epochs=6, val_share=0.3)
    here = work(long, loaded, Budget(leak=1.0, loss=1, bytes=1e9))
    bare = reference(here)._replace(accuracy=1.0, curve=[1.0] * 6)
    found = attempt(here, Noise(scale=1e4), bare)
    assert found.stage == "training" and "over loss after 3 of 6 epochs" in found.why
    assert found.ended_early and 0 < found.loss <= 100


def test_noise_of_few_samples_is_left_to_a_guard_and_a_point_at_least():
    assert noise(0.9, 10**6) == 1.0
    assert noise(0.5, 50) == pytest.approx(10.0), "a standard error of the difference of two such accuracies"


def test_a_guard_that_fails_elsewhere_is_told_and_the_others_go_on(loaded, plan):
    class Lost(Planned):
        def answer(self, guard):
            return Failed("its process ended") if guard == Quantize(bits=8) else super().answer(guard)

    found = {one.guard: one for one in searched(ResultStore(), Lost(), loaded, plan, 4).tried}
    assert "its process ended" in found["Quantize(bits=8)"].why and len(found) == 4


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ValueError, match=r"cutlayer\[tune\]"):
        study.Study(kinds(["Quantize"]), chains=False, budget=Budget(leak=0.2), seed=0)


# ------------------------------------------------------------------ files
def test_files_of_a_tune_say_what_was_chosen_and_the_plan_is_ready(tmp_path):
    found = Search(Reference(0.9, 0.1, 1000.0, {}, []), SOME)
    budget = Budget(leak=0.2, loss=2)
    word = Checked("Quantize(bits=4)", 0.18, [0.1, 0.2], 1.0, 90.0, 100, 0.4, 0.88, "Decoder()", "blunts", {}, 0.15)
    data = files.as_data(Plan(), budget, found, [word], {"search": 0, "check": [1, 2]}, "cutlayer tune")
    files.write(data, Plan(), Quantize(bits=4), found, budget, tmp_path)
    assert runpy.run_path(str(tmp_path / "plan.py"))["plan"]() == Plan(guard=Quantize(bits=4))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tune.csv").read_text())))
    assert [(row["guard"], row["front"], row["meets"]) for row in rows][3:] == [
        ("D", "true", "true"),
        ("E", "false", "false"),
    ]
    assert json.loads((tmp_path / "tune.json").read_text())["chosen"] == "Quantize(bits=4)"
    assert (tmp_path / "tune.png").stat().st_size > 10_000


def test_a_choice_that_fails_its_check_is_no_choice(tmp_path):
    found = Search(Reference(0.9, 0.1, 1000.0, {}, []), SOME)
    word = Checked("D", 0.45, None, 1.0, 90.0, 100, 0.4, 0.88, "Decoder()", "weakens", {"leak": 1.25}, 0.15)
    data = files.as_data(Plan(), Budget(leak=0.2), found, [word], {"search": 0, "check": [1]}, "cutlayer tune")
    assert data["chosen"] is None and "under other seeds and all attacks: --leak 0.45" in data["binds"][0]


@pytest.mark.parametrize("kept", ["Quantize(bits=4)", "Quantize(bits=2)", None])
def test_where_the_last_word_refuses_what_was_read_those_that_wait_are_asked(monkeypatch, loaded, plan, kept):
    some = [
        tried("Quantize(bits=4)", 0.1, 1.0, 40.0),
        tried("Quantize(bits=2)", 0.2, 1.5, 20.0, stage="reader")._replace(why=None),
        tried("Quantize(bits=1)", 0.2, 1.5, 10.0, stage="reader"),
    ]

    def judged(one, budget, result):
        missed = {} if one.guard == kept else {"leak": 1.0}
        return Checked(one.guard, 0.3, None, 1.0, 40.0, 100, 0.4, 0.8, None, "blunts", missed, one.leak)

    monkeypatch.setattr(run, "judged", judged)
    monkeypatch.setattr(run, "audit", lambda *given: None)
    budget, check = Budget(leak=0.25, loss=2), run.Check([FULL])
    found = run.last_word(plan, loaded, budget, some, check, None, None, print)
    asked = [word.guard for word, _ in found]
    assert asked == ["Quantize(bits=4)", "Quantize(bits=2)"][: 1 if kept == "Quantize(bits=4)" else 2]
    if kept == "Quantize(bits=2)":
        assert "refused by the last word" in why_chosen(some[1], some, budget)
    assert run.last_word(plan, loaded, budget, some[1:], check, None, None, print) == [], (
        "it has no choice to begin with"
    )


# ------------------------------------------------------------------ the command
MINE = """
from dataclasses import dataclass
from typing import ClassVar
from cutlayer.guards import Between, Guard, Search

@dataclass(frozen=True, repr=False)
class Shrunk(Guard):
    \"\"\"Smaller numbers.\"\"\"

    share: float = 0.5
    search: ClassVar[Search] = {"share": Between(0.25, 1.0)}

    def guard(self, z, batch):
        return z * self.share
"""


@pytest.fixture
def typed(tmp_path, monkeypatch, loaded):
    """A tune of two kinds of guards, one of them from outside the package, on very little data."""
    from cutlayer.data import Fashion

    monkeypatch.setattr(Fashion, "read", lambda self, folder: loaded)
    monkeypatch.setattr("cutlayer.attacks.suite", lambda budget, task, home: [FULL])
    (tmp_path / "mine.py").write_text(MINE)
    return [
        "tune", "--net", "toys:TinyNet()", "--guard", "Quantize", "--guard", f"{tmp_path}/mine.py:Shrunk",
        "--epochs", "1", "--batch-size", "16", "--aux-samples", "32", "--images", "24", "--no-chains",
        "--attack", "Decoder(steps=5, hidden=16, readers=('ridge', 'mlp'))", "--check-seeds", "1",
    ]  # fmt: skip


def test_the_command_goes_on_after_a_stop_and_ends_with_a_plan_that_trains(tmp_path, monkeypatch, typed):
    folder, usual, calls = tmp_path / "found", Here.finished, []

    def stopped(self, seconds):
        calls.append([job.name for job, _ in self._waiting])
        if len(calls) == 4:  # the unguarded cut and two guards are there
            raise KeyboardInterrupt
        return usual(self, seconds)

    monkeypatch.setattr(Here, "finished", stopped)
    words = [*typed, "--leak", "0.999", "--loss", "90", "--trials", "3"]
    first = CliRunner().invoke(cli.app, [*words, "--out", str(folder)])
    assert first.exit_code == 130 and f"cutlayer tune --resume {folder}" in first.stderr
    again = CliRunner().invoke(cli.app, [*words, "--resume", str(folder)], catch_exceptions=False)
    assert again.exit_code == 0
    assert calls[4] == calls[3] != [run.REFERENCE], "it goes on with the guard at which it was stopped"
    data = json.loads((folder / "tune.json").read_text())
    assert data["seeds"] == {"search": 0, "again": [1001, 1002], "check": [1]}
    assert sum("mine.py:Shrunk" in one["guard"] for one in data["tried"]) >= 1
    assert {"tune.csv", "tune.png", "tune.svg", "plan.py", "check"} <= {one.name for one in folder.iterdir()}
    assert f"chosen: {data['chosen']}" in again.stderr
    assert f"next: cutlayer train {folder}/plan.py:plan" in again.stderr
    trained = CliRunner().invoke(cli.app, ["train", f"{folder}/plan.py:plan", "--out", str(tmp_path / "run")])
    assert trained.exit_code == 0, trained.stderr


def test_a_budget_that_nothing_meets_ends_with_what_binds(tmp_path, typed):
    words = [*typed, "--leak", "0", "--loss", "0", "--trials", "2", "--json", "--out", str(tmp_path / "none")]
    done = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    data = json.loads(done.stdout)
    assert data["chosen"] is None and not (tmp_path / "none" / "plan.py").exists()
    assert any("--leak" in line and "bind" in line for line in data["binds"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a budget"),
        (["--leak", "0.2", "--client-macs", "1"], "cannot be met"),
        (["--bytes", "0.001"], "cannot be met"),
        (["--loss", "1", "--bytes", "1e9"], "meets these budgets"),
        (["--leak", "0.2", "--trials", "0"], "at least 1"),
    ],
)
def test_contradictory_budgets_are_refused_before_anything_is_trained(tmp_path, typed, words, said):
    done = CliRunner().invoke(cli.app, [*typed, *words, "--out", str(tmp_path / "no")])
    assert done.exit_code != 0 and said in str(done.exception)
    assert not (tmp_path / "no").exists()


@pytest.mark.campaign
def test_side_by_side_in_other_processes_it_ends_with_files_as_well(tmp_path, typed):
    words = [*typed, "--leak", "0.999", "--loss", "90", "--trials", "4", "--cluster", "processes", "--jobs", "2"]
    done = CliRunner().invoke(cli.app, [*words, "--json", "--out", str(tmp_path / "found")], catch_exceptions=False)
    data = json.loads(done.stdout)
    assert len(data["tried"]) >= 4 and not any("failed" in (one["why"] or "") for one in data["tried"])
    assert (data["chosen"] is None) == bool(data["binds"])


def test_the_frame_of_a_message_is_counted_apart_from_its_zeros():
    plan, task = Plan(net=MnistNet(), batch_size=32), Task((1, 28, 28), 10)  # half of its activations are zeros
    with pytest.raises(ValueError, match=r"--bytes 1 cannot be met: a message's frame alone takes 1\.50 bytes"):
        refuse_impossible(Budget(bytes=1.0), plan, task)
    refuse_impossible(Budget(bytes=1.6), plan, task)
