"""What an audit says of detectors: honest clients stay so, what was missed is said, figures are those of the runs."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from test_docs import fields
from test_schema import strays
from toys import TASK, samples, tiny_parts, tiny_plan

import cutlayer.audit.matrix as room
import cutlayer.audit.scene as scene
from cutlayer.attacks import FSHA, Decoder
from cutlayer.audit.detector_trial import DetectorTrial
from cutlayer.audit.fit import forms as forms_met
from cutlayer.audit.matrix import audit
from cutlayer.audit.poison_trial import first_true
from cutlayer.audit.report import files as report
from cutlayer.audit.report.detectors import leak_plot, metered, meters, missed, noticed_poison, servers, watchdogs
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.core.seeds import derive
from cutlayer.data.base import Loaded, parts
from cutlayer.data.poisons import BadNets, LabelFlip
from cutlayer.detectors import ConsensusCosine, LeakMeter, OutlierGradients
from cutlayer.detectors.leak_meter import MARGIN
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Gaussian, LightSplit, NoGuard, Shredder
from cutlayer.metrics.images import FIGURES

LOADED = Loaded(samples(280, 1), samples(60, 2), ("a", "b", "c"))
EASY, BLIND = ConsensusCosine(threshold=1.0), ConsensusCosine(threshold=1e6)
HALF = ConsensusCosine(threshold=1.0, window=2)  # its rounds end in the middle of an epoch
OUTLIERS = OutlierGradients(rehearsal=10, window=3)
METER = LeakMeter(budget="ncc<=0.99", every=4, samples=64, steps=4)
READER = Decoder(steps=4, width=4, hidden=8, readers=("ridge",))
HIJACKER = FSHA(steps=12, width=4, hidden=8, warm=4, batch=8)
SERVER = tiny_plan(clients=4, epochs=3, batch_size=16, aux_samples=40, server_detectors=(EASY, BLIND, HALF))
MEASURED = tiny_plan(clients=2, epochs=2, batch_size=16, aux_samples=40, client_detectors=(METER,))
POISONED = replace(SERVER, poison=BadNets(clients=1, share=0.3, target=2))


@pytest.fixture(scope="module", autouse=True)
def cheap():
    """Floors of a stranger's decoder take long, and nothing here is about them."""
    blind = dict.fromkeys(FIGURES, 0.1) | {"lpips": None, "fg_lpips": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "floors", lambda *given: {"mean": blind, "class_mean": blind})
        patch.setattr(room, "CONTROL_TRIES", 1)
        yield


@pytest.fixture(scope="module")
def spoiled(cheap):
    return audited(POISONED)


@pytest.fixture(scope="module")
def measured(cheap):
    return audited(MEASURED, attacks=[READER, HIJACKER])


def audited(plan, attacks=(READER,), guards=(), **more):
    return audit(AuditSpec(plan, guards, attacks, images=16, alone=False), LOADED, Resources(**more))


def page(found):
    return report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")


def the_same_run(plan):
    """What the audit trains on the open cut, made again."""
    own = replace(plan, private_seed=derive(plan.seed, "audit"))
    return LocalRun(
        own, parts(LOADED, aux=plan.aux_samples, val=plan.val_share, seed=plan.seed), classes=TASK.classes
    )


def without_times(rows):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


# ------------------------------------------------------------------ the server's side
def test_the_audits_own_clients_are_honest(spoiled):
    """Everything but the one table is as if nobody had asked for a poison."""
    clean = audited(SERVER)
    assert without_times(spoiled.rows) == without_times(clean.rows) and not clean.poisoned
    assert len(spoiled.poisoned) == 1
    run = the_same_run(SERVER)
    run.train()
    told = [watch.report() for watch in run.coordinator.watches]
    shown = spoiled.rows[0]["server_detectors"]
    assert [one["false_alarms"] for one in shown] == [one["alarms"] for one in told]
    assert shown[0]["false_alarms"] > 0 and [one["rounds"] for one in shown] == [3, 3, 6]
    assert shown[0]["false_alarms_per_1000"] == pytest.approx(1000 * told[0]["alarms"] / 3)
    assert "with malicious clients" in page(spoiled) and "with malicious clients" not in page(clean)


