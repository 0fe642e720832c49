"""Guards and plans: who is guarded, what is refused before training, and guards fitted to finished networks."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from toys import TASK, LinearNet, TinyNet, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.fit import why_unfit
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.core.batch import Batch, Task
from cutlayer.core.compressor import Compression
from cutlayer.core.guard import Guarded, GuardModule
from cutlayer.core.seeds import derive, generator
from cutlayer.core.spec import names
from cutlayer.data.base import Loaded, Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, Bottleneck1x1, Chain, KAnonymous, LightSplit, NoGuard, RateBottleneck, SplitFC, every
from cutlayer.guards.base import Guard
from cutlayer.nets import SimpleCNN
from cutlayer.nets.weights import load_weights
from cutlayer.training.batches import epoch_batches, in_batches
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.shapes import cut_shapes, steps_per_epoch
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import predict

QUICK = Decoder(steps=20, width=8, hidden=16)


class _Shift(GuardModule):
    def __init__(self, private):
        super().__init__()
        self.private = private
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, z, batch):
        draw = generator(derive(self.private, batch.seed))
        return Guarded(z + self.shift + torch.rand(z.shape, generator=draw, dtype=z.dtype))


@dataclass(frozen=True, repr=False)
class Shift(Guard):
    """Random numbers and a learned one on top; for networks that are finished."""

    post_hoc: ClassVar[bool] = True
    least: int = 1
    attribute: str = "odd"

    @property
    def least_batch(self):
        return self.least

    @property
    def attributes(self):
        return (self.attribute,)

    @property
    def draws_anew(self):
        return True

    def build(self, shape, public, private, task=None):
        return _Shift(private)


# ------------------------------------------------------------------ batches
@pytest.mark.parametrize(("count", "size", "least"), [(23, 8, 8), (23, 8, 7), (17, 8, 2), (16, 8, 5), (3, 8, 5)])
def test_no_batch_is_smaller_than_the_guard_needs(count, size, least):
    batches = epoch_batches(count, size, seed=1, least=least)
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    assert len(batches) == 1 or min(map(len, batches)) >= least
    assert steps_per_epoch([count], size, least) == len(batches)
    assert in_batches(torch.arange(count), size, least)[0][0] == 0


# ------------------------------------------------------------------ refused before training
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (tiny_plan(guard=Shift(attribute="gender")), "'gender', an attribute this data does not have; it has odd"),
        (tiny_plan(guard=LightSplit(ratio=4), guarded_clients=1, clients=2), "without a server's half"),
        (tiny_plan(guard=Shift(), guarded_clients=1, clients=2), "weights of its own"),
    ],
)
def test_a_guard_that_does_not_fit_is_refused(plan, words):
    with pytest.raises(ValueError) as error:
        cut_shapes(plan, TASK)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"guarded_clients": 3, "clients": 2}, "of the 2 client"),
        ({"guard": Shift(least=9), "batch_size": 8}, "take --batch-size 9 or more"),
        ({"protocol": Bypass}, "write protocol=Bypass\\("),
    ],
)
def test_impossible_plans(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny_plan(**changes)


def test_a_client_with_fewer_samples_than_the_guard_needs_is_refused():
    with pytest.raises(ValueError, match="client 0 has 4 samples"):
        LocalRun(tiny_plan(guard=Shift(least=5)), tiny_parts(private=4), classes=TASK.classes)


BUDGET = SplitFC(ratio=2, budget=0.27)
CUT = (4, 5, 5)
SMALL_ANSWERS = Compression(gradients=SplitFC(ratio=2, budget=4))  # 9 rows of what comes back are enough for it


@pytest.mark.parametrize(
    ("private", "changes", "words"),
    [
        (37, {"guard": BUDGET}, "client 0 has 37 samples, so with --batch-size 16 one message has 5 of them"),
        (32, {"guard": BUDGET, "micro_batches": 8}, "one message has 2 of them"),
        (32, {"guard": Chain(WCC(weight=0.1), BUDGET), "batch_size": 24}, "one message has 8 of them"),
        (37, {"compression": Compression(gradients=BUDGET)}, r"SplitFC\(.*\) needs"),
        (36, {"compression": SMALL_ANSWERS, "guard": KAnonymous(k=3), "batch_size": 12}, "has few rows: SplitFC"),
    ],
)
def test_a_message_too_small_for_a_budget_is_refused_before_training(private, changes, words):
    assert BUDGET.least_rows(CUT) == 9
    with pytest.raises(ValueError, match=words):
        LocalRun(tiny_plan(**{"batch_size": 16, **changes}), tiny_parts(private), classes=TASK.classes)


class Normalised(TinyNet):
    """The server's network normalises what has a single place."""

    def body(self, shape):
        return nn.Sequential(super().body(shape), nn.BatchNorm1d(7))


