"""LoRA over a frozen base: split is unsplit, only adapters travel, and names that are no layer's are refused."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from fleet import PLAIN, refuse_other_end, same
from masked import TEXTS, batches, text_parts
from test_split_equals_whole import learn_whole
from torch import nn
from toys import split_and_whole, states, tiny_plan

from cutlayer.audit.passes import one_pass
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind
from cutlayer.core.spec import spec
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, LightSplit
from cutlayer.nets.lora import AdaptedLinear, LoRA
from cutlayer.nets.text_encoder import TextEncoder
from cutlayer.rules import (
    DiLoCo,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMuon,
    FedProx,
    FedYogi,
    Krum,
    Latest,
    Median,
    Rollback,
    Scaffold,
    TrimmedMean,
    Update,
)
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.memory import breakdown
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import learn, load, predict
from cutlayer.training.unequal_ranks import narrowed, started, widened

RANK_2 = LoRA(rank=2)
NET = TextEncoder(layers=3, width=8, heads=2, at=1, vocabulary=TEXTS.vocabulary, pad="mask")


def plan(**changes):
    return tiny_plan(**{"net": NET, "adapters": RANK_2, "clients": 3, "batch_size": 6, "epochs": 2, **changes})


def run_of(one):
    return LocalRun(one, text_parts(24), classes=TEXTS.classes)


def adapters(module):
    return {name for name, _ in module.named_parameters() if name.rpartition(".")[2] in ("down", "up")}


@pytest.mark.parametrize("side", ["client", "server", "both"])
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass(), Federated()], ids=repr)
def test_split_is_unsplit_and_the_base_stands_still(protocol, side):
    if not protocol.crosses and side == "server":
        with pytest.raises(ValueError, match="no part is the server's: take side='client'"):
            plan(protocol=protocol, adapters=replace(RANK_2, side=side))
        return
    one = plan(protocol=protocol, adapters=replace(RANK_2, side=side))
    client, server, twin, twin_server = split_and_whole(one, TEXTS)
    start = {name: t.clone() for name, t in states(client, server).items()}
    for batch in batches(3):
        learn(client, batch)
        learn_whole(twin, twin_server, batch)
    ours, theirs = states(client, server), states(twin, twin_server)
    same(ours, theirs)
    moved = {name for name in ours if not torch.equal(ours[name], start[name])}
    parts = {name.split(".")[1] for name in moved if name.endswith((".down", ".up"))}
    there = {"client": {"head"}, "server": {"body"}, "both": {"head", "body"}}[side]
    assert parts == (there if protocol.crosses else {"head"})
    others = {name for name in moved if not name.endswith((".down", ".up"))}
    assert others and all(name.split(".")[1] in ("tail", "rejoin") for name in others)


def test_at_first_an_adapter_adds_nothing_and_then_it_does():
    base = nn.Linear(6, 4)
    adapted, x = AdaptedLinear(base, rank=2, scale=8.0, seed=1), torch.randn(5, 6)
    assert torch.equal(adapted(x), base(x))
    adapted(x).sum().backward()
    assert base.weight.grad is None and not adapted.down.grad.any() and adapted.up.grad.any()
    with torch.no_grad():
        adapted.up.normal_()
    torch.testing.assert_close(adapted(x) - base(x), 8 * x @ (adapted.up @ adapted.down).T)


def test_the_base_keeps_the_names_that_files_have():
    bare, adapted = (build_client(one, TEXTS, 0, lambda m: m).split for one in (plan(adapters=None), plan()))
    assert set(adapted.state_dict()) - set(bare.state_dict()) == adapters(adapted)
    assert set(bare.state_dict()) <= set(adapted.state_dict())
    assert len(adapters(adapted)) == 4, "query and value of the client's one block"


SCHEDULES = {
    "relay, Adam": {"client_optimizer": Adam(), "server_optimizer": Adam()},
    "SplitFed": {"rounds": SplitFed(), "local_steps": 2, "epochs": 3},
    "SplitFed, FedMuon": {"rounds": SplitFed(version=2), "rule": FedMuon()},
    "SplitFed, robust": {"rounds": SplitFed(), "rule": Median()},
    "control variates": {"rounds": SplitFed(version=2), "rule": Scaffold(), "client_optimizer": PLAIN},
    "a fused wave": {"rounds": Wave(fused=True)},
    "frozen clients": {"roles": Frozen(share=0.4)},
    "own heads": {"shared_client_network": False},
    "federated, FedMuon": {"protocol": Federated(), "rounds": SplitFed(), "rule": FedMuon()},
    "unequal ranks": {"adapters": LoRA(rank=(1, 3)), "rounds": SplitFed()},
    "the server's alone": {"adapters": LoRA(rank=2, side="server"), "frozen_parts": ("tail",)},
}


SELDOM = ("SplitFed", "SplitFed, robust", "a fused wave", "federated, FedMuon")
marked = [
    pytest.param(changes, id=name, marks=pytest.mark.campaign if name in SELDOM else ())
    for name, changes in SCHEDULES.items()
]

# Every rule with every way of sharing a round; here, all of the campaign's.
ROUNDS = (SplitFed(), SplitFed(version=2), SplitFed(fresh=True), Wave())
OTHERS = (
    FedAvgM(), FedAdagrad(lr=0.1), FedAdam(lr=0.1), FedYogi(lr=0.1), DiLoCo(lr=0.3), FedMuon(), FedProx(mu=0.1),
    Median(), TrimmedMean(share=0.4), Krum(), Rollback(), Scaffold(),
)  # fmt: skip
LEAST = {Median: 3, TrimmedMean: 3, Rollback: 3, Krum: 5}  # clients that learn in a round
OWN_BODIES = (
    "Scaffold() remembers something of every client, and clients' bodies are the server's: take "
    "rounds=SplitFed(version=2), or protocol=Federated()"
)


def refused(rule, rounds, learning):
    """The sentence that meets a rule in such rounds; none where it trains."""
    least = LEAST.get(type(rule), 1)
    if learning < least:
        return f"{rule!r} needs {least} clients in a round to keep its promise; there are {learning}"
    return OWN_BODIES if isinstance(rule, Scaffold) and rounds in (SplitFed(), SplitFed(fresh=True)) else None


def pairs():
    """(the plan's changes, its name, with which words it is refused); rules that count heads among more clients."""
    for rule, rounds, frozen in product(OTHERS, ROUNDS, (False, True)):
        for clients in (3, 5) if type(rule) in LEAST else (3,):
            learning = {3: 2, 5: 3}[clients] if frozen else clients
            changes = {"rule": rule, "rounds": rounds, "clients": clients, "epochs": 2 if clients == 3 else 3}
            changes |= {"client_optimizer": PLAIN} if isinstance(rule, Scaffold) else {}
            changes |= {"roles": Frozen(share=0.4)} if frozen else {}
            yield changes, f"{rule}, {rounds}, {learning} of {clients}", refused(rule, rounds, learning)


paired = [pytest.param(one, id=name, marks=pytest.mark.campaign) for one, name, words in pairs() if words is None]


def test_rules_that_do_not_go_with_rounds_are_refused_with_adapters_as_without():
    met = {"trained": 0, "refused": 0}
    for changes, name, words in pairs():
        met["refused" if words else "trained"] += 1
        for worn in (RANK_2, None):
            try:
                plan(**changes, adapters=worn)
                said = None
            except ValueError as why:
                said = str(why)
            assert said == words, name
    assert met == {"trained": 100, "refused": 28}


@pytest.mark.parametrize("changes", [*marked, *paired])
def test_only_adapters_and_the_tail_travel_and_a_resumed_run_is_the_same(changes):
    one, heard = plan(**changes), []
    run = run_of(one)
    start = {name: t.clone() for name, t in run.server.body.state_dict().items()}
    note = run.ledger.note
    run.ledger.note = lambda message, *given: (heard.append(message), note(message, *given))[1]
    kept = refuse_other_end(run, lambda: run_of(one))
    learnt = {name for name, p in run.networks[0].split.named_parameters() if p.requires_grad}
    assert all("tail" in name or name.endswith((".down", ".up")) for name in learnt)
    handed = [message for message in heard if message.kind is Kind.WEIGHTS]
    assert bool(handed) == one.shared_client_network
    for message in handed:
        names = {name.removeprefix("net.") for name in message.tensors if name.startswith("net.")}
        assert names in (learnt, set())
    weights = {name for name in kept if "words" in name or name.endswith((".weight", ".bias"))}
    assert all("tail" in name for name in weights), "a base is in no snapshot"
    if one.protocol.crosses:
        ended = run.server.body.state_dict()
        moved = {name for name in ended if not torch.equal(ended[name], start[name])}
        assert moved and all(name.endswith((".down", ".up")) for name in moved)


# With one client these merges give back its own weights: SCAFFOLD's two controls are the same, and FedProx pulls to
# where a round's one step began. A wave by rows would multiply the gradient by them and divide again, which rounds.
ONE_S_OWN = (FedAvg(), FedAvgM(lr=1.0, momentum=0.0), DiLoCo(lr=1.0, momentum=0.0), FedProx(mu=0.1), Scaffold())
SHARED = (SplitFed(version=2), SplitFed(), SplitFed(fresh=True), Wave(weights="even"))
ALWAYS = (UShaped(), SplitFed(version=2))
single = [
    pytest.param(protocol, rule, rounds, marks=() if (protocol, rounds) == ALWAYS else pytest.mark.campaign)
    for protocol, rule, rounds in product((UShaped(), Vanilla(), Bypass(), Federated()), ONE_S_OWN, SHARED)
    if not protocol.crosses or refused(rule, rounds, 1) is None
]


@pytest.mark.parametrize(
    ("protocol", "rule", "rounds"), [*single, pytest.param(UShaped(), Latest(), Relay())], ids=repr
)
def test_one_client_s_rounds_are_unsplit_training_whatever_merges_them(protocol, rule, rounds):
    plain = isinstance(rule, Scaffold) or rounds == SplitFed(fresh=True)
    changes = {"protocol": protocol, "rule": rule, "rounds": rounds, "client_optimizer": PLAIN if plain else Adam()}
    one = plan(clients=1, server_optimizer=PLAIN if plain else Adam(), **changes)
    run = run_of(one)
    client, server, twin, twin_server = split_and_whole(one, TEXTS)
    start = {name: t.clone() for name, t in states(client, server).items()}
    party = run.clients[0]
    order = [index for epoch in range(one.epochs) for index in party.order(epoch)]
    for batch in [party.batch(index, later) for later, index in enumerate(order)]:
        learn_whole(twin, twin_server, batch)
    assert run.train() and run.progress.step == len(order)
    ours, theirs = states(run.newest(0), run.server), states(twin, twin_server)
    same(ours, theirs)
    moved = {name.split(".")[1] for name in ours if not torch.equal(ours[name], start[name])}
    assert {"head", "tail"} <= moved and ("body" in moved or not protocol.crosses)


def test_bytes_of_a_hand_on_are_those_of_what_trains():
    run = run_of(plan(client_optimizer=PLAIN))
    run.train()
    parameters = run.networks[0].split.named_parameters()
    tensors = [p for _, p in parameters if p.requires_grad]
    each = run.ledger.bytes["WEIGHTS", "up"] / run.ledger.messages["WEIGHTS", "up"]
    learnt = sum(4 * tensor.numel() for tensor in tensors)
    whole = sum(4 * p.numel() for p in run.networks[0].split.parameters())
    # A frame names its tensors and pads them; how much that takes hangs on how many there are, not on the base.
    assert learnt < each < learnt + 110 * (len(tensors) + 1) < whole


def test_with_a_guard_and_with_dp_sgd():
    for guard in (LightSplit(ratio=4), DPSGD(clip=0.5, noise=0.1)):
        client, server, twin, twin_server = split_and_whole(plan(guard=guard), TEXTS)
        for batch in batches(2):
            learn(client, batch)
            learn_whole(twin, twin_server, batch)
        same(states(client, server), states(twin, twin_server))


def test_the_layers_named_whole_train_with_the_adapters():
    server = build_server(plan(adapters=replace(RANK_2, whole="norm")).public(), TEXTS)
    learnt = {name for name, p in server.body.named_parameters() if p.requires_grad}
    assert learnt == adapters(server.body) | {"body.norm.weight", "body.norm.bias"}


def test_a_client_needs_no_gradients_of_the_base():
    found = {name: breakdown(one, TEXTS)["active"] for name, one in {
        "all": plan(adapters=None), "adapters": plan(), "server": plan(adapters=replace(RANK_2, side="server"))
    }.items()}  # fmt: skip
    split = build_client(plan(), TEXTS, 0, lambda message: message).split
    assert found["adapters"]["gradients"] == sum(4 * p.numel() for p in split.parameters() if p.requires_grad)
    for purpose in ("gradients", "optimizer"):
        assert found["server"][purpose] < found["adapters"][purpose] < found["all"][purpose] / 3
    assert found["server"]["activations"] < found["adapters"]["activations"], "a frozen head keeps nothing"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (LoRA(at="query,valeu"), "no layer of the head and body is called 'valeu'; did you mean 'value'"),
        (LoRA(at="nothing"), "its linear layers end in 'query', 'key', 'value', 'output'"),
        (LoRA(at="words.table", rank=1), "is a Embedding, and adapters sit on linear layers"),
        (LoRA(rank=9), "is 8 x 8, so rank is at most 8 there"),
    ],
)
def test_adapters_that_fit_no_layer_are_refused_before_training(one, words):
    with pytest.raises(ValueError, match=words) as refused:
        cut_shapes(plan(adapters=one), TEXTS)
    assert "\n" not in str(refused.value)