def test_what_was_achieved_at_the_first_true_alarm_is_that_of_the_course(spoiled):
    (row,) = spoiled.poisoned
    run, rates = the_same_run(POISONED), []
    bad = POISONED.poison.members(4, POISONED.seed)
    wanted = POISONED.poison.attacked(run.parts.test)
    half_way: dict[int, float] = {}  # by how many rounds were over

    def between_turns():
        half_way.setdefault(len(run.coordinator.watches[2].rounds), run.evaluate(wanted)[0])
        return False

    run.train(on_epoch=lambda: rates.append(run.evaluate(wanted)[0]), stop=between_turns)
    easy, blind, half = row["detectors_attacked"]
    report = run.coordinator.watches[0].report(bad)
    place = next(n for n, one in enumerate(report["course"]) if set(one["flagged"]) & set(bad))
    assert easy["detected"] and easy["delay"] == place + 1 and easy["success_then"] == rates[place]
    assert report["first_alarm"] < place and rates[0] != rates[place], "the very first one was about an honest client"
    assert half["detected"] and half["success_then"] == half_way[half["delay"]] != rates[-1]
    assert (easy["z"], easy["f1"]) == (report["against"]["z"], report["against"]["f1"])
    assert (blind["detected"], blind["delay"], blind["success_then"]) == (False, None, None)
    # Looking at the network between turns changes nothing that comes after.
    assert half["z"] == run.coordinator.watches[2].report(bad)["against"]["z"]
    assert row["success_rate"] == rates[-1] and row["clients"] == list(bad)


def test_an_alarm_in_the_very_last_round_counts():
    last = replace(POISONED, epochs=1, server_detectors=(EASY,), poison=BadNets(clients=1, share=0.6, target=2))
    (row,) = audited(last).poisoned
    assert (
        row["detectors_attacked"][0]["delay"] == 1
        and row["detectors_attacked"][0]["success_then"] == row["success_rate"] > 0
    )


def test_the_first_true_alarm_is_about_a_malicious_client():
    assert first_true([[], [3], [3, 1], [1]], {1}) == 3
    assert first_true([[2], []], {1}) is None


def test_who_was_not_noticed_is_said(spoiled):
    *nothing, seen, unseen, _ = noticed_poison(spoiled.rows, spoiled.poisoned)
    assert [one for one in nothing if one.startswith(f"{EASY!r} called for nothing")], (
        "honest clients were flagged too"
    )
    assert f"{EASY!r} flagged a malicious client in round" in seen and "nobody was stopped" in seen
    assert f"{BLIND!r} noticed no malicious client of {POISONED.poison!r}" in unseen
    assert page(spoiled).count("not detected") == 1
    assert [one["poisoned"]["detected"] for one in servers(spoiled.rows, spoiled.poisoned)] == [True, False, True]


def test_the_rate_without_a_patch_is_said_where_there_is_a_patch(spoiled):
    (row,) = spoiled.poisoned
    assert row["has_trigger"] is BadNets.has_trigger is True and LabelFlip.has_trigger is False
    assert all("without the patch" in one for one in noticed_poison([], [row]))
    assert not any("without the patch" in one for one in noticed_poison([], [{**row, "has_trigger": False}]))


def test_what_malicious_clients_achieve_is_said_even_if_nobody_watches(spoiled):
    alone = audited(replace(POISONED, server_detectors=()))
    assert alone.poisoned[0]["success_rate"] == spoiled.poisoned[0]["success_rate"]
    assert "server_detectors" not in alone.rows[0] and "no detector watched" in page(alone)


def test_a_poison_that_does_not_fit_is_refused_before_any_training(monkeypatch):
    monkeypatch.setattr(scene, "LocalRun", None)
    with pytest.raises(ValueError, match="no class of this task"):
        audited(replace(POISONED, poison=BadNets(clients=1, target=9)))


def test_a_poisoned_training_is_a_cell_like_others(tmp_path, monkeypatch):
    seen = []
    whole = audited(POISONED, store=ResultStore(tmp_path / "cells", "x"), on_event=lambda event: seen.append(event))
    assert any(event.what.startswith("BadNets") for event in seen) and max(event.done for event in seen) <= 1
    monkeypatch.setattr(scene, "LocalRun", None)
    assert audited(POISONED, store=ResultStore(tmp_path / "cells", "x")).poisoned == whole.poisoned


