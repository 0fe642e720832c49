"""DP-SGD on the client: per-sample gradients against a loop and Opacus, clipping, noise, and what is refused."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from test_split_equals_whole import check
from torch import nn
from torch.nn.functional import cross_entropy
from toys import TASK, Here, TinyNet, batches, split_and_whole, tiny_parts, tiny_plan

from cutlayer.audit.victim import WhiteBox
from cutlayer.core.batch import Batch
from cutlayer.core.seeds import derive
from cutlayer.core.spec import spec
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, WCC, Bottleneck1x1, Chain, Clip, Gaussian, KAnonymous, LightSplit
from cutlayer.guards.dpsgd import PerSample, Use, clipped_sum, per_sample_gradients, units
from cutlayer.training.build import build_client
from cutlayer.training.facts.memory import client_memory
from cutlayer.training.facts.sides import sides
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn, predict

NET = TinyNet(norm="group")
PROTOCOLS = [Vanilla(), UShaped(), Bypass()]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)


def plan_with(guard, **changes):
    return tiny_plan(**{"net": NET, "guard": guard, **changes})


def gradients_of(plan, feed):
    """The client's gradients as the optimizer gets them, and the client."""
    client, *_ = split_and_whole(plan)
    got = {}

    def see(optimizer, args, kwargs):
        got.update({name: p.grad.clone() for name, p in client.split.named_parameters() if p.grad is not None})

    client.optimizer.register_step_pre_hook(see)  # after the guard's own
    learn(client, feed)
    return got, client


# ------------------------------------------------------------------ the laws of every guard
@pytest.mark.one_in(3)
@pytest.mark.parametrize("frozen", [(), ("head",), ("body",)], ids=lambda frozen: "+".join(frozen) or "all-train")
@pytest.mark.parametrize(
    "guard",
    [
        DPSGD(),
        DPSGD(clip=0.1, noise=0.0),
        Chain(LightSplit(ratio=2), Clip(), Gaussian(epsilon=8), DPSGD()),
        Chain(KAnonymous(k=2), DPSGD()),
        Chain(WCC(weight=0.1), DPSGD()),
    ],
    ids=repr,
)
@protocols
def test_split_is_whole(protocol, guard, frozen):
    if protocol == Vanilla() and "head" in frozen:
        pytest.skip("the client has nothing to learn")
    check(plan_with(guard, protocol=protocol, frozen_parts=frozen), steps=4)


@pytest.mark.usefixtures("double")
@protocols
def test_split_is_whole_in_float64(protocol):
    check(plan_with(DPSGD(), protocol=protocol), steps=4)


def test_its_text_is_itself_and_the_server_is_not_told():
    guard = DPSGD(clip=0.5, noise=2.0)
    assert spec(repr(guard), "guards") == guard
    assert repr(Chain(LightSplit(ratio=4), guard).public_part()) == "LightSplit(ratio=4)"
    assert guard.claim((4, 5, 5)).startswith("none")


def test_what_leaves_is_not_touched():
    z = torch.randn(6, 4, 5, 5)
    assert torch.equal(DPSGD().build((4, 5, 5), 1, 2)(z, batches(1)[0]).seen, z)


# ------------------------------------------------------------------ per-sample gradients
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_they_are_those_of_opacus():
    torch.manual_seed(0)
    head = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))
    x, y = torch.randn(7, 2, 8, 8), torch.arange(7) % 5
    from opacus import GradSampleModule  # seconds, of who needs it

    theirs = GradSampleModule(copy.deepcopy(head), loss_reduction="mean")
    cross_entropy(theirs(x), y).backward()

    watcher = PerSample(private=1)
    for unit in units(head):
        unit.register_forward_hook(watcher.watch, with_kwargs=True)
    watcher(x, Batch(x, y))
    cross_entropy(head(x), y).backward()
    ours = watcher.gradients()
    for name, p in head.named_parameters():
        expected = dict(theirs._module.named_parameters())[name].grad_sample
        torch.testing.assert_close(ours[p], expected, rtol=1e-4, atol=1e-6)