def test_attention_that_reads_its_layers_weights_is_refused():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    for at in ("linear1", "out_proj"):
        with pytest.raises(ValueError, match="would pass the adapter by"):
            LoRA(rank=2, at=at).refuse_unfit({"body": nn.Sequential(layer)})


@pytest.mark.parametrize("typed", ["rank=0", "rank=1.5", "side='nobody'", "alpha=0", "at=''"])
def test_what_is_no_adapter_is_refused(typed):
    with pytest.raises(ValueError, match="LoRA"):
        spec(f"LoRA({typed})", "adapters")


# -------------------------------------------------------------------------------------- unequal ranks
UNEQUAL = {"adapters": LoRA(rank=(1, 3)), "rounds": SplitFed(version=2), "clients": 2, "client_optimizer": PLAIN}


def test_each_client_is_sent_adapters_of_its_own_rank():
    run, heard = run_of(plan(**UNEQUAL)), []
    note = run.ledger.note
    run.ledger.note = lambda message, *given: (heard.append(message), note(message, *given))[1]
    run.train()
    ranks = {client: set() for client in (0, 1)}
    for message in heard:
        for name, tensor in message.tensors.items():
            if name.endswith((".down", ".up")):
                ranks[message.client].add(min(tensor.shape))
    assert ranks == {0: {1}, 1: {3}}
    assert {min(t.shape) for n, t in run.coordinator.shared.items() if n.endswith((".down", ".up"))} == {3}
    assert len(run.progress.history[-1]) and len(run.evaluate(run.parts.test)) == 2, "each has a network of its own"


