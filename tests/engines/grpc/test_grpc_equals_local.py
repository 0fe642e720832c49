"""Between machines a plan is the run that it is in one process: weights, validation and bytes, bit for bit."""

import gc
import threading
import weakref
from dataclasses import replace
from types import CodeType, FrameType, FunctionType, ModuleType

import pytest
import torch
from rehearsal import NAMES, Rehearsal, crossings, refuse_other_counts, refuse_other_weights, rehearse, undisturbed
from toys import GUARDS, SECRET, LinearNet, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.guard import GuardModule
from cutlayer.core.seeds import derive
from cutlayer.core.spec import names
from cutlayer.data import CIFAR10, Digits
from cutlayer.data.base import parts
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.deploy import own_parts
from cutlayer.engines.local.carrier import part_of
from cutlayer.guards import C3, DPSGD, LFQ, SEAL, WCC, Chain, Gate, Gaussian, KAnonymous, LightSplit, Noise, NoPeek
from cutlayer.nets import MLP
from cutlayer.nets.lora import LoRA
from cutlayer.rules import FedAdam, FedAvgM, FedMuon, FedProx, FedYogi, Median, Scaffold
from cutlayer.training.plan.lr_schedules import Cosine
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import Frozen, SendOnce
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla
from cutlayer.wire import frames as wire

PLAIN = SGD(lr=0.05, momentum=0.0)
GATE = Gate(numbers=6, bits=1, hidden=8, home=1.0)
ADAPTERS = LoRA(rank=2, at="query")
CHAIN = Chain(LightSplit(ratio=4), WCC(weight=0.17))


def plan(**changes) -> Plan:
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "clients": 3, **changes})