@protocols
@pytest.mark.usefixtures("double")
def test_clipping_is_that_of_a_loop_over_the_samples(protocol):
    """One sample at a time through the whole network, clipped jointly over head, tail and rejoin."""
    clip, batch = 0.2, batches(1)[0]
    got, _ = gradients_of(plan_with(DPSGD(clip=clip, noise=0.0), protocol=protocol), batch)
    _, _, twin, twin_server = split_and_whole(plan_with(DPSGD(clip=clip, noise=0.0), protocol=protocol))
    twin.split.train(), twin_server.body.train()
    names = [name for name, p in twin.split.named_parameters() if p.requires_grad]
    weights = [twin.split.get_parameter(name) for name in names]
    total, cut = [torch.zeros_like(p) for p in weights], 0
    for n in range(len(batch)):
        alone = Batch(batch.x[n : n + 1], batch.y[n : n + 1])
        own = torch.autograd.grad(twin.split.loss(alone, Here(twin_server.body)), weights)
        length = torch.cat([g.flatten() for g in own]).norm()
        cut += bool(length > clip)
        total = [t + g * min(1.0, clip / float(length)) for t, g in zip(total, own, strict=True)]
    assert cut, "nothing was clipped: the test would be empty"
    for name, expected in zip(names, total, strict=True):
        torch.testing.assert_close(got[name], expected / len(batch), rtol=1e-9, atol=1e-12)


@protocols
@pytest.mark.parametrize("frozen", [(), ("head",)], ids=str)
@pytest.mark.parametrize("extra", [None, KAnonymous(k=2), WCC(weight=0.1)], ids=repr)
def test_without_clip_and_noise_it_is_plain_training(protocol, frozen, extra):
    if protocol == Vanilla() and frozen:
        pytest.skip("the client has nothing to learn")
    off = DPSGD(clip=1e9, noise=0.0)
    clients = []
    for guard in (off, None) if extra is None else (Chain(extra, off), Chain(extra)):
        changes = {} if guard is None else {"guard": guard}
        client, *_ = split_and_whole(tiny_plan(net=NET, protocol=protocol, frozen_parts=frozen, **changes))
        for batch in batches(3):
            learn(client, batch)
        clients.append(client)
    for (name, ours), (_, plain) in zip(*(c.split.named_parameters() for c in clients), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6, msg=name)


def test_the_sum_is_never_moved_by_more_than_twice_the_clip():
    torch.manual_seed(0)
    for size in (1e-3, 1.0, 1e6):
        each = [size * torch.randn(5, 3, 2), size * torch.randn(5, 4)]
        other = [t.clone() for t in each]
        for t in other:
            t[2] = -10 * t[2]
        one, two = (torch.cat([t.flatten() for t in clipped_sum(g, 0.5)[0]]) for g in (each, other))
        assert (one - two).norm() <= 1.0 + 1e-6
    _, cut = clipped_sum([torch.tensor([[0.1], [3.0]]), torch.tensor([[0.1], [4.0]])], 4.9)
    assert cut.tolist() == [False, True], "3 and 4 are 5 together"


def test_a_gradient_of_zero_stays_zero():
    (total,), _ = clipped_sum([torch.zeros(3, 2)], 1.0)
    assert torch.equal(total, torch.zeros(2))


def test_a_layer_that_is_used_twice_adds_up():
    layer, x = nn.Linear(3, 3), torch.randn(4, 3)
    watcher = PerSample(private=1)
    layer.register_forward_hook(watcher.watch, with_kwargs=True)
    watcher(x, Batch(x, torch.zeros(4)))
    layer(layer(x).relu()).square().mean().backward()
    torch.testing.assert_close(watcher.gradients()[layer.weight].mean(0), layer.weight.grad)