def test_what_a_client_lacks_counts_as_unchanged():
    one = plan(**UNEQUAL)
    whole = {"net.a.down": torch.zeros(3, 4), "net.a.up": torch.zeros(5, 3), "net.tail.weight": torch.zeros(2, 2)}
    few = narrowed(one, 0, whole)
    assert {name: tuple(t.shape) for name, t in few.items()} == {
        "net.a.down": (1, 4), "net.a.up": (5, 1), "net.tail.weight": (2, 2)
    }  # fmt: skip
    assert all(torch.equal(t, whole[name]) for name, t in narrowed(one, 1, whole).items())
    brought = [{name: torch.ones_like(t) for name, t in narrowed(one, client, whole).items()} for client in (0, 1)]
    updates = [Update(widened(one, client, state, whole), 4) for client, state in enumerate(brought)]
    merged = FedAvg()(whole, updates)
    assert merged["net.a.down"].tolist() == [[1.0] * 4, [0.5] * 4, [0.5] * 4]
    assert merged["net.a.up"].tolist() == [[1.0, 0.5, 0.5]] * 5
    misfit = {"net.a.down": torch.ones(2, 4)}
    assert widened(one, 0, misfit, whole)["net.a.down"].shape == (2, 4), (
        "another rank than its own is left to `sound`"
    )