PLANS = {
    "U-shaped": plan(),
    "vanilla": plan(protocol=Vanilla()),
    "bypass": plan(protocol=Bypass()),
    "U-shaped, chain": plan(guard=CHAIN, local_steps=2),
    "vanilla, chain": plan(protocol=Vanilla(), guard=CHAIN),
    "bypass, chain": plan(protocol=Bypass(fusion="concat"), guard=CHAIN),
    "SEAL": plan(guard=Chain(SEAL(), LightSplit(ratio=4))),
    "noise, vanilla": plan(protocol=Vanilla(), guard=Noise(scale=0.1)),
    "noise after clipping, bypass": plan(protocol=Bypass(), guard=next(g for g in GUARDS if "Clip" in repr(g))),
    "rows shared by samples": plan(guard=KAnonymous(k=2)),
    "rows shared by samples, vanilla": plan(protocol=Vanilla(), guard=Chain(KAnonymous(k=2), Gaussian(scale=0.1))),
    "a guard at home that needs many samples": plan(guard=NoPeek()),
    "own heads": plan(shared_client_network=False, guard=CHAIN),
    "own heads, an epoch a turn": plan(shared_client_network=False, local_steps=0, epochs=3),
    "an epoch a turn": plan(local_steps=0, partition=Dirichlet(alpha=1.0)),
    "two batches a turn, Adam": plan(local_steps=2, client_optimizer=Adam(), server_optimizer=Adam()),
    "dropout, cosine": plan(net=TinyNet(dropout=0.5), schedule=Cosine(), epochs=3),
    "early stopping": plan(epochs=12, patience=2, val_share=0.2, client_optimizer=SGD(lr=0.5)),
    "early stopping, own heads": plan(
        epochs=12, patience=2, val_share=0.2, shared_client_network=False, client_optimizer=SGD(lr=0.5)
    ),
    "frozen head": plan(frozen_parts=("head",)),
    "frozen body": plan(frozen_parts=("body",), guard=CHAIN),
    "frozen client, vanilla": plan(frozen_parts=("head", "tail"), protocol=Vanilla()),
    "one of three guarded": plan(guarded_clients=1, guard=WCC(weight=0.17)),
    "two of three guarded, own heads": plan(guarded_clients=2, guard=Noise(scale=0.1), shared_client_network=False),
    "DP-SGD": plan(guard=DPSGD(), net=TinyNet(norm="group")),
    "a client of few samples": plan(partition=Dirichlet(alpha=0.05), batch_size=4),
    "one client": plan(clients=1, guard=CHAIN),
    "sent once": plan(guard=GATE, roles=SendOnce(home=1, split=1, views=1), epochs=4, clients=2),
    "sent once, vanilla, in pieces": plan(
        guard=GATE,
        roles=SendOnce(split=1, views=2),
        epochs=4,
        clients=2,
        protocol=Vanilla(),
        batch_size=8,
        micro_batches=2,
    ),
    "in pieces": plan(micro_batches=2, local_steps=2, guard=CHAIN),
    "in pieces, vanilla": plan(micro_batches=3, protocol=Vanilla()),
    "in pieces, own heads, bypass": plan(
        micro_batches=2, protocol=Bypass(), shared_client_network=False, client_optimizer=Adam()
    ),
    "SplitFed": plan(rounds=SplitFed(), local_steps=2, guard=CHAIN),
    "SplitFed, momentum at the server, vanilla": plan(
        rounds=SplitFed(), protocol=Vanilla(), rule=FedAvgM(), local_steps=0, client_optimizer=Adam()
    ),
    "SplitFed, one body": plan(rounds=SplitFed(version=2), rule=FedMuon(), protocol=Bypass()),
    "SplitFed, own heads": plan(rounds=SplitFed(), shared_client_network=False, local_steps=2),
    "SplitFed, drawn clients": plan(rounds=SplitFed(), clients_per_round=2, rule=FedAvgM(), epochs=3),
    "SplitFed, robust": plan(rounds=SplitFed(), rule=Median()),
    "SplitFed, a term at the clients": plan(rounds=SplitFed(), rule=FedProx(mu=0.3), local_steps=2),
    "SplitFed, early stopping": plan(
        rounds=SplitFed(), epochs=12, patience=2, val_share=0.2, client_optimizer=SGD(lr=0.5), rule=FedAdam(lr=0.1)
    ),
    "control variates": plan(
        rounds=SplitFed(version=2), rule=Scaffold(), client_optimizer=PLAIN, local_steps=2, epochs=3
    ),
    "a wave": plan(rounds=Wave(), guard=CHAIN),
    # Without dropout: clients of one process that learn at the same time share its one generator.
    "a wave, vanilla": plan(rounds=Wave(weights="even"), protocol=Vanilla()),
    "a wave, own heads": plan(rounds=Wave(), shared_client_network=False, client_optimizer=Adam()),
    "a fused wave": plan(rounds=Wave(fused=True), net=TinyNet(norm="group"), guard=LightSplit(ratio=4)),
    "a fused wave, vanilla": plan(
        rounds=Wave(fused=True), net=TinyNet(norm="group"), protocol=Vanilla(), partition=Dirichlet(alpha=1.0)
    ),
    "frozen clients": plan(roles=Frozen(share=0.4), protocol=Vanilla()),
    "frozen clients, U-shaped": plan(roles=Frozen(share=0.4), guard=CHAIN, local_steps=2),
    "frozen clients, heads of their own": plan(roles=Frozen(share=0.4, inherit=0), epochs=3),
    "frozen clients, now and then a new head": plan(roles=Frozen(share=0.4, inherit=3), epochs=3, micro_batches=2),
    "frozen clients change": plan(roles=Frozen(share=0.4, rotate=2), epochs=4),
    "frozen clients, left out": plan(roles=Frozen(share=0.4, discard=True)),
    "frozen clients in a wave": plan(roles=Frozen(share=0.4), rounds=Wave(), protocol=Vanilla()),
    "frozen clients, SplitFed": plan(roles=Frozen(share=0.4), rounds=SplitFed(), local_steps=2),
    "federated": plan(protocol=Federated(), rounds=SplitFed(), local_steps=2, rule=FedYogi(lr=0.1)),
    "federated, control variates": plan(
        protocol=Federated(), rounds=SplitFed(), rule=Scaffold(), client_optimizer=PLAIN, epochs=3
    ),
    "varied images": plan(data=CIFAR10(augment="crop+flip"), micro_batches=2),
    "a decoder copied": plan(guard=LFQ(bits=3, freq=4, levels="learned", scale="client")),
    "a decoder replaced, vanilla": plan(
        protocol=Vanilla(), guard=Chain(LFQ(bits=3, freq=4, decoder="client", pre=3), WCC(weight=0.001))
    ),
    "ahead, vanilla, one client": plan(rounds=Relay(ahead=1), local_steps=0, protocol=Vanilla(), clients=1),
    "ahead, chain": plan(rounds=Relay(ahead=1), local_steps=0, guard=CHAIN, client_optimizer=Adam()),
    "ahead, bypass, own heads": plan(
        rounds=Relay(ahead=1), local_steps=2, protocol=Bypass(), guard=Noise(scale=0.1), shared_client_network=False
    ),
    "ahead, SplitFed": plan(rounds=SplitFed(ahead=1), local_steps=3, guard=CHAIN, rule=FedAvgM()),
}


