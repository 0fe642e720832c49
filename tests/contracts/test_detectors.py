"""Laws that hold for every detector of a client. A new detector adds one line to DETECTORS."""

from dataclasses import replace

import pytest
import torch
from toys import GUARDS, TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.attacks import FORA
from cutlayer.audit.knowledge import before_training
from cutlayer.core.message import Kind
from cutlayer.core.seeds import seeded
from cutlayer.core.spec import names, spec, summary
from cutlayer.core.split import Bypass, Vanilla
from cutlayer.detectors import GradientScrutinizer, OutlierGradients, SplitGuard
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD
from cutlayer.training import checkpoint
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.wire.transcript import Recorder

# One line a detector, in a size for a dozen steps; none of them calls, so that every law sees all steps.
DETECTORS = [
    GradientScrutinizer(threshold=1e-9, every=2, warm=4),
    SplitGuard(threshold=1e-9, share=0.4, warm=2, vote=2, least=1),
    OutlierGradients(threshold=0.99, rehearsal=10, window=12),
]
EVERY = pytest.mark.parametrize("detector", DETECTORS, ids=lambda one: type(one).__name__)


def plan(*watch, **changes):
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "client_detectors": watch, **changes})


def trained(a_plan, *at_server, **options):
    run = LocalRun(a_plan, tiny_parts(), classes=TASK.classes, at_server=at_server, **options)
    assert run.train()
    return run


def listener(messages):
    def listen(message, handle):
        messages.append(message)
        return handle(message)

    return listen


def heard(a_plan):
    """What the server receives: kinds, steps, names and shapes; and the values."""
    messages = []
    trained(a_plan, listener(messages))
    form = [(m.kind, m.client, m.step, {n: (t.shape, t.dtype) for n, t in m.tensors.items()}) for m in messages]
    return form, [t for m in messages for t in m.tensors.values()]


def report(run):
    return [client.detection.report() for client in run.clients]


@EVERY
def test_its_text_makes_it_again(detector):
    assert spec(repr(detector), "detectors") == detector
    assert type(detector).__name__ in names("detectors") and summary(type(detector))


@EVERY
def test_it_scores_the_same_every_time(detector):
    first, again = (trained(plan(detector, protocol=Vanilla)) for _ in range(2))
    assert report(first) == report(again)
    assert report(first)[0][0]["scores"], "it never had a score"
    assert type(detector).__name__ in first.history[-1]


@EVERY
def test_no_server_is_told(detector):
    """The agreed plan, its fingerprint and what the server builds from are those of a plan without."""
    watched, blind = plan(detector), plan()
    assert watched.fingerprint() == blind.fingerprint() and watched.agreed() == blind.agreed()
    assert watched.public() == blind.public() and "detectors" not in repr(watched.public())


@EVERY
@pytest.mark.parametrize("protocol", [None, Vanilla, Bypass], ids=["UShaped", "Vanilla", "Bypass"])
def test_a_server_sees_messages_of_the_same_number_and_form(detector, protocol):
    form = {"protocol": protocol} if protocol else {}
    watched, values = heard(plan(detector, **form))
    blind, plain = heard(plan(**form))
    assert watched == blind
    if not isinstance(detector, SplitGuard):  # without probes, not a bit is different
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(values, plain, strict=True))


@EVERY
def test_a_passive_attacker_gets_exactly_the_honest_score(detector):
    """One that records everything, and one that computes on it while the client trains."""
    a_plan = plan(detector, protocol=Vanilla)
    honest = report(trained(a_plan))
    assert report(trained(a_plan, Recorder(1 << 24))) == honest
    knowledge = before_training(a_plan, TASK, tiny_parts(), "cpu")
    attack = FORA(steps=4)
    messages, spent = [], []

    def passive(message, handle):
        answer = handle(message)
        if message.kind is Kind.BACKWARD and not spent:  # an attack in the middle of the training
            uploads = [one for one in messages if one.kind is not Kind.BACKWARD]
            with torch.enable_grad(), seeded(1):  # its own random numbers, as on a machine of its own
                spent.append(attack.attacker(replace(knowledge, observed=uploads).only(attack.needs), 1))
        return answer

    assert report(trained(a_plan, listener(messages), passive)) == honest and spent


@EVERY
@pytest.mark.parametrize("guard", [g for g in GUARDS if not g.mixes_samples][::6], ids=repr)
def test_it_watches_beside_guards(detector, guard):
    run = trained(plan(detector, guard=guard))
    assert report(run)[0][0]["scores"]


@EVERY
@pytest.mark.parametrize(
    "changes",
    [
        {"guard": DPSGD(), "net": TinyNet(norm="group")},
        {"clients": 2, "shared_client_network": False},
        {"clients": 2, "rounds": SplitFed()},
        {"clients": 2, "rounds": Wave()},
    ],
    ids=["DP-SGD", "own heads", "SplitFed", "wave"],
)
def test_it_watches_every_client_of_any_round(detector, changes):
    run = trained(plan(detector, **{"epochs": 4, **changes}))
    assert all(one[0]["scores"] for one in report(run))


@EVERY
def test_a_resumed_run_goes_on_watching_as_if_nothing_had_been(detector, tmp_path):
    a_plan = plan(detector)
    whole = trained(a_plan)
    half = LocalRun(a_plan, tiny_parts(), classes=TASK.classes)
    assert not half.train(stop=lambda: half.step == 7)
    checkpoint.save(tmp_path / "last.safetensors", *half.snapshot())
    other = LocalRun(a_plan, tiny_parts(), classes=TASK.classes)
    other.restore(*checkpoint.load(tmp_path / "last.safetensors"))
    assert other.train()
    assert report(other) == report(whole)
    assert [{**row, "seconds": 0} for row in other.history] == [{**row, "seconds": 0} for row in whole.history]


@EVERY
def test_it_refuses_what_it_cannot_look_at(detector):
    for changes in ({"micro_batches": 2}, {"frozen_parts": ("head",)}):
        with pytest.raises(ValueError, match="micro_batches=1"):
            plan(detector, **changes)
