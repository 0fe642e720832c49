"""Batches that travel in pieces: the gradient of the whole batch, in an order that no delay can change."""

import random
import time

import pytest
import torch
from toys import GUARDS, TASK, TinyNet, batches, tiny_parts, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, KAnonymous, Noise
from cutlayer.training.build import build_client, build_server
from cutlayer.training.micro_batches import Ring, at_once, learn_in_micro_batches
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.schedule import Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn

PROTOCOLS = [Vanilla(), UShaped(), Bypass()]


def run(plan, wrap=lambda handler: handler):
    made = LocalRun(plan, tiny_parts(), classes=TASK.classes, wrap=wrap)
    made.train()
    return made


def cut(batch, count):
    parts = zip(
        batch.x.tensor_split(count), batch.y.tensor_split(count), batch.s["odd"].tensor_split(count), strict=True
    )
    return [type(batch)(x, y, {"odd": s}, batch.seed) for x, y, s in parts]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [2, 3])
def test_the_step_is_that_of_the_whole_batch(protocol, count):
    torch.set_default_dtype(torch.float64)
    try:
        found = []
        for pieces in (1, count):
            plan = tiny_plan(net=TinyNet(norm="group"), protocol=protocol, micro_batches=pieces)
            server = build_server(plan.public(), TASK)
            client = build_client(plan, TASK, 0, server.handle)
            for step, batch in enumerate(batches(3)):
                if pieces == 1:
                    terms = learn(client, batch)
                else:
                    terms = learn_in_micro_batches(client, cut(batch, count), step * count, at_once(server.handle))
            found.append(
                {**client.split.state_dict(), **server.body.state_dict(), "task": torch.tensor(terms["task"])}
            )
        for name, tensor in found[0].items():
            torch.testing.assert_close(tensor, found[1][name], rtol=1e-10, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_delay_changes_a_bit(protocol):
    """Dropout and noise draw from one generator: pieces that took turns by luck would get each other's numbers."""
    draw = random.Random(0)

    def slow(handle):
        def answer(message):
            time.sleep(draw.random() * 2e-3)
            return handle(message)

        return answer

    plan = tiny_plan(
        protocol=protocol,
        net=TinyNet(dropout=0.5),
        guard=Noise(scale=0.1),
        micro_batches=4,
        batch_size=10,
        epochs=2,
        clients=2,
    )
    one, other = run(plan), run(plan, slow)
    ours, theirs = one.tensors(), other.tensors()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_all_pieces_are_sent_before_the_first_answer_is_waited_for():
    plan = tiny_plan(micro_batches=3, batch_size=6)
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    told = []

    def post(message):
        told.append(("sent", message.kind, message.step))
        answer = server.handle(message)
        return lambda: (told.append(("heard", message.kind, message.step)), answer)[1]

    learn_in_micro_batches(client, cut(batches(1)[0], 3), 0, post)
    kinds = (Kind.FORWARD, Kind.BACKWARD)
    assert told[:3] == [("sent", Kind.FORWARD, n) for n in range(3)]
    assert [one for one in told if one[0] == "heard"] == [("heard", kind, n) for kind in kinds for n in range(3)]
    # The gradient of a piece leaves before the next piece's answer is read.
    assert told.index(("sent", Kind.BACKWARD, 0)) < told.index(("heard", Kind.FORWARD, 1))


def test_the_server_steps_once_a_batch_and_a_small_last_batch_counts():
    made = run(tiny_plan(micro_batches=4, batch_size=10, epochs=1))  # 48 samples: batches of 10, and one of 8
    assert made.progress.step == made.server.bodies.updates == 5
    steps = [number // 4 for number in range(made.progress.step * 4)]
    assert [len(made.batch_of(0, number)) for number in (0, 3, 19)] == [3, 2, 2] and steps[-1] == 4


def test_fewer_pieces_where_the_last_batch_is_small():
    made = LocalRun(tiny_plan(micro_batches=4, batch_size=10, epochs=1), tiny_parts(43), classes=TASK.classes)
    numbers = []
    client = made.clients[0]
    post = at_once(client.uplink.send)
    client.uplink = client.uplink._replace(post=lambda message: (numbers.append(message.step), post(message))[1])
    made.train()
    assert made.server.bodies.updates == 5
    assert sorted({number for number in numbers if number >= 16}) == [19]  # three samples: one piece, the last number


def test_an_error_in_one_piece_ends_them_all_and_is_the_one_that_is_raised():
    ring, seen = Ring(3, torch.device("cpu")), []

    def job(number):
        seen.append(number)
        ring.switch()
        if number == 1:
            raise KeyError("lost")
        ring.switch()
        seen.append(number + 10)

    with pytest.raises(KeyError, match="lost"):
        ring.run([lambda n=n: job(n) for n in range(3)])
    assert seen == [0, 1, 2]


def test_a_backward_pass_that_stands_still_stops_no_other():
    """autograd has one thread for all that a GPU computes: whoever waits in it would be waited for by the others."""
    ring = Ring(2, torch.device("cpu"))
    assert ring.run([torch.autograd.is_multithreading_enabled] * 2) == [False, False]
    assert torch.autograd.is_multithreading_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "changes", [{"micro_batches": 2}, {"clients": 2, "rounds": Wave(fused=True), "net": TinyNet(norm="group")}]
)
def test_side_by_side_on_a_gpu(changes):
    made = LocalRun(tiny_plan(epochs=1, **changes), tiny_parts(), classes=TASK.classes, device="cuda")
    assert made.train()


def test_an_interrupted_batch_leaves_no_gradient_behind():
    plan = tiny_plan(micro_batches=2, server_optimizer=SGD(lr=0.1))
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    before = {name: t.clone() for name, t in server.body.state_dict().items() if "running" not in name}
    u = server.handle(Message(Kind.FORWARD, 0, 0, {"z": torch.rand(3, 4, 5, 5)}))["u"]
    server.handle(Message(Kind.BACKWARD, 0, 0, {"du": torch.ones_like(u)}))
    server.forget(0)
    assert all(p.grad is None or not p.grad.any() for p in server.body.parameters())
    assert all(torch.equal(t, server.body.state_dict()[n]) for n, t in before.items() if "num_batches" not in n)
    assert client.steps == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batches": 0}, "micro_batches is a whole number from 1 up"),
        ({"micro_batches": 9, "batch_size": 64}, "micro_batches is at most 8"),
        ({"micro_batches": 4, "batch_size": 6}, "at least two samples of a batch of 6"),
    ],
)
def test_impossible_pieces_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny_plan(**changes)


@pytest.mark.parametrize(
    ("guard", "words"), [(DPSGD(), "gradients of whole batches"), (KAnonymous(k=5), "samples in each micro-batch")]
)
def test_guards_that_need_whole_batches_say_so(guard, words):
    with pytest.raises(ValueError, match=words):
        cut_shapes(tiny_plan(guard=guard, micro_batches=4, batch_size=12), TASK)


def test_guards_work_on_pieces():
    for guard in {type(guard): guard for guard in GUARDS}.values():
        plan = tiny_plan(guard=guard, micro_batches=2, batch_size=12, epochs=1)
        made = run(plan)
        assert made.progress.step == 4
