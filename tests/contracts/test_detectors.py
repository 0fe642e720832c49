"""Laws that hold for every detector. A new one adds one line to DETECTORS (of clients) or AT_SERVERS."""

from dataclasses import replace

import pytest
import torch
from rotation import and_the_rest
from toys import GUARDS, TASK, LinearNet, TinyNet, tiny_parts, tiny_plan

from cutlayer.attacks import FORA
from cutlayer.audit.check import detectors as laws
from cutlayer.audit.check.detectors import ROUNDS, show, watching
from cutlayer.audit.knowledge import before_training
from cutlayer.core.errors import Halt
from cutlayer.core.message import Kind
from cutlayer.core.seeds import seeded
from cutlayer.core.spec import names, summary
from cutlayer.detectors import (
    ConsensusCosine,
    GradientScrutinizer,
    LeakMeter,
    OutlierGradients,
    SplitGuard,
)
from cutlayer.detectors.leak_meter import POLICIES
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, Gaussian
from cutlayer.nets import Whole
from cutlayer.nets.lora import LoRA
from cutlayer.training import checkpoint
from cutlayer.training.laws import its_text_is_itself
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Bypass, Vanilla
from cutlayer.wire.transcript import Recorder

# One line a detector, in a size for a dozen steps; none of them calls, so that every law sees all steps.
DETECTORS = [
    GradientScrutinizer(threshold=1e-9, every=2, warm=4),
    SplitGuard(threshold=1e-9, share=0.4, warm=2, vote=2, least=1),
    OutlierGradients(threshold=0.99, rehearsal=10, window=12),
    LeakMeter(every=12, samples=64, steps=2),
]
# Laws that do not hold for a detector, and why. A line that is not needed fails: the law must be broken.
EXCEPT = {
    ("trains the same", SplitGuard): "its probes take the place of steps",
    ("goes on the same", LeakMeter): "pairs of images are never written down, so it gathers them anew",
}
IMAGES = {LeakMeter: 72}  # of a client, where the usual 48 are too few to learn from
EVERY = pytest.mark.parametrize("detector", DETECTORS, ids=lambda one: type(one).__name__)


def plan(*watch, **changes):
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "client_detectors": watch, **changes})


def parts_for(detector, clients=1):
    return tiny_parts(IMAGES.get(type(detector), 48) * clients)


def trained(a_plan, *at_server, parts=None, **options):
    run = LocalRun(a_plan, parts or tiny_parts(), classes=TASK.classes, at_server=at_server, **options)
    assert run.train()
    return run


def holds(law, detector, is_kept):
    """Whether a law is kept, or broken where EXCEPT says so."""
    why = EXCEPT.get((law, type(detector)))
    assert is_kept == (why is None), f"{detector} {law}: leave it out of EXCEPT" if is_kept else f"{law}: it does not"


def listener(messages):
    def listen(message, handle):
        messages.append(message)
        return handle(message)

    return listen


def heard(a_plan, parts):
    """What the server receives: kinds, steps, names and shapes; the values; and what both sides have learnt."""
    messages = []
    run = trained(a_plan, listener(messages), parts=parts)
    form = [(m.kind, m.client, m.step, {n: (t.shape, t.dtype) for n, t in m.tensors.items()}) for m in messages]
    learnt = [t for name, t in run.tensors().items() if "watch." not in name]
    return form, [*(t for m in messages for t in m.tensors.values()), *learnt]


def report(run):
    """What all detectors of all clients say, times left out."""
    told = [client.detection.report() for client in run.clients]
    return [[untimed(one) for one in own] for own in told]


def untimed(told):
    told = {name: value for name, value in told.items() if not name.startswith("cpu_seconds")}
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in told.get("leak", [])]
    return told | ({"leak": rows} if "leak" in told else {})


def spoke(told):
    """A detector has scores; a meter, which suspects nobody, has measurements."""
    return bool(told.get("leak") or told["scores"])


@EVERY
@pytest.mark.parametrize("law", [its_text_is_itself, laws.no_server_is_told], ids=lambda law: law.__name__)
def test_it_keeps_the_laws_that_outsiders_are_held_to(detector, law):
    """The others of `cutlayer check` are tried below in more forms: other protocols, guards and rounds."""
    law(detector)
    assert type(detector).__name__ in names("detectors") and summary(type(detector))


@EVERY
def test_it_says_the_same_every_time(detector):
    first, again = (trained(plan(detector, protocol=Vanilla()), parts=parts_for(detector)) for _ in range(2))
    assert report(first) == report(again)
    assert spoke(report(first)[0][0]), "it never said anything"
    assert {type(detector).__name__, "leak_ncc"} & first.progress.history[-1].keys()


@pytest.mark.one_in(2)
@EVERY
@pytest.mark.parametrize("protocol", [None, Vanilla(), Bypass()], ids=["UShaped", "Vanilla", "Bypass"])
def test_a_server_sees_the_same_messages_and_both_sides_learn_the_same(detector, protocol):
    """The same number and form always; and where no probe takes the place of a step, not a bit is different."""
    form = {"protocol": protocol} if protocol else {}
    watched, values = heard(plan(detector, **form), parts_for(detector))
    blind, plain = heard(plan(**form), parts_for(detector))
    assert watched == blind
    is_same = all(torch.equal(ours, theirs) for ours, theirs in zip(values, plain, strict=True))
    holds("trains the same", detector, is_same)