def test_a_relu_in_place_does_not_spoil_the_gradient_before_it():
    torch.manual_seed(0)
    grads = []
    for inplace in (False, True):
        torch.manual_seed(1)
        net, x = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=inplace)), torch.randn(4, 3)
        watcher = PerSample(private=1)
        net[0].register_forward_hook(watcher.watch, with_kwargs=True)
        watcher(x, Batch(x, torch.zeros(4)))
        net(x).square().mean().backward()
        grads.append(watcher.gradients()[net[0].weight])
    assert torch.equal(*grads)


def test_dropout_between_layers_is_the_one_of_the_forward_pass():
    net = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2))
    x = torch.randn(4, 3)
    watcher = PerSample(private=1)
    for unit in units(net):
        unit.register_forward_hook(watcher.watch, with_kwargs=True)
    watcher(x, Batch(x, torch.zeros(4)))
    net(x).square().mean().backward()
    for p, each in watcher.gradients().items():
        torch.testing.assert_close(each.mean(0), p.grad)


def test_rows_of_one_use():
    layer = nn.Linear(3, 2)
    x, cotangent = torch.randn(4, 3), torch.randn(4, 2)
    each = per_sample_gradients(Use(layer, (x,), cotangent))
    torch.testing.assert_close(each["weight"], cotangent[:, :, None] * x[:, None, :])
    torch.testing.assert_close(each["bias"], cotangent)


# ------------------------------------------------------------------ noise
def test_the_noise_has_the_promised_size_and_is_new_every_step():
    """So much noise that the samples (six of length `clip` at most) do not show in it."""
    clip, noise, drawn = 1e-5, 1e4, []
    client, *_ = split_and_whole(plan_with(DPSGD(clip=clip, noise=noise)))

    def see(optimizer, args, kwargs):
        drawn.append(torch.cat([p.grad.flatten() * 6 for p in client.split.parameters()]))

    client.optimizer.register_step_pre_hook(see)
    for seed in range(60):
        learn(client, replace(batches(1)[0], seed=seed))
    drawn = torch.stack(drawn)
    assert drawn.std().item() == pytest.approx(clip * noise, rel=0.03)
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.6, "no two steps share their noise"


def test_a_replayed_step_is_the_same_step_and_another_client_draws_other_noise():
    plan = plan_with(DPSGD(), clients=2)
    feed = batches(1)[0]
    one, again = (gradients_of(plan, feed)[0] for _ in range(2))
    other, _ = gradients_of(replace(plan, private_seed=derive(1, "other")), feed)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_every_trained_weight_of_the_client_gets_noise():
    got, client = gradients_of(plan_with(DPSGD(clip=1e-9, noise=1e9), protocol=Bypass()), batches(1)[0])
    assert set(got) == {name for name, p in client.split.named_parameters() if p.requires_grad}
    assert all((g != 0).all() for g in got.values())


def test_the_history_says_how_many_gradients_were_clipped():
    for guard in (DPSGD(clip=1e-6), Chain(LightSplit(ratio=2), DPSGD(clip=1e-6))):
        client, *_ = split_and_whole(plan_with(guard))
        assert learn(client, batches(1)[0])["clipped gradients"] == 1.0


# ------------------------------------------------------------------ it leaves the rest alone
def test_predicting_copying_and_counting_keep_nothing():
    plan = plan_with(DPSGD())
    client, *_ = split_and_whole(plan)
    feed = batches(2)
    learn(client, feed[0])
    watcher = client.split.guard
    assert watcher.uses == []
    predict(client, feed)
    copied = copy.deepcopy(client.split)
    assert copied.guard is not watcher
    hooks = [hook for m in copied.modules() for hook in m._forward_hooks.values()]
    assert hooks and all(hook.__self__ is copied.guard for hook in hooks), "a copy's hooks are the copy's"
    copied.train().loss(feed[1], Here(nn.Sequential(NET.body(TASK.shape)))).backward()
    assert watcher.uses == [], "what a copy learns is not the client's"
    client.split.eval().head(feed[1].x).sum().backward()
    assert watcher.uses == [], "gradients in evaluation mode are no training"
    WhiteBox(client.split, 6).send(feed[1])
    assert client_memory(client, feed[0], cut_shapes(plan, TASK).u)["activations"] > 0
    assert sides(plan, TASK) == sides(tiny_plan(net=NET), TASK)
    assert watcher.uses == []