class NormalisedLinear(LinearNet):
    def body(self, shape):
        return nn.Sequential(super().body(shape), nn.BatchNorm1d(self.width))


def test_a_message_of_one_row_is_refused_where_the_server_normalises_over_rows():
    words = "--batch-size 5 and .* a message has a single row, .*: --batch-size 10"
    for net in (TinyNet(), Normalised()):
        plan = tiny_plan(net=net, guard=KAnonymous(k=5), batch_size=5)
        with pytest.raises(ValueError, match=words) if net != TinyNet() else nullcontext():
            LocalRun(plan, tiny_parts(20), classes=TASK.classes)


@dataclass(frozen=True, repr=False)
class NormalisedAtHome(LinearNet):
    """The client's network normalises what has a single place, before the cut or behind it."""

    before: bool = True

    def head(self, shape):
        return nn.Sequential(super().head(shape), *[nn.BatchNorm1d(self.width)] * self.before)

    def tail(self, shape, classes):
        return nn.Sequential(*[nn.BatchNorm1d(self.width)] * (not self.before), super().tail(shape, classes))


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Federated()], ids=repr)
@pytest.mark.parametrize("net", [NormalisedAtHome(), NormalisedAtHome(before=False), NormalisedLinear()], ids=repr)
def test_a_client_with_one_sample_is_refused_wherever_its_batch_is_normalised(net, protocol):
    """A larger batch would not help a client that has no second sample."""
    with pytest.raises(ValueError, match=r"client \d has 1 samples.* a single row.*: fewer clients, more data"):
        LocalRun(tiny_plan(net=net, protocol=protocol, clients=3), tiny_parts(private=4), classes=TASK.classes)
    run = LocalRun(tiny_plan(net=net, protocol=protocol, clients=2), tiny_parts(private=4), classes=TASK.classes)
    assert run.task == TASK


def test_the_least_rows_are_those_that_work():
    for budget in (0.01, 0.1, 0.4, 3):
        guard = SplitFC(budget=budget)
        least = guard.least_rows(CUT)
        guard.compress(torch.rand(least, *CUT))
        if least > 2:
            with pytest.raises(ValueError, match="too few for any column"):
                guard.compress(torch.rand(least - 1, *CUT))


def test_a_refusal_names_what_was_typed_and_not_the_servers_copy_of_it():
    typed = RateBottleneck(channels=3, stride=3, weight=0.25, coarse=3)
    with pytest.raises(ValueError) as error:
        LocalRun(tiny_plan(guard=Chain(LightSplit(ratio=4), typed)), tiny_parts(), classes=TASK.classes)
    assert repr(typed) in str(error.value) and repr(typed.public_part()) not in str(error.value)


# ------------------------------------------------------------------ some clients guarded, others not
@pytest.mark.parametrize("shared", [True, False])
def test_only_the_first_clients_are_guarded(shared):
    guard = WCC(weight=0.5) if shared else Shift()
    plan = tiny_plan(guard=guard, guarded_clients=1, clients=3, shared_client_network=shared, epochs=1, batch_size=8)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    assert [type(network.split.guard) is GuardModule for network in run.networks] == [False, True, True]
    assert run.train()
    assert len(run.evaluate(run.parts.test)) == 3, "guarded and unguarded clients may differ in accuracy"
    assert plan.guard_of(0) == guard and plan.guard_of(1) == NoGuard()


# ------------------------------------------------------------------ inference
def test_noise_at_inference_is_new_for_every_batch_and_the_same_when_repeated(monkeypatch):
    run = LocalRun(tiny_plan(guard=Shift(), epochs=0), tiny_parts(), classes=TASK.classes)
    monkeypatch.setattr("cutlayer.training.evaluation.EVALUATION_BATCH", 10)
    heard = []
    handle = run.server.handle
    run.networks[0].remote._send = lambda message: (heard.append(message["z"]), handle(message))[1]
    split = run.networks[0].split
    first, second = run.evaluate(run.parts.test), run.evaluate(run.parts.test)
    clean = split.eval().head(run.parts.test.x)
    added = [sent - z for sent, z in zip(heard, clean.split(10), strict=False)]
    assert first == second and len(heard) == 6
    assert all(torch.equal(a, b) for a, b in zip(heard[:3], heard[3:], strict=True))
    assert not torch.equal(added[0], added[1])