@EVERY
def test_a_passive_attacker_gets_exactly_the_honest_score(detector):
    """One that records everything, and one that computes on it while the client trains."""
    a_plan, parts = plan(detector, protocol=Vanilla()), parts_for(detector)
    honest = report(trained(a_plan, parts=parts))
    assert report(trained(a_plan, Recorder(1 << 24), parts=parts)) == honest
    knowledge = before_training(a_plan, TASK, parts, "cpu")
    attack = FORA(steps=4, reader_steps=4, width=8, reader_width=8, hidden=16)
    messages, spent = [], []

    def passive(message, handle):
        answer = handle(message)
        if message.kind is Kind.BACKWARD and not spent:  # an attack in the middle of the training
            uploads = [one for one in messages if one.kind is not Kind.BACKWARD]
            with torch.enable_grad(), seeded(1):  # its own random numbers, as on a machine of its own
                spent.append(attack.attacker(replace(knowledge, observed=uploads).only(attack.needs), 1))
        return answer

    assert report(trained(a_plan, listener(messages), passive, parts=parts)) == honest and spent


# Every detector beside one guard in six; the campaign has them all.
BESIDE = [guard for guard in GUARDS if not guard.mixes_samples]
SOME = [(one, guard) for turn, one in enumerate(DETECTORS) for guard in BESIDE[4 * turn :: 24]]


@pytest.mark.parametrize(("detector", "guard"), and_the_rest(SOME, DETECTORS, BESIDE), ids=repr)
def test_it_watches_beside_guards(detector, guard):
    run = trained(plan(detector, guard=guard), parts=parts_for(detector))
    assert spoke(report(run)[0][0])


KINDS_OF_ROUNDS = {
    "DP-SGD": {"guard": DPSGD(), "net": TinyNet(norm="group")},
    "own heads": {"clients": 2, "shared_client_network": False},
    "SplitFed": {"clients": 2, "rounds": SplitFed()},
    "wave": {"clients": 2, "rounds": Wave()},
}
TWO_OF_FOUR = [(one, [*KINDS_OF_ROUNDS][(turn + step) % 4]) for turn, one in enumerate(DETECTORS) for step in (0, 2)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("detector", "rounds"), and_the_rest(TWO_OF_FOUR, DETECTORS, [*KINDS_OF_ROUNDS]), ids=repr)
def test_it_watches_every_client_of_any_round(detector, rounds):
    changes = KINDS_OF_ROUNDS[rounds]
    parts = tiny_parts() if type(detector) not in IMAGES else parts_for(detector, changes.get("clients", 1))
    run = trained(plan(detector, **{"epochs": 4, **changes}), parts=parts)
    assert all(spoke(one[0]) for one in report(run))