# ------------------------------------------------------------------ attackers in disguise
def test_attackers_hide_only_where_somebody_watches():
    def forms(attack=HIJACKER, guard=NoGuard(), **changes):  # noqa: B008
        return forms_met([attack], tiny_plan(**changes), guard, (4, 5, 5))

    disguised = [HIJACKER, replace(HIJACKER, evade=0.5), replace(HIJACKER, evade=0.7, joins=6)]
    assert forms() == [HIJACKER] and forms(client_detectors=(METER,)) == [HIJACKER], "a meter is no watchdog"
    assert forms(client_detectors=(OUTLIERS,)) == disguised
    assert len(forms(guard=LightSplit(ratio=4), client_detectors=(OUTLIERS,))) == 12, "in every form of knowledge"
    assert not any(one.evade for one in forms(guard=Shredder(), client_detectors=(OUTLIERS,))), "nothing learns there"
    assert {one.base() for one in disguised} == {HIJACKER}, "one control for all of them"
    asked = replace(HIJACKER, evade=0.3)
    assert forms(asked) == [HIJACKER, asked], "who is asked for in disguise alone needs its control as well"
    assert asked.evasions() == () and forms(READER, client_detectors=(OUTLIERS,)) == [READER]


def test_a_disguise_has_a_row_of_its_own_and_the_plain_attacks_control(monkeypatch):
    monkeypatch.setattr(room, "why_control_failed", lambda attack, *rest: "it is weak" if not attack.evade else None)
    plan = tiny_plan(epochs=1, batch_size=16, aux_samples=40, client_detectors=(OUTLIERS,))
    found = audited(plan, attacks=[HIJACKER])
    _, half, late = found.rows
    assert [row["attack"] for row in found.rows] == [repr(one) for one in (HIJACKER, *HIJACKER.evasions())]
    assert {row["plain"] for row in found.rows} == {repr(HIJACKER)} and all(
        "detectors_attacked" in row for row in found.rows
    )
    assert half["why_control_failed"] == late["why_control_failed"] == "it is weak"
    shown = watchdogs(found.rows)
    assert [(one["end_ssim"], one["end_ncc"]) for one in shown] == [(row["ssim"], row["ncc"]) for row in found.rows]


def row(attack, *detected, ssim=0.8, then=0.1, guard="none", seed=0, alarms=0):
    names = ["A()", "B()"]
    watch = [
        {"detector": name, "lowest": 0.5, "false_alarms": alarms, "false_alarms_per_1000": 10.0 * alarms}
        for name in names
    ]
    then = then if isinstance(then, tuple) else (then, then)
    found = [
        {"ssim": ssim, "ncc": ssim, "delay": 9 + place} if one else {}
        for place, (one, ssim) in enumerate(zip(detected, then, strict=True))
    ]
    watched = [
        {"detector": name, "detected": one, **more} for name, one, more in zip(names, detected, found, strict=True)
    ]
    shown = {"guard": guard, "seed": seed, "attack": attack, "ssim": ssim, "ncc": ssim}
    return {**shown, "detectors_honest": watch, "detectors_attacked": watched}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row("F()", False, False)], ["No detector noticed F(), whose pictures reached SSIM 0.80; class mean 0.29."]),
        (
            [row("F()", False, False, ssim=0.2)],
            ["No detector noticed F(), but its pictures, at SSIM 0.20, are no better than the class mean (0.29)."],
        ),
        ([row("F()", False, True)], ["A() missed F(); B() noticed it."]),
        (
            [row("F()", True, True), row("F()", False, False, seed=1)],
            ["No detector noticed F() in 1 of 2 trainings, whose pictures reached SSIM 0.80; class mean 0.29."],
        ),
        (
            [row("F()", True, True, then=0.5)],
            ["The first alarm about F() came too late: its pictures had SSIM 0.50 by then; class mean 0.29."],
        ),
        (
            [row("F()", True, True, then=(0.5, 0.1))],
            ["The first alarm about F() came too late: its pictures had SSIM 0.50 by then; class mean 0.29."],
        ),
        (
            [row("F()", True, True, alarms=3)],
            [f"{one}() called for nothing, 30 times in 1,000 honest steps (no guard, seed 0)." for one in "AB"],
        ),
        (
            [row("F()", True, True)],
            [
                "Every detector noticed every active attack, and one of them always before its pictures beat the "
                "class mean (SSIM 0.29)."
            ],
        ),
    ],
)  # fmt: skip
def test_what_was_missed_is_said_with_what_it_was_worth(rows, says):
    assert missed(rows, {"class_mean": {"ssim": 0.29, "ncc": 0.6}}) == says