# ------------------------------------------------------------------ fitted to a finished network
@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
@pytest.mark.parametrize("clients", [1, 2])
def test_a_guard_is_fitted_to_the_network_of_another_run(protocol, clients):
    plan = tiny_plan(epochs=1, batch_size=8, protocol=protocol, clients=clients)
    finished = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    finished.train()
    fitted = replace(plan, guard=Shift(), frozen_parts=("head", "body", "tail"))
    run = LocalRun(fitted, tiny_parts(), classes=TASK.classes)
    run.start_from(finished)
    run.train()
    before, after = finished.network(), run.network()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert float(run.networks[0].split.guard.shift.detach()) != 0


@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
def test_a_finished_network_is_one_file_that_a_plan_starts_from(protocol, tmp_path):
    net, task = SimpleCNN(), Task((1, 28, 28), 3)
    parts = Parts(*(samples(count, seed, task) for seed, count in enumerate((24, 6, 6, 6))))
    run = LocalRun(tiny_plan(net=net, protocol=protocol, epochs=1), parts, classes=3)
    run.train()
    save_file(run.network(), tmp_path / "model.safetensors")
    head, body, tail = net.head(task.shape), net.body(task.shape), net.tail(task.shape, 3)
    load_weights(tmp_path / "model.safetensors", net, task.shape, 3, head=head, body=body, tail=tail)
    whole = nn.Sequential(head, body, tail).eval()
    if protocol != Bypass():  # there a part of the network has no place in the file: the home stream
        ours = predict(run.networks[0], [Batch(parts.test.x, parts.test.y)])
        torch.testing.assert_close(whole(parts.test.x), ours)
    assert all(torch.equal(t, run.networks[0].split.head.state_dict()[name]) for name, t in head.state_dict().items())


def test_clients_with_heads_of_their_own_have_no_one_network():
    assert LocalRun(tiny_plan(clients=2, shared_client_network=False), tiny_parts(), classes=3).network() is None


# ------------------------------------------------------------------ all guards in one audit
def test_every_guard_has_a_usual_setting_that_fits_the_demo():
    usual = every()
    others = {"Chain", "NoGuard", "JPEG", "HEVC", "DST", "Haar", "PCA"}
    assert {type(guard).__name__ for guard in usual} == set(names("guards")) - others
    task = Task((1, 28, 28), 10)
    assert {repr(guard): why for guard in usual if (why := why_unfit(Plan(), task, guard))} == {}


def test_an_audit_leaves_out_what_does_not_fit_and_says_why():
    loaded = Loaded(samples(120, 1), samples(30, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16)
    missing = Shift(attribute="gender")
    optional = [missing, LightSplit(ratio=4), Shift()]
    result = audit(AuditSpec(plan, attacks=[QUICK], optional_guards=optional, images=20), loaded)
    assert [row["guard"] for row in result.rows] == ["none", "LightSplit(ratio=4)", repr(Shift())]
    assert [row["fitted"] for row in result.rows] == [False, False, True]
    assert "gender" in result.as_dict()["left_out"][repr(missing)]
    none, _, fitted = result.rows
    assert fitted["accuracy"] == pytest.approx(none["accuracy"], abs=0.5) and fitted["valid"] == none["valid"]
    with pytest.raises(ValueError, match="gender"):
        audit(AuditSpec(plan, [missing], [QUICK], images=20), loaded)


def test_a_guard_that_fails_to_build_is_found_before_training():
    @dataclass(frozen=True, repr=False)
    class Broken(Guard):
        def build(self, shape, public, private, task=None):
            return GuardModule()

        def attach(self, optimizer, client):
            raise ValueError("not with this head")

    assert why_unfit(tiny_plan(), TASK, Broken()) == "not with this head"
    assert why_unfit(tiny_plan(), TASK, Chain(Bottleneck1x1(ratio=2), Broken())) == "not with this head"