@EVERY
def test_a_resumed_run_goes_on_watching_as_if_nothing_had_been(detector, tmp_path):
    a_plan, parts = plan(detector), parts_for(detector)
    whole = trained(a_plan, parts=parts)
    half = LocalRun(a_plan, parts, classes=TASK.classes)
    assert not half.train(stop=lambda: half.progress.step == len(parts.private) // 6 + 1)  # in the second epoch
    checkpoint.save(tmp_path / "last.safetensors", *half.snapshot())
    other = LocalRun(a_plan, parts, classes=TASK.classes)
    other.restore(*checkpoint.load(tmp_path / "last.safetensors"))
    assert other.train()
    ours, theirs = ([{**row, "seconds": 0} for row in run.progress.history] for run in (other, whole))
    holds("goes on the same", detector, (report(other), ours) == (report(whole), theirs))
    weights = zip(other.tensors().items(), whole.tensors().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in weights if "watch." not in a)


@EVERY
def test_what_it_found_is_told_of_a_client_that_makes_no_step_after_a_resume(detector):
    """Its part is over, or it is not drawn again: a budget that was not kept must not be forgotten for that."""
    run = trained(plan(detector), parts=parts_for(detector))
    again = LocalRun(plan(detector), parts_for(detector), classes=TASK.classes)
    again.clients[0].load_state(run.clients[0].own_state())
    ours, theirs = (one.clients[0].detection for one in (again, run))
    # Pairs of images are never written down: the last word of a meter is about those of its last looks.
    assert ours.scores() == theirs.scores() and len(ours.report()) == 1
    assert [one["scores"] for one in ours.report()] == [one["scores"] for one in theirs.report()]
    untouched = LocalRun(plan(detector), parts_for(detector), classes=TASK.classes)
    assert untouched.clients[0].detection.report() == []


@EVERY
def test_it_refuses_what_it_cannot_look_at(detector):
    for changes in ({"micro_batches": 2}, {"frozen_parts": ("head",)}):
        with pytest.raises(ValueError, match="micro_batches=1"):
            plan(detector, **changes)


@EVERY
@pytest.mark.parametrize(
    "changes",
    [
        {"net": Whole(net=TinyNet())},
        {"net": LinearNet(), "adapters": LoRA(rank=2, at="query", side="server")},
    ],
    ids=["cut at the input", "adapters at the server"],
)
def test_a_head_in_which_nothing_trains_is_refused_before_the_first_step(detector, changes):
    if not detector.reads_gradients:
        assert trained(plan(detector, **changes), parts=parts_for(detector))
        return
    with pytest.raises(ValueError, match="nothing in the head trains"):
        LocalRun(plan(detector, **changes), parts_for(detector), classes=TASK.classes)


@EVERY
def test_a_client_that_was_put_down_shares_no_memory_with_what_it_was_given(detector):
    """Best epochs and the last state go into one file, which takes no tensor twice."""
    run = trained(plan(detector), parts=parts_for(detector))
    given = run.clients[0].own_state()
    again = LocalRun(plan(detector), parts_for(detector), classes=TASK.classes)
    again.clients[0].load_state(given)
    kept = again.clients[0].own_state()
    assert any("watch." in name for name in kept) and kept.keys() == given.keys()
    places = {tensor.data_ptr() for tensor in given.values() if tensor.numel()}
    assert not [name for name, tensor in kept.items() if tensor.numel() and tensor.data_ptr() in places]


def test_every_exception_is_of_a_detector_in_the_table():
    assert {kind for _, kind in EXCEPT} <= {type(one) for one in DETECTORS}


# ------------------------------------------------------------------ meters: what leaks, and what is done about it
METERS = [one for one in DETECTORS if not one.suspects]
all_meters = pytest.mark.parametrize("meter", METERS, ids=lambda one: type(one).__name__)


@all_meters
def test_what_a_meter_measured_is_still_there_after_a_snapshot(meter):
    run = trained(plan(meter), parts=parts_for(meter))
    before = run.clients[0].detection.watches[0][1]
    again = LocalRun(plan(meter), parts_for(meter), classes=TASK.classes)
    again.clients[0].load_state(run.clients[0].own_state())
    after = again.clients[0].detection.watches[0][1]
    assert before.figures and after.figures == before.figures
    assert after.report()["leak_so_far"] == before.report()["leak_so_far"]


@all_meters
@pytest.mark.parametrize("policy", POLICIES)
def test_a_meter_above_its_budget_does_what_its_policy_says(meter, policy):
    """Clouds are not told by the mean of their class, so the unguarded toys are above a budget that could be kept."""
    ladder = (Gaussian(scale=50.0),) if policy == "strengthen" else ()
    over = replace(meter, budget="ncc<=0.9", policy=policy, ladder=ladder)
    messages = []
    run = LocalRun(plan(over), parts_for(meter), classes=TASK.classes, at_server=[listener(messages)])
    if policy == "stop":
        with pytest.raises(Halt, match="Nothing more was sent"):
            run.train()
        assert messages[-1].step < meter.every, "it stops before the next step, at the first look"
    else:
        assert run.train()
    (told,) = run.clients[0].detection.report()
    assert told["exceeded"] and bool(told["alarm"]) == (policy == "stop")
    assert told["guard"] == (repr(ladder[0]) if ladder else None)
    spread = {m.step: float(m["z"].std()) for m in messages if m.kind is Kind.FORWARD}
    looked = told["leak"][0]["step"]
    assert looked < meter.every and spread[looked] < 10
    assert (spread.get(looked + 1, 0) > 40) == (policy == "strengthen"), "another guard from the next step on"


@all_meters
def test_a_meter_below_its_budget_does_nothing(meter):
    kept = replace(meter, budget="ncc<=0.95", policy="stop")
    told = trained(plan(kept, guard=Gaussian(scale=50.0)), parts=parts_for(meter)).clients[0].detection.report()[0]
    assert told["leak"] and not told["exceeded"] and not told["alarm"]


# ------------------------------------------------------------------ detectors at the server
AT_SERVERS = [ConsensusCosine(window=1, shuffles=99), ConsensusCosine(window=1, signature="input", sides=2)]
servers = pytest.mark.parametrize("detector", AT_SERVERS, ids=repr)


@pytest.mark.one_in(2)
@servers
@pytest.mark.parametrize("law", [its_text_is_itself, *laws.SERVER_LAWS], ids=lambda law: law.__name__)
def test_at_a_server_it_keeps_the_laws_that_outsiders_are_held_to(detector, law):
    law(detector)


@servers
def test_at_a_server_honest_clients_give_no_more_alarms_than_were_asked_for(detector):
    watch = show(watching(detector), range(ROUNDS))
    assert watch.report()["rounds"] == ROUNDS and sum(map(bool, watch.flagged())) <= 2


@servers
def test_at_a_server_it_names_the_client_that_sends_something_else(detector):
    for odd in (0, 5):
        watch = show(watching(detector), range(ROUNDS), odd=odd)
        told = watch.report(malicious=[odd])
        assert told["suspects"] == [odd]
        assert told["against"]["detected"] > 0.5 > told["against"]["false_alarms"]
        assert len(watch.flagged()) == ROUNDS