def test_a_backward_pass_that_no_step_followed_is_forgotten():
    first, second = batches(2)
    clients = [split_and_whole(plan_with(DPSGD()))[0] for _ in range(2)]
    clients[0].split.train().loss(first, Here(NET.body(TASK.shape))).backward()
    assert clients[0].split.guard.uses
    clients[0].optimizer.zero_grad()
    for client in clients:
        learn(client, second)
    one, other = (client.split.parameters() for client in clients)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("shared", [True, False])
def test_it_trains_in_a_relay(shared):
    plan = plan_with(
        Chain(LightSplit(ratio=2), DPSGD()), clients=2, shared_client_network=shared, epochs=2, batch_size=8
    )
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    assert run.train()
    assert 0 < run.progress.history[-1]["clipped gradients"] <= 1


# ------------------------------------------------------------------ refused, with the way out
@dataclass(frozen=True, repr=False)
class OddNet(TinyNet):
    """TinyNet with another tail."""

    kind: str = ""

    def tail(self, shape, classes):
        return {"functional": Functional, "flat": Flat, "tuple": Tuple, "dropout": Dropping}[self.kind](classes)


class Functional(nn.Module):
    """Uses a layer's weight past the layer."""

    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(7, classes)

    def forward(self, u):
        return self.layer(u) + torch.nn.functional.linear(u, self.layer.weight)


class Flat(nn.Module):
    """Folds two halves of a sample into the batch."""

    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(1, classes)

    def forward(self, u):
        return self.layer(u.reshape(-1, 1)).reshape(len(u), 7, -1).sum(1)


class Tuple(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.LSTM(7, classes, batch_first=True)

    def forward(self, u):
        return self.layer(u[:, None])[0][:, 0]


class Dropping(nn.Module):
    """Holds a weight itself, with dropout below it."""

    def __init__(self, classes):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(7, classes)), nn.Dropout(0.5)

    def forward(self, u):
        return self.drop(u) @ self.weight


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("functional", "DPSGD sees only a part of the gradient of tail.layer.weight"),
        ("flat", "cannot tell samples apart in Linear: it was given [42] rows for 6 samples"),
        ("tuple", "cannot take the gradient of LSTM apart"),
        ("dropout", "other dropout masks than the forward pass in Dropping"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_not_left_unbounded(kind, words):
    with pytest.raises(ValueError) as error:
        gradients_of(tiny_plan(net=OddNet(norm="group", kind=kind), guard=DPSGD()), batches(1)[0])
    assert words in str(error.value) and ("freeze" in str(error.value) or "leave DPSGD out" in str(error.value))


def build(**changes):
    return build_client(tiny_plan(**changes), TASK, 0, lambda message: message)


def test_batchnorm_is_refused_where_it_trains_and_only_there():
    with pytest.raises(ValueError, match=r"head\.1 \(BatchNorm2d\) mixes the samples .* norm='group', or freeze the"):
        build(guard=DPSGD())
    build(guard=DPSGD(), frozen_parts=("head",))
    build(guard=DPSGD(), net=NET)


def test_guards_that_learn_beside_it_are_refused():
    with pytest.raises(ValueError, match="weights of its own, which would learn without noise"):
        build(net=NET, guard=Chain(Bottleneck1x1(ratio=2), DPSGD()))


@pytest.mark.parametrize("settings", [{"clip": 0}, {"clip": float("inf")}, {"noise": -1}, {"noise": float("nan")}])
def test_impossible_settings(settings):
    with pytest.raises(ValueError, match=f"DPSGD's {next(iter(settings))}"):
        DPSGD(**settings)
