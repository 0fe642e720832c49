"""LeakMeter: what it says of what was sent, what it does about it, what it refuses, and that it goes on from disk."""

import json
import logging
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.bench import run as bench
from cutlayer.core.batch import Task
from cutlayer.core.errors import Halt
from cutlayer.core.message import Kind
from cutlayer.data import Digits
from cutlayer.data.base import Parts, parts
from cutlayer.detectors import LeakMeter, SentBatch, leak_meter, swap_guard, why_not_kept
from cutlayer.detectors.base import ClientAssets, ClientContext, StepView
from cutlayer.detectors.leak_meter import MARGIN, floors
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, Bottleneck1x1, Gaussian, KAnonymous, LightSplit, NoGuard, Noise, NoPeek
from cutlayer.metrics.images import ncc, ssim
from cutlayer.training.plan.plan import Plan

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "leakmeter.json"
SMALL = LeakMeter(every=6, samples=64, steps=8)


def watched(meter=SMALL, **changes):
    return tiny_plan(**{"epochs": 2, "batch_size": 16, "client_detectors": (meter,), **changes})


def begun(plan, private=96, **more):
    return LocalRun(plan, tiny_parts(private), classes=TASK.classes, **more)


def finished(plan, **more):
    run = begun(plan, **more)
    run.train()
    run.clients[0].detection.finish()
    return run, run.clients[0].detection.report()[0]


def fed(spec, x, seen, y=None, s=None, task=TASK):
    """A meter that was shown these pairs in batches of 16, and what it says then."""
    watch = spec.watch(
        ClientContext(task, 16, 5, lambda steps: iter(()), own=ClientAssets(lambda n: None, lambda g: None, None))
    )
    y = torch.zeros(len(x), dtype=torch.long) if y is None else y
    for step, index in enumerate(torch.arange(len(x)).split(16)):
        batch = SentBatch(x[index], y[index], {name: t[index] for name, t in (s or {}).items()}, seen[index])
        watch.look(StepView(step, y[index], None, torch.zeros(1), sent=batch))
    return watch


