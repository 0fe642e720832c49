"""Which form of an attack an audit runs, what it refuses before training, and what it says of knowing the guard."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_plan
from verdict_rows import FLOORS, pictured

import cutlayer.audit.scene as scene
from cutlayer.attacks import (
    BUDGETS,
    FORA,
    FSHA,
    PCAT,
    SDAR,
    Attack,
    AttributeInference,
    Decoder,
    Dictionary,
    FeatureSniffer,
    GradientMatching,
    LabelClustering,
    Membership,
    UnSplit,
    suite,
)
from cutlayer.attacks.base import FORMS
from cutlayer.audit.fit import forms as forms_of
from cutlayer.audit.judge import Substituting, judge
from cutlayer.audit.knowledge import after_training
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.verdicts import by_form, verdict
from cutlayer.audit.victim import Victim
from cutlayer.core.batch import Task
from cutlayer.core.seeds import derive, seeded
from cutlayer.core.spec import spec
from cutlayer.data.auxiliary import Auxiliary
from cutlayer.data.base import Loaded, Samples, parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import (
    DCT,
    SEAL,
    WCC,
    Bottleneck1x1,
    Chain,
    KAnonymous,
    LightSplit,
    NoGuard,
    Noise,
    NoPeek,
    Quantize,
)
from cutlayer.training.protocols import Vanilla

SHAPE = (4, 6, 6)
WITH_FORMS = [FORA(), SDAR(), PCAT(), FSHA(), FeatureSniffer(), UnSplit()]
TINY = FORA(steps=8, reader_steps=8, width=4, reader_width=8, hidden=16)


def texts(attack, guard):
    return [repr(form) for form in attack.against(guard, SHAPE)]


# ------------------------------------------------------------------ which forms are run
@pytest.mark.parametrize("attack", WITH_FORMS, ids=repr)
def test_a_plain_attack_comes_in_every_form_and_one_with_a_form_in_that_one(attack):
    name = type(attack).__name__
    guard = LightSplit(ratio=4)
    assert texts(attack, guard) == [f"{name}(knows='{form}')" for form in FORMS]
    for form in FORMS:
        asked = spec(f"{name}(knows='{form}')", "attacks")
        assert asked.against(guard, SHAPE) == [asked] and spec(repr(asked), "attacks") == asked
        assert asked.base() == attack, "one control for all forms"
        assert texts(asked, NoGuard()) == texts(asked, NoPeek()) == [f"{name}()"], "there is nothing to know"


def test_a_form_that_comes_to_nothing_is_the_oblivious_one():
    assert texts(FORA(knows="lift"), SEAL()) == ["FORA(knows='oblivious')"], "SEAL has no public way back"
    assert texts(FORA(), SEAL()) == ["FORA(knows='oblivious')", "FORA(knows='matched')"]
    assert texts(FORA(knows="matched+lift"), SEAL()) == ["FORA(knows='matched')"], "the copy is there"
    assert texts(FORA(knows="matched+lift"), NoPeek()) == ["FORA()"], "neither of the two is"
    assert texts(UnSplit(knows="matched"), KAnonymous(k=2)) == ["UnSplit()"], "a group is guessed as one image"


def test_a_key_that_is_named_is_the_only_one():
    assert len(Decoder().against(SEAL(), SHAPE)) == 4 and texts(Decoder(), LightSplit(ratio=4)) == ["Decoder()"]
    for key in ("own", "mixture", "recovered", "true"):
        assert Decoder(keys=key).against(SEAL(), SHAPE) == [Decoder(keys=key)]
        assert Decoder(keys=key).against(NoGuard(), SHAPE) == [Decoder()] == [Decoder(keys=key).base()]
    assert Decoder().ceiling(SEAL()) and Decoder(keys="true").ceiling(SEAL())
    assert not Decoder(keys="recovered").ceiling(SEAL()) and not Decoder().ceiling(NoGuard())


def test_nothing_said_is_nothing_known():
    """The plain attack is the oblivious one, to the last number."""
    loaded = Loaded(samples(120, 1), samples(30, 2), ("a", "b", "c"))
    run = LocalRun(tiny_plan(guard=LightSplit(ratio=4), epochs=1, batch_size=16), _shared(loaded), classes=3)
    run.train()
    victim = Victim(run, 8)
    rows = []
    for attack in (TINY, replace(TINY, knows="oblivious")):
        with seeded(0):
            told = after_training(victim, run.parts).only(attack.needs)
            rows.append(attack.attacker(told, 0).reconstruct(victim.messages))
    assert torch.equal(*rows)


@pytest.mark.parametrize(
    ("guard", "strongest"),
    [
        (DCT(energy=0.7), "matched+lift"),
        (LightSplit(ratio=4), "matched+lift"),
        (Chain(LightSplit(ratio=4), Quantize(bits=4)), "matched+lift"),
        (Chain(DCT(energy=0.7), WCC(weight=0.1)), "matched+lift"),
        (SEAL(), "matched"),
        (Chain(Bottleneck1x1(ratio=2), LightSplit(ratio=2)), "matched"),
        (NoPeek(), ""),
    ],
    ids=repr,
)
def test_a_quick_audit_meets_a_guard_with_the_strongest_form_it_leaves_room_for(guard, strongest):
    quick = [attack for attack in suite("quick", TASK, True) if isinstance(attack, FORA)]
    met = {form.knows for attack in quick for form in attack.against(guard, SHAPE)}
    assert met == ({"oblivious", strongest} if strongest else {""})


@pytest.mark.parametrize(
    ("guard", "forms"),
    [
        (LightSplit(ratio=4), ["oblivious", "matched", "matched+lift"]),
        (SEAL(), ["oblivious", "matched"]),
        (NoPeek(), [""]),
        (NoGuard(), [""]),
    ],
    ids=repr,
)
def test_where_a_guard_leaves_no_way_back_a_quick_audit_does_nothing_twice(guard, forms):
    own = [attack for attack in suite("quick", TASK, True) if isinstance(attack, SDAR)]
    assert [form.knows for form in forms_of(own, tiny_plan(), guard, SHAPE)] == forms


def _shared(loaded):
    return parts(loaded, aux=50, val=0.1, seed=0)


def test_a_quick_audit_has_the_form_of_the_papers_and_the_strongest_and_others_have_all():
    quick = suite("quick", TASK, True)
    assert not any(attack.active for attack in quick)
    assert {attack.knows for attack in quick if isinstance(attack, FORA)} == {"oblivious", "matched+lift"}
    either = {"oblivious", "matched", "matched+lift"}
    assert all({one.knows for one in quick if isinstance(one, kind)} == either for kind in (SDAR, PCAT, UnSplit))
    assert [attack.keys for attack in quick if isinstance(attack, Decoder)] == ["recovered"]
    assert {repr(form) for a in quick for form in a.against(NoGuard(), SHAPE)} == {repr(a.base()) for a in quick}
    for budget in ("standard", "paper"):
        whole = suite(budget, TASK, True)
        assert sum(isinstance(attack, FSHA) for attack in whole) == 1
        assert all(getattr(attack, "knows", "") == getattr(attack, "key", "") == "" for attack in whole)


TASKS = {
    "images": (TASK, SHAPE),
    "series": (Task((3, 32), 2), (4, 16)),
    "records": (Task((12,), 2), (8,)),
    "texts": (Task((8,), 2, {"long": 2}, vocabulary=30), (8, 4)),
    "next words": (Task((8,), 30, vocabulary=30), (8, 4)),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("inputs", TASKS)
@pytest.mark.parametrize("labels_stay_home", [True, False])
def test_the_suite_of_every_budget_can_be_built_typed_and_met_by_every_guard(budget, inputs, labels_stay_home):
    """Attack x its forms x budget x kind of input: whatever a suite has works behind any guard that there is."""
    task, shape = TASKS[inputs]
    found = suite(budget, task, labels_stay_home)
    assert found and all(spec(repr(attack), "attacks") == attack for attack in found)
    fitting = [attack for attack in found if attack.why_not(task, labels_stay_home) is None]
    assert fitting
    for guard in (NoGuard(), Noise(), Chain(LightSplit(ratio=2), Quantize(bits=4))):
        for attack in fitting:
            forms = [form.knows for form in attack.against(guard, shape) if attack.forms]
            assert set(forms) <= {"", *attack.forms} and len(set(forms)) == len(forms), attack
    of_texts = {type(attack) for attack in found if attack.inputs == ("texts",)}
    assert {GradientMatching, Dictionary} <= of_texts if task.kind == "texts" else not of_texts


# ------------------------------------------------------------------ refused before any training
def untrained(monkeypatch, attack, protocol=None, **changes):
    def never(*args, **kwargs):
        raise AssertionError("it began to train")

    monkeypatch.setattr(scene, "LocalRun", never)
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16, **({"protocol": protocol} if protocol else {}))
    audit(AuditSpec(plan, attacks=[attack], **{"images": 20, **changes}), loaded)


OTHER = Loaded(Samples(torch.rand(90, 1, 12, 12), torch.zeros(90).long()), samples(3, 4), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("attack", "changes", "words"),
    [
        (AttributeInference("gender"), {}, r"needs an attribute 'gender' of the data; they have odd"),
        (AttributeInference("odd"), {"auxiliary": Auxiliary(other=OTHER)}, "needs sensitive attributes of the aux"),
        (LabelClustering(), {"protocol": Vanilla()}, "here they travel to the server: leave it out, or take UShaped"),
        (Membership(calibrated=True), {}, "needs labels that travel, and here they stay home: audit Vanilla"),
        (PCAT(private_share=0.1), {"images": 500}, "needs some of the client's own images"),
    ],
    ids=lambda given: repr(given) if isinstance(given, Attack) else "",
)
def test_what_an_attack_lacks_is_said_before_any_training(monkeypatch, attack, changes, words):
    with pytest.raises(ValueError, match=words):
        untrained(monkeypatch, attack, **changes)


def test_an_attack_that_lacks_nothing_does_train(monkeypatch):
    with pytest.raises(AssertionError, match="began to train"):
        untrained(monkeypatch, AttributeInference("odd"))


# ------------------------------------------------------------------ how near a substitute is
@pytest.mark.parametrize(
    "guard", [NoGuard(), KAnonymous(k=2), Chain(LightSplit(ratio=4), Noise(scale=0.1))], ids=repr
)
def test_the_judge_says_how_near_a_substitute_came(guard):
    loaded = Loaded(samples(120, 1), samples(30, 2), ("a", "b", "c"))
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=16), _shared(loaded), classes=3)
    run.train()
    victim = Victim(run, 24)
    for attack in TINY.against(guard, SHAPE):
        row, _ = judge(attack, victim, run.parts, 0)
        # The same once more, by hand, image by image.
        with seeded(derive(0, "attack", repr(attack), 0)):
            attacker = attack.attacker(after_training(victim, run.parts).only(attack.needs), derive(0, "attacker", 0))
        assert isinstance(attacker, Substituting)
        own = attacker.features(victim.truth)
        uploads = [message for message in victim.messages if "z" in message.tensors]
        theirs = [
            attacker.read([message])[number]
            for message, index in zip(uploads, victim.rows, strict=True)
            for number in (range(len(message["z"])) if index is None else index.tolist())
        ]
        assert len(own) == len(theirs) == 24
        mse = sum(float((a - b).square().mean()) for a, b in zip(own, theirs, strict=True)) / 24
        cosine = sum(float((a * b).sum() / (a.norm() * b.norm())) for a, b in zip(own, theirs, strict=True)) / 24
        assert row["feature_mse"] == pytest.approx(mse, rel=1e-4)
        assert row["feature_cosine"] == pytest.approx(cosine, rel=1e-4, abs=1e-6)
    without, _ = judge(Decoder(readers=("ridge",)), victim, run.parts, 0)
    assert "feature_mse" not in without, "it has no substitute"


# ------------------------------------------------------------------ what knowing the guard is worth
def rows_of(**ssim):
    plain = "FORA(steps=9)"
    forms = (pictured("g", value, plain, form=form) for form, value in ssim.items())
    return [pictured("none", 0.9, plain), *forms]


def test_the_verdict_says_what_knowing_the_guard_is_worth():
    rows = rows_of(oblivious=0.12, lift=0.3, matched=0.87)
    (forms,) = by_form(rows, "g")
    assert forms.attack == "FORA" and forms.gain == pytest.approx(0.75) and by_form(rows, "none") == []
    said = " ".join(verdict(rows, FLOORS, "g").notes)
    assert "FORA that knows the guard reaches 0.87, the same attack without that knowledge 0.12" in said
    assert "says nothing about privacy" in said


def test_it_is_silent_where_knowing_is_worth_little_or_the_attack_is_no_attack():
    for rows in (rows_of(oblivious=0.56, matched=0.62), rows_of(oblivious=0.12)):
        assert "knows the guard" not in " ".join(verdict(rows, FLOORS, "g").notes)
    failed = [{**row, "why_control_failed": "bad luck"} for row in rows_of(oblivious=0.1, matched=0.8)]
    told = [{**row, "ceiling": True} for row in rows_of(oblivious=0.1, matched=0.8)]
    assert by_form(failed, "g") == by_form(told, "g") == []


def test_the_report_has_a_table_of_it():
    loaded = Loaded(samples(120, 1), samples(30, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16)
    result = audit(AuditSpec(plan, [LightSplit(ratio=4)], [TINY], images=8), loaded)
    shown = {"oblivious": 0.123, "lift": 0.314, "matched": 0.877, "matched+lift": 0.802}
    rows = [{**row, "why_control_failed": None, "value": shown.get(row["form"], 0.9)} for row in result.rows]
    page = report.html(replace(result, rows=rows), {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert "<td>0.123</td><td>0.314</td><td>0.877</td><td>0.802</td><td><b>+0.754</b></td>" in page
    quick = [row for row in rows if row["form"] not in ("lift", "matched")]
    page = report.html(replace(result, rows=quick), {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert "<td>0.123</td><td>0.802</td><td><b>+0.679</b></td>" in page, "no column for what nobody tried"
    assert "the same attack without that knowledge 0.12" in page
    plain = report.html(replace(result, rows=rows[:1]), {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert "What knowing the guard is worth" not in plain
