"""Split training is training: bit for bit the unsplit network, for every protocol, guard and frozen part."""

from itertools import product

import pytest
import torch
from rotation import and_the_rest, rotation
from test_protocols import CROSSING as PROTOCOLS
from toys import ALL_GUARDS, GUARDS, TASK, Here, batches, split_and_whole, states, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.seeds import seeded
from cutlayer.guards import DPSGD, HEVC, JPEG
from cutlayer.nets.mnist_net import MnistNet
from cutlayer.nets.resnet import ResNet18
from cutlayer.nets.simple_cnn import SimpleCNN
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Task
from cutlayer.training.protocols import Bypass, Vanilla
from cutlayer.training.step import learn

FROZEN = [(), ("head",), ("body",), ("head", "tail")]
STEPS = {HEVC: 3, JPEG: 6, DPSGD: 6}  # of guards whose steps take several times as long; all others make 12
# What cannot be split so, in the words it is refused with. A line that is not needed fails: it must be refused.
CANNOT = {
    (JPEG, Bypass()): "has only one",  # a grey picture has no channel that could stay home
    (HEVC, Bypass()): "has only one",
}


def learn_whole(twin, twin_server, batch):
    """A plain training step: one forward, one backward, both optimizers."""
    twin.split.train()
    twin_server.body.train()
    with seeded(batch.seed):
        loss = twin.split.loss(batch, Here(twin_server.body))
        loss.backward()
        for optimizer in (twin.optimizer, twin_server.optimizer):
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()


def check(plan, steps, task=TASK, feed=None):
    client, server, twin, twin_server = split_and_whole(plan, task)
    start = {name: t.clone() for name, t in states(client, server).items()}
    for batch in feed or batches(steps):
        learn(client, batch)
        learn_whole(twin, twin_server, batch)
    ours, theirs = states(client, server), states(twin, twin_server)
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different
    moved = {name.split(".")[0] for name in ours if not torch.equal(ours[name], start[name])}
    assert moved, "nothing was learnt: the equality would be empty"


def check_or_refuse(protocol, guard, **changes):
    plan, words = tiny_plan(protocol=protocol, guard=guard, **changes), CANNOT.get((type(guard), protocol))
    if words is None:
        check(plan, STEPS.get(type(guard), 12))
    else:
        with pytest.raises(ValueError, match=words):
            check(plan, steps=1)


# Every guard as it is listed; every kind of guard in every protocol, and with every part frozen. Twins of doubles
# once a guard, protocols in turn. `make campaign` has all the others.
SLICE = rotation(ALL_GUARDS, PROTOCOLS, FROZEN)
DOUBLES = [(guard, PROTOCOLS[turn % len(PROTOCOLS)]) for turn, guard in enumerate(ALL_GUARDS)]


def case_id(value):
    if isinstance(value, tuple):
        return "+".join(value) or "all-train"
    return repr(value)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("guard", "protocol", "frozen"), and_the_rest(SLICE, ALL_GUARDS, PROTOCOLS, FROZEN), ids=case_id
)
def test_float32(protocol, guard, frozen):
    check_or_refuse(protocol, guard, frozen_parts=frozen)


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("guard", "protocol"), and_the_rest(DOUBLES, ALL_GUARDS, PROTOCOLS), ids=case_id)
def test_float64(protocol, guard):
    check_or_refuse(protocol, guard)


@pytest.mark.parametrize(("guard", "protocol"), DOUBLES, ids=case_id)
def test_a_server_that_answers_first_learns_the_same(guard, protocol):
    """Whatever the guard has it lift, and wherever labels are: the answer leaves between two passes."""
    if (type(guard), protocol) in CANNOT:
        return
    client, server, twin, twin_server = split_and_whole(tiny_plan(guard=guard, protocol=protocol))
    server.answers_first = True
    for batch in batches(3):
        learn(client, batch)
        learn(twin, batch)
    server.catch_up()
    ours, theirs = states(client, server), states(twin, twin_server)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def test_the_slice_has_every_guard_and_every_pair_of_kinds():
    pairs = {(type(guard), value) for guard, *values in SLICE for value in values}
    assert pairs == {*product({type(guard) for guard in ALL_GUARDS}, [*PROTOCOLS, *FROZEN])}
    assert {case[1:] for case in SLICE} == {*product(PROTOCOLS, FROZEN)}
    assert {case[0] for case in SLICE} == {case[0] for case in DOUBLES} == {*ALL_GUARDS}
    assert {protocol for _, protocol in DOUBLES} == {*PROTOCOLS}


def test_what_cannot_be_split_is_among_what_was_tried():
    assert {*CANNOT} <= {(type(guard), protocol) for guard in ALL_GUARDS for protocol in PROTOCOLS}


def test_adam_keeps_its_moments_per_side():
    check(tiny_plan(guard=GUARDS[-1], client_optimizer=Adam(), server_optimizer=Adam(amsgrad=True)), steps=20)


@pytest.mark.parametrize(
    ("net", "task"),
    [
        (SimpleCNN(depth=2), Task((1, 28, 28), 10)),
        (MnistNet(cut=4), Task((1, 28, 28), 10)),
        (ResNet18(depth=2), Task((3, 32, 32), 10)),
    ],
    ids=repr,
)
def test_the_networks_of_the_papers(net, task):
    draw = torch.Generator().manual_seed(0)
    feed = [
        Batch(torch.rand(4, *task.shape, generator=draw), torch.randint(10, (4,), generator=draw), seed=n)
        for n in (0, 1)
    ]
    check(tiny_plan(net=net, server_optimizer=SGD(lr=0.01)), steps=2, task=task, feed=feed)


def test_frozen_parts_stay_bit_identical():
    client, server, *_ = split_and_whole(tiny_plan(frozen_parts=("head", "body"), guard=GUARDS[3]))
    head = {name: t.clone() for name, t in client.split.head.state_dict().items()}
    body = {name: t.clone() for name, t in server.body.body.state_dict().items()}
    lift = server.body.lift[0].weight.clone()
    for batch in batches(3):
        learn(client, batch)
    assert all(torch.equal(t, head[name]) for name, t in client.split.head.state_dict().items())
    assert all(torch.equal(t, body[name]) for name, t in server.body.body.state_dict().items())
    assert not torch.equal(server.body.lift[0].weight, lift), "the lift trains although the body does not"


def test_twice_the_loss_is_twice_the_gradient():
    grads = []
    for scale in (1.0, 2.0):
        client, server, *_ = split_and_whole(tiny_plan(protocol=Vanilla()))
        server.bodies.optimizer = None
        (client.split.loss(batches(1)[0], client.remote) * scale).backward()
        grads.append([p.grad for p in [*client.split.parameters(), *server.body.parameters()] if p.grad is not None])
    assert len(grads[0]) > 6
    for single, double in zip(*grads, strict=True):
        torch.testing.assert_close(double, 2 * single)
