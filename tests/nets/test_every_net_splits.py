"""Every network learns split exactly as it learns whole: two steps, then a prediction, all bit for bit."""

from itertools import count

import pytest
import torch
from torch import nn
from toys import Here, split_and_whole, states, tiny_plan

from cutlayer.core import server as core_server
from cutlayer.core.batch import Batch
from cutlayer.core.input_first import input_first
from cutlayer.core.seeds import derive, seeded
from cutlayer.core.spec import names
from cutlayer.guards import LightSplit, NoGuard
from cutlayer.nets import (
    MLP,
    VGG16,
    CutAtLayers,
    DeepLabV3,
    FSAClient,
    FSHAClient,
    LeNet,
    MicronNet,
    MnistNet,
    MobileNet,
    MobileNetV3Large,
    ResNet18,
    ResNet20,
    ResNet50,
    Segmenter,
    SignalNet,
    SimpleCNN,
    TextDecoder,
    TextEncoder,
    Whole,
)
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Task
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn, predict

PLAIN = NoGuard()
SMALL, COLOUR = Task((1, 28, 28), 10), Task((3, 32, 32), 10)
SCENE, SIGNAL, TABLE = Task((3, 16, 24), 4), Task((2, 40), 3), Task((9,), 3)
TEXT, NEXT = Task((7,), 3, vocabulary=11), Task((7,), 11, vocabulary=11)

# At least one line a network; every one that normalises with both norms. `make test` takes the first of each.
EVERY = [
    (SimpleCNN(depth=2), SMALL),
    (SimpleCNN(depth=2, norm="group"), SMALL),
    (MnistNet(), SMALL),
    (LeNet(), SMALL),
    *((MicronNet(depth=depth, norm=norm), COLOUR) for depth, norm in [(1, "batch"), (2, "batch"), (2, "group")]),
    *((MobileNet(level=level), COLOUR) for level in (1, 2, 3, 4)),
    (MobileNet(norm="group"), COLOUR),
    *((ResNet20(level=level), COLOUR) for level in range(3, 10)),
    (ResNet20(norm="group"), COLOUR),
    *((FSHAClient(level=level), COLOUR) for level in (1, 2, 3, 4)),
    (FSHAClient(norm="group"), COLOUR),
    *((FSAClient(level=level), COLOUR) for level in (1, 2, 3)),
    (FSAClient(norm="group"), COLOUR),
    *((ResNet18(depth=depth, norm=norm), COLOUR) for depth, norm in [(3, "batch"), (4, "batch"), (4, "group")]),
    *((ResNet50(norm=norm), COLOUR) for norm in ("batch", "group")),
    (ResNet50(wide=True, depth=4), COLOUR),
    *((MobileNetV3Large(norm=norm), COLOUR) for norm in ("batch", "group")),
    *((Segmenter(norm=norm), SCENE) for norm in ("batch", "group")),
    (DeepLabV3(blocks=3, norm="group", scale="imagenet"), SCENE),
    *((SignalNet(norm=norm), SIGNAL) for norm in ("batch", "group")),
    (MLP(), TABLE),
    (VGG16(), COLOUR),
    (Whole(net=MicronNet(depth=2)), COLOUR),
    *((TextEncoder(width=8, at=at, vocabulary=11, dropout=0.1), TEXT) for at in (1, 0)),
    (TextEncoder(width=8, vocabulary=11, pad="mask"), TEXT),
    *((TextDecoder(width=8, at=at, vocabulary=11, dropout=0.1), NEXT) for at in (1, 0)),
]


class HereSeeded(Here):
    """The unsplit body, drawing its dropout as a server does: from the seed of the step."""

    def __init__(self, body: nn.Module, seed: int):
        super().__init__(body)
        self._seed, self._steps = seed, count()

    def body(self, z, *given):
        with seeded(derive(self._seed, "server", 0, next(self._steps))):
            return super().body(z, *given)

    def loss(self, z, y, *given):
        with seeded(derive(self._seed, "server", 0, next(self._steps))):
            return super().loss(z, y, *given)


def batch(task: Task, seed: int, size: int = 3) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    places = task.shape[1:] if task is SCENE else task.shape if task is NEXT else ()
    labels = torch.randint(task.classes, (size, *places), generator=draw)
    if task.vocabulary:
        return Batch(torch.randint(task.vocabulary, (size, *task.shape), generator=draw), labels, seed=seed)
    return Batch(torch.rand(size, *task.shape, generator=draw), labels, seed=seed)


U_SHAPED = UShaped()