# What trains over what does not: one of these, too.
ADAPTED = {
    "frozen clients, vanilla, a frozen head": plan(
        roles=Frozen(share=0.4), protocol=Vanilla(), frozen_parts=("head",), rounds=SplitFed()
    ),
    "adapters, relay": plan(net=LinearNet(), adapters=ADAPTERS, client_optimizer=Adam()),
    "adapters, SplitFed, frozen clients": plan(
        net=LinearNet(), adapters=ADAPTERS, rounds=SplitFed(), roles=Frozen(share=0.4), rule=FedMuon()
    ),
    "adapters, relay, own heads": plan(net=LinearNet(), adapters=ADAPTERS, shared_client_network=False),
    "adapters of unequal ranks": plan(
        net=LinearNet(), adapters=LoRA(rank=(1, 3), at="query"), rounds=SplitFed(), local_steps=2
    ),
    "adapters, federated": plan(net=LinearNet(), adapters=ADAPTERS, protocol=Federated(), rounds=SplitFed()),
}
ALWAYS = "adapters, SplitFed, frozen clients"


# Every third one; the campaign has them all.
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, marks=() if place % 3 == 0 else pytest.mark.campaign, id=name)
        for place, (name, plan) in enumerate(PLANS.items())
    ]
    + [
        pytest.param(plan, marks=() if name == ALWAYS else pytest.mark.campaign, id=name)
        for name, plan in ADAPTED.items()
    ],
)
def test_over_sockets_as_in_one_process(plan, tmp_path):
    check(plan, tmp_path)


def test_samples_that_share_a_row_over_sockets(tmp_path):
    """More rows come back than left."""
    check(plan(guard=C3(ratio=2), protocol=Vanilla()), tmp_path)