# ------------------------------------------------------------------------------------------- what it measures
def test_what_is_sent_as_it_is_is_seen_and_noise_is_not():
    meter = LeakMeter(every=16, samples=256, steps=8)
    x = torch.rand(256, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    mixed = x.flatten(1) @ torch.linalg.qr(torch.randn(144, 144, generator=torch.Generator().manual_seed(2)))[0]
    clear = fed(meter, x, mixed).report()["leak"][0]
    assert clear["reader"] == "ridge" and clear["ssim"] > 0.95 and clear["ncc"] > 0.95
    nothing = fed(meter, x, torch.randn(256, 144, generator=torch.Generator().manual_seed(3))).report()["leak"][0]
    assert nothing["ncc"] < 0.2 and abs(nothing["ssim"] - nothing["floor"]) < 0.1
    assert clear["step"] == 15 and clear["held_out"] == 32


def test_an_image_that_was_sent_twice_is_on_one_side_only():
    """Random messages tell nothing of other images; a reader that had seen the same pair would know it by heart."""
    draw = torch.Generator().manual_seed(1)
    x, seen = torch.rand(64, 1, 12, 12, generator=draw), torch.randn(64, 200, generator=draw)
    watch = fed(LeakMeter(every=16, samples=256, steps=8), x.repeat(4, 1, 1, 1), seen.repeat(4, 1))
    assert watch.report()["leak"][0]["ncc"] < 0.25
    known, held = watch._apart(SentBatch.together(list(watch._pairs)))
    assert len(held.x) == 32 and not (known.x[:, None] == held.x[None]).flatten(2).all(2).any()


def test_the_attribute_and_its_chance():
    draw = torch.Generator().manual_seed(1)
    odd = (torch.rand(256, generator=draw) < 0.3).long()
    x, seen = torch.rand(256, 1, 12, 12, generator=draw), torch.randn(256, 10, generator=draw)
    seen[:, 3] += 6 * odd
    spec = LeakMeter(every=16, samples=256, steps=20, attribute="odd")
    watch = fed(spec, x, seen, s={"odd": odd})
    row = watch.report()["leak"][0]
    assert row["accuracy"] > 0.95 and 0.5 < row["chance"] < 0.85
    assert watch.figures["leak_odd"] == row["accuracy"] and watch.figures["leak_odd_chance"] == row["chance"]


def test_the_interval_is_that_of_the_mean_over_held_out_images():
    x = torch.rand(128, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    watch = fed(LeakMeter(every=8, samples=128, steps=8), x, torch.zeros(128, 5))  # nothing to read: the mean image
    row = watch.report()["leak"][0]
    known, held = watch._apart(SentBatch.together(list(watch._pairs)))
    each = ssim(held.x, known.x.mean(0).expand_as(held.x))
    assert row["ssim"] == pytest.approx(float(each.mean()), abs=1e-6)
    assert row["plus_minus"] == pytest.approx(1.96 * float(each.std()) / len(each) ** 0.5, abs=1e-6)


def test_floors_are_the_mean_images_of_classes():
    some, others = samples(30, seed=1), samples(20, seed=2)
    known, held = (
        SentBatch(one.images(torch.arange(len(one))), one.y, {"odd": one.y % 2}, one.y) for one in (some, others)
    )
    guess = torch.stack([known.x[known.y == c].mean(0) for c in held.y])
    found = floors(known, held, "odd")
    assert found["ssim"] == pytest.approx(float(ssim(held.x, guess).mean()))
    assert found["ncc"] == pytest.approx(float(ncc(held.x, guess).mean()))
    odd = float((torch.cat([known.y, held.y]) % 2).double().mean())
    assert found["accuracy"] == pytest.approx(max(odd, 1 - odd))


@pytest.mark.parametrize("guard", [NoGuard(), LightSplit(ratio=4), KAnonymous(k=2), Noise(scale=1.0)], ids=repr)
def test_it_looks_at_what_the_server_gets(guard):
    """A row for each sample, as the server would take it apart; and watching changes nothing of the training."""
    got = []
    run = begun(watched(guard=guard, epochs=1), at_server=[lambda m, handle: got.append(m) or handle(m)])
    run.train()
    (watch,) = [watch for _, watch in run.clients[0].detection.watches]
    sent = watch._pairs[-1]
    last = [message for message in got if message.kind is Kind.FORWARD][-1]["z"]
    assert len(sent.seen) == len(sent.x)
    rows = {row.numpy().tobytes() for row in last}
    assert {row.numpy().tobytes() for row in sent.seen} == rows
    blind = begun(watched(guard=guard, epochs=1, client_detectors=()))
    blind.train()
    weights = blind.server.body.state_dict()
    assert all(torch.equal(t, weights[name]) for name, t in run.server.body.state_dict().items())


def test_history_and_result_tell_it(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "ready", lambda plan, *rest, **more: begun(plan))
    result = start.train(watched(), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert {"leak_ssim", "leak_ncc", "leak_plus_minus", "leak_floor"} <= rows[-1].keys()
    (told,) = result["detectors"]
    assert [row["step"] for row in told["leak"]] == [3, 5, 11], "early, now and then, and at the end"
    assert told["leak_so_far"]["ssim"] == max(row["ssim"] for row in told["leak"])
    assert told["cpu_seconds"] <= told["cpu_seconds_allowed"]
    (line,) = start.leaks(result)
    assert f"ssim {told['leak_so_far']['ssim']:.3f}" in line and "class-mean image alone" in line


# ------------------------------------------------------------------------------------------- what it does
def unreachable_is_fine(monkeypatch):
    """Toy images are noise, which no mean image resembles; a small budget is exceeded at once."""
    monkeypatch.setattr(leak_meter, "floors", lambda known, held, a="", columns=(): {"ssim": 0.0, "ncc": 0.0})


def test_stop_says_the_number_and_the_budget_and_sends_nothing_more(monkeypatch):
    unreachable_is_fine(monkeypatch)
    got = []
    plan = watched(replace(SMALL, budget="ncc<=0.2", policy="stop"), clients=1)
    run = begun(plan, at_server=[lambda m, handle: got.append(m) or handle(m)])
    with pytest.raises(Halt, match=r"LeakMeter: after step 3 a reader .* sees ncc 0\.\d+ .* budget is 0.2"):
        run.train()
    assert run.clients[0].network.steps == 4 and got[-1].step == 3 and got[-1].kind is Kind.BACKWARD


def test_warn_goes_on(monkeypatch, caplog):
    unreachable_is_fine(monkeypatch)
    with caplog.at_level(logging.WARNING, "cutlayer.watch"):
        _, report = finished(watched(replace(SMALL, budget="ncc<=0.2")))
    assert "the budget is 0.2" in caplog.text and len(report["leak"]) == 3 and not report["alarm"]


def test_a_budget_that_is_kept_says_nothing(monkeypatch, caplog):
    _, report = finished(watched(replace(SMALL, budget="ncc<=0.95", policy="stop"), guard=Gaussian(scale=50.0)))
    assert not report["alarm"] and not caplog.text


def test_strengthen_climbs_and_stops_at_the_end_of_its_ladder(monkeypatch):
    unreachable_is_fine(monkeypatch)
    ladder = (Gaussian(scale=1.0), Gaussian(scale=50.0))
    meter = replace(SMALL, budget="ncc<=0.2", policy="strengthen", ladder=ladder)
    got = []
    run = begun(watched(meter, epochs=9), at_server=[lambda m, handle: got.append(m) or handle(m)])
    with pytest.raises(Halt, match=r"the ladder ends here"):
        run.train()
    spread = {m.step: float(m["z"].std()) for m in got if m.kind is Kind.FORWARD}
    assert spread[5] < 10 and spread[6] > 0.9 and spread[12] > 40  # the guard changes with the next upload
    (report,) = run.clients[0].detection.report()
    assert [row.get("guard") for row in report["leak"]] == [*map(repr, ladder), None]
    # Who goes on from a snapshot goes on with the guard it had come to.
    state = run.clients[0].own_state()
    again = begun(watched(meter, epochs=9))
    again.clients[0].load_state(state)
    (watch,) = [watch for _, watch in again.clients[0].detection.watches]
    assert watch._rung == 2 and len(watch.report()["leak"]) == 3 and watch.guard is not None


def test_it_looks_as_soon_as_there_is_enough_to_look_at():
    x = torch.rand(128, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    rows = fed(LeakMeter(every=200, samples=64, steps=2), x, x.flatten(1)).report()["leak"]
    assert [row["step"] for row in rows] == [3], "64 images in batches of 16"


def test_an_early_look_does_not_choose_the_reader_of_later_ones():
    """At first a head has learnt nothing, and noise may hide all it sends: who reads best then says little."""
    x = torch.rand(128, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    watch = fed(LeakMeter(every=200, samples=64, steps=2), x, x)
    assert watch._rows and watch._readers == ("conv", "mlp")
    watch = fed(LeakMeter(every=4, samples=64, steps=2), x, x)
    assert len(watch._readers) == 1, "after a regular look the better one is left"


def told_of(estimate, **settings):
    """What a meter reports that measured just this."""
    watch = LeakMeter(**settings).watch(ClientContext(TASK, 16, 5, lambda steps: iter(())))
    watch._rows = [{"step": 5, "reader": "ridge", "ssim": estimate, "ncc": 0.0, "plus_minus": 0.01}]
    watch._judge(watch._rows[-1])
    return {"detector": repr(watch.spec), "alarm": watch.alarm, **watch.report()}


def test_a_budget_is_compared_with_the_estimate_and_what_audits_saw_beyond_it():
    margin = MARGIN["ssim"]
    assert margin > 0
    budget = {"budget": "ssim<=0.7", "policy": "stop"}
    assert not told_of(0.69 - margin, **budget)["exceeded"]
    over = told_of(0.71 - margin, **budget)
    assert over["exceeded"] and f"audits saw up to {margin:g} more" in over["alarm"]
    assert why_not_kept(over).startswith("the budget of LeakMeter(budget='ssim<=0.7'")


def test_a_budget_that_was_never_measured_does_not_count_as_kept():
    watch = LeakMeter(budget="ncc<=0.9").watch(ClientContext(TASK, 16, 5, lambda steps: iter(())))
    watch.finish()
    told = {"detector": "LeakMeter()", **watch.report()}
    assert told["exceeded"] is None and "never measured" in why_not_kept(told)
    assert why_not_kept({**told, "budget_margin": None}) is None, "without a budget there is nothing to keep"


def test_the_last_look_at_a_budget_is_not_postponed(monkeypatch):
    x = torch.rand(128, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    for budget, looks in (("ncc<=0.9", 2), ("", 1)):
        watch = fed(LeakMeter(every=200, samples=64, steps=2, budget=budget), x, x.flatten(1))
        watch._spent, watch._last = 1e6, 1e6  # all there was
        watch.finish()
        assert len(watch.report()["leak"]) == looks


def test_the_margins_are_those_of_the_kept_evidence():
    """Over all runs in it: how far an audited decoder was above the estimate at most, rounded up."""
    rows = json.loads(EVIDENCE.read_text())["rows"]
    assert len({row["net"] for row in rows}) > 1 and len({row["seed"] for row in rows}) > 1
    for figure, name in (("ssim", "margin"), ("ncc", "margin_ncc")):
        assert MARGIN[figure] == ceil(100 * max(-row[name] for row in rows if name in row)) / 100


def test_what_it_may_cost(monkeypatch):
    """Where the first measurement has used up what there is, later ones wait."""
    clock = SimpleNamespace(now=0.0)

    def tick():
        clock.now += 1.0
        return clock.now

    monkeypatch.setattr(leak_meter.time, "process_time", tick)
    x = torch.rand(640, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    watch = fed(LeakMeter(every=4, samples=64, steps=8), x, x.flatten(1))
    report = watch.report()
    assert report["postponed"] > 0 and report["cpu_seconds"] <= report["cpu_seconds_allowed"]


def test_its_benchmark():
    (row,) = bench.run(["leakmeter"], quick=True)
    assert row["value"] > 0 and row["ratio"] >= 1


@pytest.mark.campaign
def test_the_estimate_on_digits_is_within_its_margin():
    """A slice of what tests/campaign/test_leak_promise.py measures over all guards: small readers on both sides."""
    loaded = Digits().load()
    meter = LeakMeter(every=10**6, samples=256, steps=40)
    plan = Plan(guard=LightSplit(ratio=8), epochs=1, aux_samples=300, private_seed=1, client_detectors=(meter,))
    data = parts(loaded, aux=plan.aux_samples, val=plan.val_share, seed=0)
    data = Parts(data.private[torch.arange(900)], data.val[:20], data.test[:20], data.aux)
    run = LocalRun(plan, data, classes=10)
    run.train()
    run.clients[0].detection.finish()
    (report,) = run.clients[0].detection.report()
    audited, _ = judge(Decoder(steps=40, width=16, hidden=128), Victim(run, 64), data, seed=0)
    assert report["leak_so_far"]["ssim"] >= audited["ssim"] - MARGIN["ssim"]
    assert report["leak"][0]["floor"] < audited["ssim"]


# ------------------------------------------------------------------------------------------- what it refuses
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": "shout"}, "policy is one of 'warn', 'stop', 'strengthen'"),
        ({"budget": "ssim<0.3"}, "e.g. 'ssim<=0.35'"),
        ({"budget": "psnr<=20"}, "budget is one of ssim, ncc, skill, correlation, token_accuracy, accuracy"),
        ({"budget": "ssim<=1.5"}, r"in \(0, 1\)"),
        ({"policy": "stop"}, "needs a budget"),
        ({"policy": "strengthen", "budget": "ssim<=0.5"}, "go together"),
        ({"ladder": (Gaussian(scale=1.0),), "budget": "ssim<=0.5"}, "go together"),
        ({"ladder": ("Gaussian",), "policy": "strengthen"}, "ladder is a tuple of guards"),
        ({"budget": "accuracy<=0.6"}, "name it"),
        ({"samples": 63}, "at least 64"),
        ({"every": 0}, "every is a whole number from 1 up"),
        ({"steps": 0.5}, "steps is a whole number"),
    ],
)
def test_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        LeakMeter(**settings)


def test_a_budget_below_the_floor_is_refused_before_the_first_step():
    loaded = Digits().load()
    data = parts(loaded, aux=0, val=0.1, seed=0)
    plan = Plan(client_detectors=(LeakMeter(budget="ssim<=0.1"),), private_seed=1)
    with pytest.raises(ValueError, match=r"reaches ssim 0\.\d+ on this .*'ssim<=0\.\d+' would work") as refused:
        LocalRun(plan, data, classes=10)
    works = str(refused.value).rpartition("'ssim<=")[2][:4]
    LocalRun(replace(plan, client_detectors=(LeakMeter(budget=f"ssim<={works}"),)), data, classes=10)


def test_too_few_images_and_unknown_attributes_are_refused():
    with pytest.raises(ValueError, match="at least 64 images; this client has 30"):
        begun(watched(), private=30)
    with pytest.raises(ValueError, match="an attribute 'age' of the data; they have odd"):
        begun(watched(replace(SMALL, attribute="age")))
    shape = TASK._replace(shape=(1, 8, 8))
    with pytest.raises(ValueError, match="limit ncc instead"):
        LeakMeter(budget="ssim<=0.5").refuse_unfit(ClientContext(shape, 6, 0, lambda steps: iter(())))
    for shape, instead in (((20,), "skill"), ((2, 20), "correlation")):
        context = ClientContext(TASK._replace(shape=shape), 6, 0, lambda steps: iter(()))
        with pytest.raises(ValueError, match=f"limit {instead}, e.g"):
            LeakMeter(budget="ssim<=0.5").refuse_unfit(context)
        LeakMeter(budget=f"{instead}<=0.5").refuse_unfit(context)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (LightSplit(ratio=4), "would send"),
        (Bottleneck1x1(ratio=2), "would send"),
        (DPSGD(clip=1.0), "changes how the client learns"),
        (KAnonymous(k=4), "samples at a time"),
    ],
    ids=repr,
)
def test_a_ladder_has_guards_no_server_needs_to_know_of(new, words):
    meter = replace(SMALL, budget="ncc<=0.9", policy="strengthen", ladder=(new,))
    with pytest.raises(ValueError, match=words):
        begun(watched(meter))


def test_a_guard_of_the_same_server_half_may_take_its_place():
    shape, settings = (4, 5, 5), {"public": 1, "private": 2, "task": TASK}
    for old, new in ((NoPeek(alpha=0.5), NoPeek(alpha=0.9)), (Noise(scale=1.0), Noise(scale=2.0))):
        assert swap_guard(old, new, shape, **settings).training
    with pytest.raises(ValueError, match="another half"):
        swap_guard(Bottleneck1x1(ratio=1), NoGuard(), shape, **settings)


# ---------------------------------------------------------------------------- records and series
@pytest.mark.parametrize(("rows", "figure"), [((6,), "skill"), ((2, 16), "correlation")])
def test_records_and_series_are_measured_in_figures_of_their_own(rows, figure):
    x = torch.randn(192, *rows, generator=torch.Generator().manual_seed(1)).cumsum(len(rows))
    open_cut = fed(LeakMeter(every=200, samples=128, steps=40), x, 2 * x.flatten(1) + 1)
    noise = torch.randn(192, 12, generator=torch.Generator().manual_seed(2))
    nothing = fed(LeakMeter(every=200, samples=128, steps=40), x, noise)
    for watch in (open_cut, nothing):
        watch.finish()
    leaks, hides = (watch.report()["leak_so_far"] for watch in (open_cut, nothing))
    assert set(leaks) == {figure} and leaks[figure] > 0.9
    assert hides[figure] < leaks[figure] - 0.2 and f"leak_{figure}" in open_cut.figures


def test_what_was_measured_of_records_survives_a_snapshot():
    x = torch.randn(128, 6, generator=torch.Generator().manual_seed(1))
    watch = fed(LeakMeter(every=200, samples=64, steps=5), x, x)
    watch.finish()
    again = LeakMeter(every=200, samples=64, steps=5).watch(ClientContext(TASK, 6, 0, lambda steps: iter(())))
    again.load(watch.tensors())
    assert again.report()["leak_so_far"] == pytest.approx(watch.report()["leak_so_far"])


# ------------------------------------------------------------------------------------------------- texts
WORDS = Task((6,), 2, {}, 30)


def test_of_texts_it_reads_words_and_never_takes_ids_for_amounts():
    draw = torch.Generator().manual_seed(4)
    x = torch.randint(1, 30, (256, 6), generator=draw)
    x[:, 0] = 7  # a word that everybody begins with needs no message
    table = torch.randn(30, 8, generator=draw)
    meter = LeakMeter(every=16, samples=256, steps=30)
    clear = fed(meter, x, table[x], task=WORDS).report()["leak"][0]
    assert clear["token_accuracy"] > 0.95 and clear["ssim"] is clear["ncc"] is None
    assert 1 / 6 < clear["floor"] < 0.35
    nothing = fed(meter, x, torch.randn(256, 6, 8, generator=draw), task=WORDS)
    assert nothing.report()["leak"][0]["token_accuracy"] < 0.4 and nothing.figures["leak_token_accuracy"] < 0.4


def test_a_budget_of_words_that_nobody_can_keep_is_refused():
    x = torch.full((80, 6), 7)
    own = SentBatch(x, torch.zeros(80).long(), {}, torch.zeros(80, 6, 8))
    assets = ClientAssets(lambda count: own, lambda guard: None, None)
    context = ClientContext(WORDS, 16, 5, lambda steps: iter(()), own=assets)
    with pytest.raises(ValueError, match="commonest words of each class reaches token_accuracy 1"):
        LeakMeter(budget="token_accuracy<=0.5").refuse_unfit(context)
