"""Headlines of papers: commands that can be typed, verdicts that follow from figures, a page from files."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from toys import TinyNet, samples
from typer.main import get_command
from typer.testing import CliRunner

from cutlayer.audit.claims import EXPERIMENTS, lfq, lightsplit, page, run, small, summary, training
from cutlayer.audit.claims.base import (
    BUDGETS,
    DOES_NOT,
    HOLDS,
    NOT_MEASURED,
    PARTLY,
    VERDICTS,
    Earlier,
    Experiment,
    Figure,
    Finding,
    over_seeds,
    trimmed,
)
from cutlayer.audit.claims.size import size, sizes
from cutlayer.audit.compare.variant_text import variants
from cutlayer.cli import app as cli
from cutlayer.core.spec import spec
from cutlayer.data.base import Loaded
from cutlayer.training.plan.plan_text import change, read_guards, read_plan

ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------ commands
@pytest.mark.one_in(3)
@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_command_of_an_experiment_can_be_typed(one, budget, monkeypatch):
    monkeypatch.chdir(ROOT)
    if not getattr(one, budget):
        lacking = {"quick": "no small budget", "medium": "no budget between quick and full"}[budget]
        with pytest.raises(ValueError, match=f"{one.name} has {lacking}.*--budget full"):
            one.commands(budget)
        return
    commands = one.commands(budget)
    assert commands, "a headline without a command is not testable, and says so"
    for command in commands.values():
        _refuse_what_cannot_be_typed(command)


def _refuse_what_cannot_be_typed(command):
    name, *rest = shlex.split(command)
    typed = get_command(cli.app).commands[name].make_context(name, rest).params
    fields = {n: v for n, v in typed.items() if v is not None and n in FIELDS}
    plan = change(read_plan(typed["plan"]), fields)
    ours = run.read(command)
    assert ours.plan == plan and ours.device == typed["device"], "what an experiment runs is what a person would"
    assert len(ours.seeds) == (typed["seeds"] or (3 if typed.get("budget") == "standard" else 1))
    if name == "compare":
        assert list(ours.variants) == variants(plan, typed["with_"])
    else:
        assert read_guards(text for text in typed["guard"] or [] if text != "all") or plan.guard or typed["guard"]
        assert [spec(text, "attacks") for text in typed["attack"] or []] or typed["budget"]
        assert ours.tries == typed["tries"]
        assert (ours.aux_data, ours.aux_without) == (typed["aux_data"] or "", tuple(typed["aux_without"] or ()))


from cutlayer.cli.options import PLAN_OPTIONS as FIELDS  # noqa: E402

RATES = (("FedAvg", 0.3, 0.4), ("FedAvg", 1.0, 0.6), ("FedMuon", 0.05, 0.7), ("FedMuon", 0.5, 0.2))


def test_rivals_of_a_code_are_trained_again_at_what_was_chosen(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = ("plan", lfq._DIGITS_LFQ, "guard=SplitFC(ratio=32)", "guard=TopK(share=0.01)")
    grid = compared(**{name: (0.9, size) for name, size in zip(names, (900, 10, 11, 12), strict=True)})
    (command,) = EXPERIMENTS["lfq-rates"].after({"digits": grid}, "quick").values()
    _refuse_what_cannot_be_typed(command)
    chosen = [one.name for one in run.read(command).variants]
    assert chosen == [*names[:3]], "Top-S would have taken more bytes"


def test_what_a_first_run_chose_is_what_the_second_one_trains(monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = [
        {"variant": f"rule={rule}(lr={rate})", "seed": seed, "val": score, "accuracy": 0.5}
        for rule, rate, score in RATES
        for seed in (0, 1)
    ]  # fmt: skip
    (command,) = EXPERIMENTS["fedmuon"].after({"K5": {"rows": rows}}, "full").values()
    _refuse_what_cannot_be_typed(*EXPERIMENTS["fedmuon"].after({"K5": {"rows": rows}}, "quick").values())
    _refuse_what_cannot_be_typed(command)
    words = shlex.split(command)
    chosen = [words[place + 1] for place, word in enumerate(words) if word == "--with"]
    assert chosen == ["rule=FedAvg(lr=1.0)", "rule=FedMuon(lr=0.05)"]
    assert words[words.index("--seed") + 1] == "100", "seeds that no rate was chosen by"
    assert training._on_edge("rule=FedMuon(lr=1.5)") and not training._on_edge("rule=FedMuon(lr=0.05)")


# ------------------------------------------------------------------ figures and verdicts
def test_an_interval_over_seeds_is_students():
    assert over_seeds("x", [1.0]) == Figure("x", 1.0)
    found = over_seeds("x", [1.0, 2.0, 3.0])
    assert (found.low, found.high) == (pytest.approx(2 - 4.303 / 3**0.5), pytest.approx(2 + 4.303 / 3**0.5))
    assert found.shown() == "x 2.000 (-0.484 to 4.484)"


def compared(**accuracies):
    """A comparison of variants, each with its accuracy and the bytes it sends."""
    return {"rows": [
        {"variant": name, "seed": seed, "accuracy": reached, "val": reached, "bytes_up": size, "by_epoch": [reached]}
        for name, (reached, size) in accuracies.items() for seed in (0, 1)
    ]}  # fmt: skip


def test_rivals_are_compared_at_the_setting_that_validation_chose_and_at_no_more_bytes():
    rows = {
        "plan": (0.99, 4000), "guard=LFQ(bits=8)": (0.96, 10), "guard=SplitFC(ratio=4)": (0.98, 100),
        "guard=SplitFC(ratio=16)": (0.55, 11), "guard=SplitFC(ratio=32)": (0.90, 10),
        "guard=TopK(share=0.1)": (0.5, 9),
    }  # fmt: skip
    data = compared(**rows)
    assert lfq.tuned(data, "SplitFC", 11.5) == "guard=SplitFC(ratio=32)"
    judge = EXPERIMENTS["lfq-rates"].judge
    data = compared(**rows, **{"guard=FedLite(parts=2)": (0.3, 10)})
    found = judge({"digits": data, "digits untouched": data})
    assert found.verdict == HOLDS and "SplitFC is 6.0 points behind" in found.why
    later = compared(**rows, **{"guard=FedLite(parts=2)": (0.97, 10)})
    assert judge({"digits": data, "digits untouched": later}).verdict == PARTLY, "judged by seeds not chosen by"
    without = compared(**rows)
    assert judge({"digits": without, "digits untouched": without}).verdict == PARTLY, "a rival has no setting there"


def test_fedmuon_has_to_lead_surely_at_both_lengths_of_a_turn():
    def judge(ours, theirs):
        def rows(*seeds):
            return {"rows": [
                {"variant": f"rule={rule}(lr=0.05)", "seed": seed, "accuracy": one, "val": one, "by_epoch": [one]}
                for rule, told in (("FedMuon", ours), ("FedAdam", theirs))
                for seed, one in zip(seeds, told, strict=True)
            ]}  # fmt: skip

        runs = {"K1": rows(0, 1), "K5": rows(0, 1), "K1 untouched": rows(9, 8), "K5 untouched": rows(9, 8)}
        return EXPERIMENTS["fedmuon"].judge(runs)

    assert judge([0.9, 0.9], [0.8, 0.8]).verdict == HOLDS
    assert judge([0.9, 0.8], [0.6, 0.79]).verdict == PARTLY, "by one point in one seed, by thirty in the other"
    found = judge([0.7, 0.7], [0.8, 0.8])
    assert found.verdict == DOES_NOT and "0 of 4 chosen rates" in found.why


def arms(frozen, out, longer, own):
    names = (training.ALL, training.FROZEN, training.OUT, f"{training.OUT}; epochs=10",
             f"{training.OUT}; shared_client_network=False")  # fmt: skip
    return compared(**dict(zip(names, ((one, 1) for one in (0.9, frozen, out, longer, own)), strict=True)))


def test_a_gain_that_equal_steps_take_away_is_no_gain_of_frozen_clients():
    judge = EXPERIMENTS["sl-fc"].judge
    assert judge({"alpha 1.0": arms(0.87, 0.59, 0.6, 0.5)}).verdict == HOLDS
    assert judge({"alpha 1.0": arms(0.87, 0.59, 0.86, 0.5)}).verdict == PARTLY
    assert judge({"alpha 1.0": arms(0.60, 0.61, 0.62, 0.5)}).verdict == DOES_NOT


def row(guard, attack, value, accuracy=0.9, **more):
    return {"guard": guard, "attack": attack, "value": value, "accuracy": accuracy, "seed": 0, "secret": "images",
            "form": "", "ceiling": False, "valid": True, **more}  # fmt: skip


def test_an_attack_that_returns_once_it_knows_the_projection_was_never_stopped():
    def judge(blind, knowing):
        forms = {"oblivious": blind, "matched": knowing}
        rows = [row("none", "FORA()", 0.9)]
        rows += [
            row("LightSplit(ratio=8)", f"FORA(knows='{form}')", value, form=form) for form, value in forms.items()
        ]
        return EXPERIMENTS["lightsplit-fora"].judge({"audit": {"rows": rows}}).verdict

    assert judge(0.1, 0.8) == DOES_NOT
    assert judge(0.1, 0.15) == HOLDS
    assert judge(0.8, 0.8) == DOES_NOT


def test_a_key_that_can_be_recovered_is_no_secret():
    def judge(guessed, recovered, name="keys='own'"):
        word = name.partition("=")[0]  # an audit of version 0.2 had another
        keys = {name: guessed, f"{word}='recovered'": recovered, f"{word}='true'": 0.8}
        rows = [row("none", "Decoder()", 0.9)]
        rows += [row("SEAL(energy=0.7)", f"Decoder({key})", value) for key, value in keys.items()]
        return EXPERIMENTS["seal-keys"].judge({"audit": {"rows": rows}}).verdict

    assert judge(0.1, 0.2) == judge(0.1, 0.2, "key='guessed'") == HOLDS
    assert judge(0.1, 0.78) == PARTLY
    assert judge(0.6, 0.78) == DOES_NOT


def judged_costs(plan, at_8, at_32):
    rows = {"plan": plan, lightsplit._f(8): at_8, lightsplit._f(32): at_32, lightsplit._f(8, 128): at_8}
    seeds = [
        {"variant": name, "seed": seed, "accuracy": one}
        for name, ones in rows.items()
        for seed, one in enumerate(ones)
    ]
    return EXPERIMENTS["lightsplit-skewed"].judge({"fashion": {"rows": seeds}}).verdict


def test_few_points_are_an_interval_below_five_of_a_network_that_has_learnt():
    assert judged_costs([0.8, 0.81, 0.8], [0.79, 0.8, 0.79], [0.7] * 3) == HOLDS
    assert judged_costs([0.8, 0.8, 0.8], [0.79, 0.70, 0.79], [0.7] * 3) == PARTLY, "four points, give or take ten"
    assert judged_costs([0.8, 0.8, 0.8], [0.7, 0.7, 0.7], [0.7] * 3) == DOES_NOT
    assert judged_costs([0.2, 0.2, 0.2], [0.2, 0.2, 0.2], [0.2] * 3) == NOT_MEASURED


def test_a_hundred_clients_are_judged_with_the_projection_and_shown_without():
    def judge(many):
        rows = {
            f"clients={n}; guard={guard}": (0.9, 1) for n in (10, 100) for guard in ("none", "LightSplit(ratio=8)")
        }
        rows |= {"clients=100; guard=none": (0.8, 1), "clients=100; guard=LightSplit(ratio=8)": (many, 1)}
        return EXPERIMENTS["lightsplit-clients"].judge({"fashion": compared(**rows)})

    assert [judge(many).verdict for many in (0.89, 0.86, 0.8)] == [HOLDS, PARTLY, DOES_NOT]
    assert "and 10.0 points lower without it" in judge(0.89).why


def test_a_shift_is_small_where_neither_absent_classes_nor_another_set_cost_much():
    def judge(*read):
        results = {
            name: {"rows": [row("none", "FORA()", one)]}
            for name, one in zip(("all", "absent", "other"), read, strict=True)
        }
        return EXPERIMENTS["fora-shift"].judge(results).verdict

    assert judge(0.9, 0.88, 0.87) == HOLDS
    assert judge(0.9, 0.88, 0.3) == PARTLY
    assert judge(0.9, 0.7, 0.3) == DOES_NOT
    assert judge(0.3, 0.3, 0.3) == NOT_MEASURED, "an attack that reads nothing loses nothing"


def test_an_attribute_that_nobody_reads_on_the_open_cut_was_not_hidden():
    def judge(before, after):
        told = {"none": (0.9, before), "Prism()": (0.3, after)}
        rows = [row(guard, "Decoder()", read) for guard, (read, _) in told.items()]
        rows += [
            row(guard, "AttributeInference()", one, secret="attribute", chance=0.4)
            for guard, (_, one) in told.items()
        ]
        return EXPERIMENTS["prism-faces"].judge({"audit": {"rows": rows}}).verdict

    assert judge(0.8, 0.4) == HOLDS
    assert judge(0.8, 0.8) == judge(0.41, 0.41) == PARTLY


# ------------------------------------------------------------------ the page
@pytest.fixture(scope="module")
def found():
    return page.every(ROOT)


def test_the_page_is_what_the_committed_files_say(found):
    assert (ROOT / page.PAGE).read_text() == page.text(found, summary.summary(ROOT)), "stale: run make evidence"


def test_every_headline_has_a_verdict_and_every_figure_a_file(found):
    assert {one.experiment.name for one in found} == set(EXPERIMENTS)
    for one in found:
        assert one.finding.verdict in VERDICTS
        assert one.finding.verdict == NOT_MEASURED or one.source is not None, one.experiment.name
        assert len(one.finding.why) > 15


def test_what_reproduce_wrote_comes_before_older_evidence_and_what_it_lacked_is_said(tmp_path):
    one = Experiment("x", "P", "c", "f", {}, lambda results: Finding(HOLDS, "measured again"))
    folder = tmp_path / page.CLAIMS
    folder.mkdir(parents=True)
    assert page.judged(one, tmp_path).finding.verdict == NOT_MEASURED
    told = {"budget": "full", "commit": "abc", "results": {}}
    (folder / "x.json").write_text(json.dumps(told))
    assert page.judged(one, tmp_path).finding == Finding(HOLDS, "measured again")
    (folder / "x.json").write_text(json.dumps({**told, "not_measured": "no train-images in ./data"}))
    assert "no train-images" in page.judged(one, tmp_path).finding.why


def test_how_large_a_measurement_was_follows_from_its_plans():
    rows = [{"seed": seed} for seed in (0, 1, 2, 2)]
    now = {"plan": "Plan(clients=5, partition=Dirichlet(alpha=0.5), epochs=6)", "rows": rows}
    told = "Fashion, SimpleCNN, 5 clients, Dirichlet(alpha=0.5), 6 epochs, 3 seeds"
    assert size(now) == sizes({"a": now, "b": now}) == told
    varied = [{"variant": f"clients={n}; guard=none", "seed": 4} for n in (10, 50, 100)]
    other = {"plan": "Plan(epochs=6)", "rows": varied}
    assert size(other) == "Fashion, SimpleCNN, 10 to 100 clients, IID, 6 epochs, one seed"
    assert sizes({"a": now, "b": other, "c": now}) == f"a and c: {told}; b: {size(other)}", "each file by itself"
    assert size({"what": "2,000 reviews", "seeds": [0, 1], "rows": {}}) == "2,000 reviews, 2 seeds"
    older = {"runs": [{"plan": f"Plan(net=LeNet(), epochs={epochs}, watch=(X(),), aux=7)"} for epochs in (3, 9, 4)]}
    assert size(older, before=True) == "Digits, LeNet, 3 to 9 epochs", "fields that are no more are no trouble"
    assert size({"rows": []}) == ""


def test_a_small_measurement_is_marked_and_stands_beside_a_larger_one(tmp_path):
    older = Earlier("y.json", lambda data: Finding(PARTLY, "large and older"))
    one = Experiment("x", "P", "c", "f", {}, lambda results: Finding(HOLDS, "small and new"))
    (tmp_path / page.CLAIMS).mkdir(parents=True)
    told = {"budget": "quick", "commit": "abc", "results": {"a": {"plan": "Plan(epochs=2)"}}, "seeds": [0]}
    (tmp_path / page.CLAIMS / "x.json").write_text(json.dumps(told))
    alone = page.judged(one, tmp_path)
    assert alone.budget == "quick" and alone.size.endswith("2 epochs")
    assert "| holds, *small* |" in page.text([alone], summary.Drawn())
    (tmp_path / page.EVIDENCE / "y.json").write_text("{}")
    both = page.judged(replace(one, earlier=(older,)), tmp_path)
    assert (both.finding.verdict, both.budget, [other.finding.verdict for other in both.beside]) == (
        PARTLY,
        "full",
        [HOLDS],
    )
    assert page.text([both], summary.Drawn()).count("| f |") == 2
    (tmp_path / page.CLAIMS / "x.json").write_text(json.dumps({**told, "budget": "full", "not_measured": "no faces"}))
    assert page.judged(replace(one, earlier=(older,)), tmp_path).finding.verdict == PARTLY, "measured comes first"


def test_a_budget_between_is_marked_comes_before_older_files_and_leaves_the_small_one_beside_it(tmp_path):
    older = Earlier("y.json", lambda data: Finding(PARTLY, "older"))
    one = Experiment("x", "P", "c", "f", {}, lambda results: Finding(HOLDS, "measured"), earlier=(older,))
    (tmp_path / page.CLAIMS).mkdir(parents=True)
    (tmp_path / page.EVIDENCE / "y.json").write_text("{}")
    for name, budget in (("x", "quick"), ("x-medium", "medium")):
        told = {"budget": budget, "commit": "abc", "results": {"a": {"plan": "Plan()"}}, "seeds": [0]}
        (tmp_path / page.CLAIMS / f"{name}.json").write_text(json.dumps(told))
    found = page.judged(one, tmp_path)
    assert [each.budget for each in (found, *found.beside)] == ["medium", "full", "quick"]
    text = page.text([found], summary.Drawn())
    assert "| holds, *medium* |" in text and "1 are marked *medium*" in text and "The same, measured small." in text


def test_only_the_part_of_a_file_that_is_judged_is_what_it_was_measured_on(tmp_path):
    part = Earlier("y.json", lambda data: Finding(PARTLY, data["plan"]), lambda data: data["one"])
    one = Experiment("x", "P", "c", "f", {}, lambda results: None, earlier=(part,))
    (tmp_path / page.EVIDENCE).mkdir(parents=True)
    plans = {name: {"plan": f"Plan(net={net}(), epochs=2)"} for name, net in (("one", "LeNet"), ("two", "MLP"))}
    (tmp_path / page.EVIDENCE / "y.json").write_text(json.dumps(plans))
    found = page.judged(one, tmp_path)
    assert "LeNet" in found.finding.why and found.size == "Digits, LeNet, 2 epochs"


def audited(*rows):
    return {"plan": "Plan()", "floors": {"class_mean": {"ssim": 0.3}}, "rows": list(rows)}


def test_the_summary_shows_what_either_attacker_leaves_and_what_a_guard_costs():
    attacks = (("FORA()", "oblivious", 0.8, 0.3), ("FORA()", "matched", 0.8, 0.7), ("Decoder()", "", 0.9, 0.6))
    rows = [row("none", name, bare, form=form) for name, form, bare, _ in attacks]
    rows += [row("DCT()", name, read, accuracy=0.85, form=form) for name, form, _, read in attacks]
    bare, guarded = summary.marks(audited(*rows))
    assert (bare.guard, bare.paper, bare.strongest) == ("none", 1.0, 1.0)
    assert guarded[1:5] == (0.85, 0.0, pytest.approx(0.4 / 0.6), "FORA()") and guarded.lost == pytest.approx(5.0)
    assert summary._headline([bare, guarded._replace(lost=1.0)]).startswith("1 of 1 guards are good by the papers'")


def test_an_audit_without_the_papers_attackers_leaves_the_summary_to_an_older_one(tmp_path):
    alone = audited(row("none", "Decoder()", 0.9), row("DCT()", "Decoder()", 0.6))
    (tmp_path / page.CLAIMS).mkdir(parents=True)
    (tmp_path / summary.SOURCES[0]).write_text(json.dumps({"results": {"audit": alone}}))
    assert summary.summary(tmp_path).marks == () and summary.figure([]).startswith(b"\x89PNG")
    both = audited(row("none", "FORA()", 0.9), row("DCT()", "FORA()", 0.6))
    (tmp_path / summary.SOURCES[1]).write_text(json.dumps(both))
    found = summary.summary(tmp_path)
    assert [one.guard for one in found.marks] == ["none", "DCT()"] and found.source == summary.SOURCES[1]


# ------------------------------------------------------------------ the command
def test_reproduce_runs_commands_and_judges_their_json_and_goes_on(tmp_path, monkeypatch):
    from cutlayer.data import Fashion

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Fashion, "read", lambda self, folder: Loaded(samples(48, 0), samples(24, 1), ("a", "b", "c")))
    monkeypatch.setattr("cutlayer.nets.SimpleCNN", TinyNet)
    command = "compare --net SimpleCNN --epochs 1 --batch-size 16 --with plan --with batch_size=24 --no-alone"

    def judge(results):
        return Finding(
            HOLDS, "so it is", (over_seeds("accuracy", [row["accuracy"] for row in results["a"]["rows"]]),)
        )

    monkeypatch.setitem(EXPERIMENTS, "x", Experiment("x", "P", "c", "f", {}, judge, {"a": command}))
    words = ["reproduce", "x", "--out", str(tmp_path / "x"), "--json"]
    told = json.loads(CliRunner().invoke(cli.app, words, catch_exceptions=False).stdout)
    assert (told["verdict"], told["seeds"], told["budget"]) == (HOLDS, [0], "quick")
    assert told["commands"]["a"].startswith("cutlayer compare") and told["commit"]
    assert json.loads((tmp_path / "x" / "x.json").read_text())["results"] == told["results"]
    assert [row["variant"] for row in told["results"]["a"]["rows"]] == ["plan", "batch_size=24"]
    monkeypatch.setattr(Fashion, "read", lambda self, folder: pytest.fail("it was trained again"))
    again = json.loads(CliRunner().invoke(cli.app, words, catch_exceptions=False).stdout)
    assert again["results"] == told["results"]


def test_processes_share_the_pieces_of_an_experiment_and_the_last_one_judges(tmp_path, monkeypatch):
    asked = []

    def trained(chosen, *, seeds, data_dir, device, cells):
        asked.append((chosen[0].name, seeds[0]))
        return [{"variant": chosen[0].name, "seed": seeds[0], "accuracy": 0.5, "val": 0.5}]

    monkeypatch.setattr(run, "compare", trained)
    command = "compare --with 'epochs={1,2,3}' --seeds 2"
    one = Experiment(
        "x", "P", "c", "f", {"a": command}, lambda results: Finding(HOLDS, f"{len(results['a']['rows'])}")
    )
    first = run.reproduce(one, "full", tmp_path, run.Share.parse("1/2"), say=lambda text: None)
    assert first["unfinished"] == "3 of 6 pieces are not made yet" and len(asked) == 3
    ended = run.reproduce(one, "full", tmp_path, run.Share(2, 2, ends=0.0), say=lambda text: None)
    assert "unfinished" in ended and len(asked) == 3, "its time was over before it began"
    last = run.reproduce(one, "full", tmp_path, run.Share.parse("2/2"), say=lambda text: None)
    assert (last["verdict"], last["why"], len(set(asked))) == (HOLDS, "6", 6)


def test_another_budget_in_the_same_folder_takes_nothing_of_the_first(tmp_path, monkeypatch):
    def trained(chosen, *, seeds, data_dir, device, cells):
        told = {"variant": chosen[0].name, "seed": seeds[0], "accuracy": chosen[0].plan.epochs / 10, "val": None}
        return [{**told, "plan": repr(chosen[0].plan)}]

    monkeypatch.setattr(run, "compare", trained)

    def judge(results):
        return Finding(HOLDS, str(results["a"]["rows"][0]["accuracy"]))

    full, medium, quick = (
        {"a": f"compare --epochs {epochs} --with plan --with batch_size=9"} for epochs in (5, 3, 1)
    )
    one = Experiment("x", "P", "c", "f", full, judge, quick, medium=medium)
    found = [run.reproduce(one, name, tmp_path, run.Share(), say=lambda text: None)["why"] for name in BUDGETS]
    assert found == ["0.1", "0.3", "0.5"]


def test_the_first_seeds_are_judged_alone_and_are_not_trained_again_for_all_of_them(tmp_path, monkeypatch):
    asked = []

    def trained(chosen, *, seeds, data_dir, device, cells):
        asked.append(seeds[0])
        return [{"variant": chosen[0].name, "seed": seeds[0], "accuracy": 0.5, "val": None}]

    monkeypatch.setattr(run, "compare", trained)
    one = Experiment(
        "x", "P", "c", "f", {"a": "compare --with 'epochs={1,2}' --seeds 3"},
        lambda results: Finding(HOLDS, f"{len(results['a']['rows'])}"),
    )  # fmt: skip
    first = run.reproduce(one, "full", tmp_path, run.Share(), seeds=1, say=lambda text: None)
    assert (first["why"], first["seeds"], asked) == ("2", [0], [0, 0])
    assert first["commands"]["a"].endswith("--seeds 1"), "what is told was typed"
    assert run.reproduce(one, "full", tmp_path, run.Share(), seeds=9, say=lambda text: None)["why"] == "6"
    assert asked == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="--seeds is at least 1"):
        run.reproduce(one, "full", tmp_path, run.Share(), seeds=0)


def test_an_audit_that_was_interrupted_goes_on_with_its_cells_and_keeps_no_pictures(tmp_path, monkeypatch):
    from cutlayer.audit import matrix
    from cutlayer.data import Fashion

    monkeypatch.setattr(Fashion, "read", lambda self, folder: Loaded(samples(48, 0), samples(24, 1), ("a", "b", "c")))
    monkeypatch.setattr("cutlayer.nets.SimpleCNN", TinyNet)
    plan = "audit --net SimpleCNN --epochs 1 --batch-size 16"
    command = f"{plan} --images 8 --attack 'Decoder(steps=2)' --attack Retrieval --no-alone"
    one = Experiment("x", "P", "c", "f", {"a": command}, lambda results: Finding(HOLDS, ""))
    begun, real = [], matrix._cell

    def cell(scene, attack, *rest):
        begun.append(repr(attack))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(scene, attack, *rest)

    monkeypatch.setattr(matrix, "_cell", cell)
    with pytest.raises(KeyboardInterrupt):
        run.reproduce(one, "full", tmp_path, run.Share(), say=lambda text: None)
    cells = list(tmp_path.glob("*-cells/*.safetensors"))
    assert cells and not any(b"pictures" in path.read_bytes() for path in cells)
    found = run.reproduce(one, "full", tmp_path, run.Share(), say=lambda text: None)
    assert begun == ["Decoder(steps=2)", "Retrieval()", "Retrieval()"], "what was finished is not made again"
    assert len(found["results"]["a"]["rows"]) == 2 and not list(tmp_path.glob("*-cells"))
    with pytest.raises(ValueError, match="--jobs is at least 1"):
        run.Means(jobs=0)


def test_a_variant_that_cannot_be_built_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "compare", lambda *args, **more: pytest.fail("it trained"))
    command = "compare --data 'Digits(limit=200)' --with plan --with 'guard=SplitFC(ratio=4, budget=0.0001)'"
    one = Experiment("x", "P", "c", "f", {"a": command}, None)
    with pytest.raises(ValueError, match=r"guard=SplitFC\(ratio=4, budget=0.0001\): .* needs"):
        run.reproduce(one, "full", tmp_path, run.Share(), say=lambda text: None)


def test_missing_data_is_named_and_the_claim_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(
        EXPERIMENTS,
        "x",
        Experiment("x", "P", "c", "f", {"a": "compare --data MNIST --with 'epochs={1,2}' --no-alone"}, None),
    )
    words = [
        "reproduce",
        "x",
        "--budget",
        "full",
        "--data-dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "x"),
        "--json",
    ]
    told = json.loads(CliRunner().invoke(cli.app, words, catch_exceptions=False).stdout)
    assert str(tmp_path) in told["not_measured"] and "verdict" not in told


def test_unknown_experiments_and_parts_are_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    out = ["--out", str(tmp_path / "x")]
    for words, said in (
        (["no-such"], "there is lightsplit-utility"),
        (["sl-fc", "--budget", "huge", *out], "quick (two cores"),
        (["sl-fc", "--part", "3/2", *out], "from 1/N to N/N"),
        (["sl-fc", "--minutes", "0", *out], "--minutes is above 0"),
        (["fora-depth", *out], "no small budget"),
    ):
        error = CliRunner().invoke(cli.app, ["reproduce", *words]).exception
        assert isinstance(error, ValueError) and said in str(error)
    listed = json.loads(CliRunner().invoke(cli.app, ["reproduce", "--list", "--json"]).stdout)
    assert {one["name"] for one in listed} == set(EXPERIMENTS) and all(one["verdict"] for one in listed)


def test_what_is_committed_of_a_result_is_small_and_enough():
    data = {"plan": "Plan()", "left_out": {}, "rows": [
        {"variant": "plan", "seed": 0, "accuracy": 0.123456789, "clients": [1] * 1000, "history": [{"val": 0.5}]}
    ]}  # fmt: skip
    kept = trimmed(data)
    assert kept["rows"] == [{"variant": "plan", "seed": 0, "accuracy": 0.12346, "by_epoch": [0.5]}]


# ------------------------------------------------------------------ three claims, measured again
@pytest.mark.parametrize("seed", [0])
def test_three_small_claims_stay_within_their_committed_band(seed):
    bands = json.loads((ROOT / small.BANDS).read_text())["claims"]
    for name, value in small.measured(seed).items():
        low, high = bands[name]["band"]
        assert low <= value <= high, f"{bands[name]['claim']}: {value:.4f} is outside of {low} to {high}"