def test_whoever_reads_a_finished_run_has_each_client_s_own_rank():
    run = run_of(plan(**UNEQUAL | {"epochs": 1}))
    run.train()
    other = run_of(plan(**UNEQUAL))
    other.start_from(run)
    for client, rank in ((0, 1), (1, 3)):
        victim = Victim(run, images=4, client=client)
        found = [layer for layer in victim.network.split.modules() if isinstance(layer, AdaptedLinear)]
        assert {len(layer.down) for layer in found} == {rank}
        same(other.networks[client].split.head.state_dict(), victim.network.split.head.state_dict())
        assert one_pass(run, 0, 4, client).told.messages
    with pytest.raises(RuntimeError, match="size mismatch"):
        load(run.networks[0], run.coordinator.shared)  # nobody cuts adapters silently


def test_rows_that_the_first_client_lacks_can_learn():
    """With both factors at zero no gradient would ever come."""
    start = started(plan(**UNEQUAL), {"net.a.down": torch.ones(1, 4), "net.a.up": torch.zeros(5, 1)})
    assert start["net.a.down"].shape == (3, 4) and torch.equal(start["net.a.down"][0], torch.ones(4))
    assert start["net.a.down"][1:].abs().min() > 0 and not start["net.a.up"].any()


def test_unequal_ranks_need_rounds_that_merge():
    with pytest.raises(ValueError, match=r"take rounds=SplitFed\(\)"):
        plan(**UNEQUAL | {"rounds": Relay()})
    with pytest.raises(ValueError, match="take another rule"):
        plan(**UNEQUAL | {"rule": Scaffold()})
    assert not plan(**UNEQUAL | {"rounds": Relay(), "shared_client_network": False}).unequal_ranks


def test_the_network_that_is_written_needs_no_adapters():
    run = run_of(plan(**UNEQUAL | {"epochs": 1}))
    run.train()
    written = run.network()
    bare = run_of(plan(adapters=None, clients=1))
    assert written.keys() == bare.network().keys()
    adapted = run.networks[1]
    load(adapted, run.coordinator.shared)
    (batch,) = batches(1)
    parts = {name: {} for name in ("head", "body", "tail")}
    for name, tensor in written.items():
        parts[name.partition(".")[0]][name.partition(".")[2]] = tensor
    bare.networks[0].split.head.load_state_dict(parts["head"])
    bare.networks[0].split.tail.load_state_dict(parts["tail"])
    bare.server.body.body.load_state_dict(parts["body"])
    torch.testing.assert_close(predict(bare.networks[0], [batch]), predict(adapted, [batch]), rtol=1e-4, atol=1e-6)