def check(net, task, protocol=U_SHAPED, guard=PLAIN):
    still = SGD(lr=0.01, momentum=0.0)
    plan = tiny_plan(net=net, protocol=protocol, guard=guard, client_optimizer=still, server_optimizer=still)
    client, server, twin, twin_server = split_and_whole(plan, task)
    # A step of 0.01 may leave single numbers; each part as a whole has to move.
    start = {name: t.sum(dtype=torch.float64) for name, t in states(client, server).items()}
    here = HereSeeded(twin_server.body, server.seed)
    for seed in (0, 1):
        learn(client, batch(task, seed))
        twin.split.train()
        twin_server.body.train()
        with seeded(seed):
            twin.split.loss(batch(task, seed), here).backward()
        for optimizer in filter(None, (twin.optimizer, twin_server.optimizer)):
            optimizer.step()
            optimizer.zero_grad()
    ours, theirs = states(client, server), states(twin, twin_server)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    moved = {_part(name) for name, t in ours.items() if t.sum(dtype=torch.float64) != start[name]}
    assert moved >= {_part(name) for name in ours if "weight" in name}
    last = batch(task, 2)
    with torch.no_grad():
        whole = twin.split.eval()(last, HereSeeded(twin_server.body.eval(), 0)).logits
    assert torch.equal(predict(client, [last]), whole)
    assert whole.shape == (len(last), task.classes, *last.y.shape[1:])


def _part(name):
    return name.split(".")[1] if name.startswith("client.") else "server"


FIRST = {(type(net), getattr(net, "norm", "")): (net, task) for net, task in reversed(EVERY)}.values()
SLOW = (VGG16,)  # takes as long as all the others together: in the campaign
CASES = [
    pytest.param(*case, marks=() if case in FIRST and not isinstance(case[0], SLOW) else pytest.mark.campaign)
    for case in EVERY
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("net", "task"), CASES, ids=repr)
def test_split_is_whole(net, task):
    check(net, task)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("net", "task"), CASES, ids=repr)
def test_a_server_that_answers_first_learns_the_same(net, task, monkeypatch):
    """Its answer leaves between two passes through the body, for bodies that have something to learn."""
    check_answers_first(net, task, SGD(lr=0.01), monkeypatch)


def check_answers_first(net, task, optimizer, monkeypatch):
    later, plan = [], tiny_plan(net=net, client_optimizer=optimizer, server_optimizer=optimizer)
    monkeypatch.setattr(core_server, "input_first", lambda *given: later.append(input_first(*given)) or later[-1])
    client, server, twin, twin_server = split_and_whole(plan, task)
    server.answers_first = True
    for seed in (0, 1, 2):
        for one in (client, twin):
            learn(one, batch(task, seed))
    server.catch_up()
    ours, theirs = states(client, server), states(twin, twin_server)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert [rest is not None for rest in later] == [any(p.requires_grad for p in server.body.parameters())] * 3


@pytest.mark.parametrize(
    ("net", "task"), [(SimpleCNN(depth=2), SMALL), (TextEncoder(width=8, vocabulary=11), TEXT)], ids=repr
)
def test_with_adam_too(net, task, monkeypatch):
    check_answers_first(net, task, Adam(), monkeypatch)


@pytest.mark.parametrize("protocol", [Vanilla(), Bypass()], ids=repr)
@pytest.mark.parametrize(
    ("net", "task"),
    [(ResNet20(level=9), COLOUR), (Segmenter(), SCENE), (SignalNet(), SIGNAL), (MLP(widths=(8, 6, 4)), TABLE)],
    ids=repr,
)
def test_other_protocols_and_shapes(net, task, protocol):
    check(net, task, protocol)


@pytest.mark.parametrize(("net", "task"), [(SignalNet(), SIGNAL), (MLP(), TABLE), (Segmenter(), SCENE)], ids=repr)
def test_a_projection_at_cuts_that_are_no_images(net, task):
    check(net, task, guard=LightSplit(ratio=4))


@pytest.mark.parametrize(("net", "task"), [case for case in EVERY if case[1].vocabulary], ids=repr)
def test_of_texts_a_bypass_keeps_features_home_and_never_tokens(net, task):
    cut = cut_shapes(tiny_plan(net=net, protocol=Bypass(home=0.25)), task)
    assert cut.z == (*task.shape, 8) and cut.shared == (*task.shape, 6)


def test_the_table_has_every_network_and_both_norms():
    classes = {type(net) for net, _ in FIRST}
    # Those of others, cut by the names of their layers, are in test_by_name.py.
    assert classes == {one for one in names("nets").values() if not issubclass(one, CutAtLayers)}
    for kind in classes - {DeepLabV3}:  # its blocks are ResNet50's
        norms = {net.norm for net, _ in FIRST if isinstance(net, kind) and hasattr(net, "norm")}
        assert norms in (set(), {"batch", "group"})