# ------------------------------------------------------------------ meters
def test_the_table_of_meters_has_the_runs_own_figures(measured):
    found, run = measured, the_same_run(MEASURED)
    run.train()
    run.clients[0].detection.finish()
    (told,) = run.clients[0].detection.report()
    honest, hijacked = meters(found.rows)
    last = max(told["leak"], key=lambda one: one["ssim"])
    assert {name: honest[name] for name in ("step", "ssim", "ncc", "floor", "reader", "plus_minus")} == {
        name: last[name] for name in ("step", "ssim", "ncc", "floor", "reader", "plus_minus")
    }
    assert [step for step, *_ in honest["course"]] == [one["step"] for one in told["leak"]] and len(told["leak"]) > 1
    over = honest["leak_so_far"]["ncc"] + MARGIN["ncc"] > METER.limit.most
    assert honest["exceeded"] is over and honest["hijacked_by"] is None
    by_attack = {row["attack"]: row for row in found.rows}
    assert hijacked["hijacked_by"] == repr(HIJACKER)
    assert any(row["valid"] for row in found.rows), "or there is no margin to look at"
    for one, attack in ((honest, READER), (hijacked, HIJACKER)):
        row = by_attack[repr(attack)]
        assert one["attack_ssim"] == (row["ssim"] if row["valid"] else None)
        assert row["valid"] is False or one["margin"] == one["ssim"] - row["ssim"]
    assert f"{honest['ssim']:.3f} ± {honest['plus_minus']:.3f}" in page(found)
    assert watchdogs(found.rows) == [] and leak_plot(found.rows)[:4] == b"\x89PNG"


def test_a_meter_on_trial_changes_nothing_of_what_is_measured():
    """A ladder would put another guard in the place of the one that is audited."""
    ladder = (Gaussian(scale=4.0),)
    climbs = LeakMeter(budget="ncc<=0.9", policy="strengthen", ladder=ladder, every=2, samples=64, steps=4)
    plan = tiny_plan(epochs=2, batch_size=16, aux_samples=40)
    found = [audited(replace(plan, client_detectors=watch), attacks=[READER]) for watch in ((), (climbs,))]
    assert found[0].rows[0]["ssim"] == found[1].rows[0]["ssim"]
    assert "policy='strengthen'" not in found[1].rows[0]["detectors_honest"][0]["detector"]


def test_only_the_client_that_is_attacked_measures_its_leak():
    run = the_same_run(MEASURED)
    trial = DetectorTrial(run)
    run.train()
    trial.finish()
    first, other = (client.detection.report()[0]["leak"] for client in run.clients)
    assert first and not other
    assert trial.honest()[0]["leak"] == first


def test_alarms_before_an_attack_begins_are_no_detections():
    plan = tiny_plan(epochs=1, batch_size=8, client_detectors=(OUTLIERS,), private_seed=1)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    late = DetectorTrial(run, honest_steps=4)

    def after(progress):
        run.clients[0].detection.watches[0][1].alarm = "it always calls"
        late()

    run.train(on_step=after)
    (row,) = late.attacked()
    assert run.progress.step > 5 and row["detected"] and row["delay"] == 1
    assert late.honest()[0]["false_alarms"] == run.progress.step


def test_a_budget_that_was_exceeded_is_said():
    entry = {"detector": "LeakMeter()", "leak": [], "leak_so_far": {}, "exceeded": True}
    attack = {"attack": "D()", "ssim": 0.9, "value": 0.9, "valid": True}
    last = {"step": 3, "reader": "conv", "ssim": 0.5, "ncc": 0.5, "plus_minus": 0.1, "floor": 0.2}
    rows = [{"guard": "none", "seed": 0, **attack, "detectors_honest": [{**entry, "leak": [last]}]}]
    (one,) = meters(rows)
    assert one["margin"] == pytest.approx(-0.4) and one["attack"] == "D()"
    over, low = metered(rows)
    assert (
        "budget of LeakMeter() was exceeded in every training" in over and "D() reached SSIM 0.90, 0.40 more" in low
    )
    climbed = [{**last, "ssim": 0.8, "guard": "G()"}, {**last, "ssim": 0.3}, {**last, "ssim": 0.4}]
    (one,) = meters([{**rows[0], "detectors_honest": [{**entry, "leak": climbed}]}])
    assert one["ssim"] == 0.4, "with the guard it ended with"
    assert leak_plot(rows) is None, "one point is no course"


# ------------------------------------------------------------------ files
def test_every_field_is_documented(spoiled, measured):
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    described = set(re.findall(r"`([\w ]+)`", text))
    for found in (spoiled, measured):
        data = report.as_data(found, "x")
        assert strays(data) == []
        told = [{name: row[name] for name in row if "detectors" in name} for row in data["rows"]]
        assert fields([told, data["poisoned"], data["leak_meters"], list(data)]) - described == set()
        assert set(data) - described == set() and data["noticed"]
        assert all(sentence in unescape(page(found)) for sentence in data["noticed"])