def test_the_best_epoch_is_gone_back_to_also_where_the_server_learns_nothing(tmp_path):
    """It then keeps no tensor of that epoch, and the clients' best weights are theirs alone."""
    stopping = {"epochs": 12, "patience": 2, "val_share": 0.2, "client_optimizer": SGD(lr=0.5)}
    stopped = plan(shared_client_network=False, frozen_parts=("body",), clients=2, **stopping)
    check(stopped, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
@pytest.mark.parametrize("guard", GUARDS, ids=repr)
def test_every_guard_over_sockets_as_in_one_process(guard, protocol, tmp_path):
    check(plan(guard=guard, protocol=protocol), tmp_path)


def check(plan, tmp_path):
    """One run in this process, one over sockets: nothing tells them apart."""
    local = undisturbed(plan)
    run = rehearse(plan, tmp_path, names=NAMES[: plan.clients])
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    result = run.results["server"]
    assert result["exact"] and result["rewinds"] == 0 and result["skipped"] == [] and result["refused"] == {}
    assert result["best_epoch"] == local.progress.best.epoch and run.host.used == local.carrier.evaluate("test")
    _refuse_other_client_ledgers(local, run)
    _refuse_other_losses(local, run)


def _refuse_other_client_ledgers(local, run):
    """What the clients counted is together what one process counts."""
    total: dict = {}
    for site in run.sites.values():
        for key, (messages, size) in crossings(site.ledger.as_dict(), ("FORWARD", "BACKWARD", "LOSS")).items():
            before = total.get(key, (0, 0))
            total[key] = (before[0] + messages, before[1] + size)
    assert total == crossings(local.ledger.as_dict(), ("FORWARD", "BACKWARD", "LOSS"))
    trained = sum(site.ledger.samples["training"] for site in run.sites.values())
    assert trained == local.ledger.samples["training"]


def _refuse_other_losses(local, run):
    """Each client keeps its own losses; over all batches of an epoch they are the losses of one process."""
    for number, row in enumerate(local.progress.history, 1):
        total = count = 0.0
        name = "task" if "task" in row else "Gate at home"  # without the server there is no other loss
        for site in run.sites.values():
            for theirs in (one for one in site.rows if one["epoch"] == number):
                turns = (turn for one in local.timetable.rounds(number - 1) for turn in one)
                batches = sum(turn.last - turn.first for turn in turns if turn.client == site.party.number)
                total, count = total + theirs[name] * batches, count + batches
        assert total / count == pytest.approx(row[name], rel=1e-6)


def test_the_table_holds_what_it_says():
    """Early stopping stops early and not at its best, a client has less than a batch, all protocols are there."""
    for name in ("early stopping", "early stopping, own heads"):
        local = undisturbed(PLANS[name])
        assert local.progress.epoch < PLANS[name].epochs and 0 < local.progress.best.epoch < local.progress.epoch
    parts = tiny_parts()
    skewed = PLANS["a client of few samples"]
    shares = skewed.partition.assign(parts.private, 3, derive(skewed.seed, "partition"))
    assert min(len(one) for one in shares) < skewed.batch_size < max(len(one) for one in shares)
    together = {one for one in names("protocols").values() if one.learns_together}
    assert {type(one.protocol) for one in PLANS.values()} == together


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities") / "certs"
    certs.make(folder, ["localhost", "127.0.0.1"], list(NAMES))
    return folder


@pytest.mark.parametrize("name", ["U-shaped, chain", "vanilla", "bypass, chain"])
def test_with_certificates_as_without(name, identities, tmp_path):
    local = undisturbed(PLANS[name])
    run = rehearse(PLANS[name], tmp_path, identities=identities)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_nobody_builds_the_other_side(protocol, tmp_path, monkeypatch):
    """Shapes may be asked of any part; what is built to compute with stays on its own side."""
    used: list[tuple[str, str]] = []

    def spied(part, build):
        def building(self, *args):
            module = build(self, *args)
            who = threading.current_thread().name
            module.register_forward_pre_hook(
                lambda module, seen: used.append((part, who)) if seen[0].device.type != "meta" else None
            )
            kept.append((part, who, weakref.ref(module)))
            return module

        return building

    kept: list = []
    for part in ("head", "body", "tail"):
        monkeypatch.setattr(TinyNet, part, spied(part, getattr(TinyNet, part)))
    run = Rehearsal(plan(protocol=protocol, guard=CHAIN), tmp_path)
    for name in NAMES:
        run.join(name).name = name
    run.serve().name = "server"
    run.end()
    gc.collect()
    at_server = {part for part, who, module in kept if who == "server" and module() is not None}
    at_clients = {part for part, who, module in kept if who in NAMES and module() is not None}
    classifier = {"tail"} if protocol == Vanilla() else set()
    assert at_server == {"body"} | classifier
    assert at_clients == {"head"} | ({"tail"} - classifier)
    assert {(part, who == "server") for part, who in used} == {(p, True) for p in at_server} | {
        (p, False) for p in at_clients
    }


def test_the_server_holds_no_secret_of_a_client(tmp_path):
    """In every object that hangs on the service, in its folder, and in all that it was sent."""
    heard = []
    wcc = 0.17171
    guard = Chain(SEAL(), LightSplit(ratio=4), WCC(weight=wcc))
    chosen = plan(guard=guard, shared_client_network=False)
    run = rehearse(chosen, tmp_path, watchers=(lambda message, handle: (heard.append(message), handle(message))[1],))
    own = [derive(SECRET, "client", number) for number in range(3)]
    secrets = {SECRET, *own, *(derive(one, "guard") for one in own), *(derive(SECRET, "start", n) for n in range(3))}
    numbers, floats, modules = set(), set(), []
    for found in everything_in([run.service, heard]):
        if isinstance(found, int) and not isinstance(found, bool):
            numbers.add(found)
        elif isinstance(found, float):
            floats.add(found)
        elif isinstance(found, GuardModule | WCC):
            modules.append(found)
    assert {message.step for message in heard} <= numbers and run.service.admission.limits.quiet in floats
    assert not secrets & numbers and wcc not in floats and modules == []
    written = b"".join(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    frames = b"".join(bytes(wire.encode(message)) for message in heard)
    for secret in secrets:
        for form in (secret.to_bytes(8, "little"), secret.to_bytes(8, "big"), str(secret).encode()):
            assert form not in written and form not in frames
    assert b"WCC" not in written and str(wcc).encode() not in written
    # The same search finds them where they are.
    theirs = {found for found in everything_in([run.sites["ward-b"]]) if isinstance(found, int | float)}
    assert {SECRET, wcc} <= theirs


def everything_in(roots):
    """All objects that can be reached, short of modules of code and the threads' own machinery."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, ModuleType | type | CodeType | FrameType | threading.Thread):
            continue
        if isinstance(found, FunctionType):  # its globals are code; what it closes over is not
            waiting.extend([*(found.__closure__ or ()), *(found.__defaults__ or ())])
            continue
        seen.add(id(found))
        yield found
        waiting.extend(gc.get_referents(found))


def test_many_heads_of_their_own_are_judged_on_what_they_are_judged_on_in_one_process():
    """Beyond 32 each has an even part of what is held out: on all of it another epoch may be the best one."""
    many = Plan(data=Digits(limit=400), net=MLP(), clients=40, shared_client_network=False, private_seed=SECRET)
    whole = parts(many.data.load(), aux=many.aux_samples, val=many.val_share, seed=many.seed)
    for plan in (many, replace(many, clients=4), replace(many, shared_client_network=True)):
        _, own = own_parts(plan, 3, None, None)
        for ours, theirs in ((own.val, whole.val), (own.test, whole.test)):
            part = part_of(theirs, 3, plan, plan.shared_client_network)
            assert torch.equal(ours.x, part.x) and torch.equal(ours.y, part.y)
            assert (len(ours) < len(theirs)) == (plan is many)
