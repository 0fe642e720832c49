"""What a client believes of a server: other orders, weights and answers are refused, and nothing has changed."""

import hashlib
from dataclasses import replace

import pytest
import torch
from rehearsal import share
from spoilt import other, put, tensor
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.errors import ProtocolError
from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.training.batches import task_of
from cutlayer.training.build import build_server
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import export
from cutlayer.wire import frames

PROTOCOLS = [Vanilla(), UShaped(), Bypass()]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
ASKS, GRADIENT = (Kind.FORWARD, Kind.LOSS), (Kind.BACKWARD,)
BATCH = 8


class Script:
    """A server of one client, in place of the network: it says what it likes."""

    limit = 1 << 20
    connections = 0

    def __init__(self, orders, answer=None):
        self.orders, self.answer, self.said = list(orders), answer, []

    def receive(self):
        if not self.orders:
            raise Over
        order = self.orders.pop(0)
        return order if isinstance(order, bytes) else frames.encode(order)

    def send(self, frame):
        message = frames.decode(bytes(frame))
        self.said.append(message)
        if message.kind in (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.PREDICT):
            self.orders.insert(0, self.answer(message))


class Over(Exception):
    """The script has ended."""


BOOKS = ("released.jsonl", "1-0.frames")  # what has left is written down, whatever came back


def on_disk(folder, but=()):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in but]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def alone(plan, folder, number=1):
    parts = tiny_parts()
    site = DeployedClient(plan, "b", Address("127.0.0.1:1"), folder)
    site.prepare(number, task_of(parts.private, TASK.classes), share(plan, parts, number), own_data=False)
    return site


def order(kind, step=0, client=1, **tensors):
    return Message(kind, client, step, {name: torch.as_tensor(value) for name, value in tensors.items()})


TURN = order(Kind.TURN, turn=[0, 0, 2, 0])
BAD_ORDERS = {
    "of another client": order(Kind.TURN, client=0, turn=[0, 0, 2, 0]),
    "of another step": order(Kind.TURN, step=5, turn=[0, 0, 2, 0]),
    "batches beyond the end": order(Kind.TURN, turn=[0, 0, 99]),
    "batches below zero": order(Kind.TURN, turn=[0, -1, 2]),
    "no batches": order(Kind.TURN, turn=[0, 2, 2]),
    "an epoch beyond the end": order(Kind.TURN, turn=[2, 0, 2]),
    "an epoch below zero": order(Kind.TURN, turn=[-1, 0, 2]),
    "a turn without numbers": order(Kind.TURN),
    "a turn in fractions": order(Kind.TURN, turn=[0.0, 0.0, 2.0]),
    "a turn with something beside it": order(Kind.TURN, turn=[0, 0, 2, 0], x=[1.0]),
    "an evaluation of nothing": order(Kind.EVALUATE, what=[2, 0]),
    "an evaluation below zero": order(Kind.EVALUATE, what=[-1, 0]),
    "a snapshot that is not there": order(Kind.REWIND, number=[7]),
    "a snapshot below zero": order(Kind.REWIND, number=[-2]),
    "a snapshot under no number": order(Kind.KEEP, number=[-2]),
    "a snapshot under two": order(Kind.KEEP, number=[1, 2]),
    "a question as an order": order(Kind.FORWARD, z=torch.zeros(2, 4, 5, 5)),
    "a frame that cannot be read": b"CL" + bytes(30),
    "no frame": b"hello",
}
OWN_HEADS = {
    "the head of this client": order(Kind.WEIGHTS, turn=[0, 0, 2, 0]),
    "another head for this client": order(Kind.TURN, turn=[0, 0, 2, 0], **{"net.head.0.bias": torch.zeros(4)}),
    "another head to evaluate": order(Kind.EVALUATE, what=[1, 0], **{"net.head.0.bias": torch.zeros(4)}),
    "another head to end with": order(Kind.END, number=[0], **{"net.head.0.bias": torch.zeros(4)}),
}


@pytest.mark.parametrize("name", BAD_ORDERS | OWN_HEADS)
def test_a_client_refuses_orders_that_are_none(name, tmp_path):
    """Above all, own heads stay at home: no order brings them to the server, or another one in their place."""
    plan = tiny_plan(epochs=2, batch_size=BATCH, clients=2, shared_client_network=False)
    site = alone(plan, tmp_path)
    site.channel = Script([(BAD_ORDERS | OWN_HEADS)[name]])
    before, files = export(site.party.network), on_disk(tmp_path)
    with pytest.raises(ProtocolError):
        site.run()
    assert on_disk(tmp_path) == files and site.channel.said == []
    after = export(site.party.network)
    assert all(torch.equal(before[key], after[key]) for key in before | after)


def weights_of(site, **changes):
    state = export(site.party.network) | changes
    return {key: t for key, t in state.items() if t is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"net.head.0.bias": torch.full((4,), float("nan"))},
        {"net.head.0.bias": torch.zeros(5)},
        {"net.head.0.bias": torch.zeros(4).double()},
        {"net.head.0.bias": None},
        {"net.more": torch.zeros(4)},
        {"optimizer.0.momentum_buffer": torch.zeros(3)},
        {"optimizer.99.momentum_buffer": torch.zeros(4)},
        {"optimizer.first": torch.zeros(4)},
    ],
    ids=lambda changes: " ".join(f"{key}: {t.tolist() if t is not None else None}" for key, t in changes.items())[
        :60
    ],
)
@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.EVALUATE, Kind.END], ids=lambda kind: kind.name)
def test_a_client_refuses_weights_that_do_not_fit(kind, changes, tmp_path):
    site = alone(tiny_plan(epochs=2, batch_size=BATCH, clients=2), tmp_path)
    what = {Kind.WEIGHTS: {"turn": [0, 0, 2, 0]}, Kind.EVALUATE: {"what": [1, 0]}, Kind.END: {"number": [0]}}[kind]
    site.channel = Script([order(kind, **what, **weights_of(site, **changes))])
    before, files = export(site.party.network), on_disk(tmp_path)
    with pytest.raises(ProtocolError, match=f"{kind.name} of client 1"):
        site.run()
    assert on_disk(tmp_path) == files and site.channel.said == []
    after = export(site.party.network)
    assert all(torch.equal(before[key], after[key]) for key in before | after)


def test_a_client_takes_over_weights_that_fit(tmp_path):
    site = alone(tiny_plan(epochs=2, batch_size=BATCH, clients=2), tmp_path)
    given = {key: t + 1 if t.is_floating_point() else t for key, t in weights_of(site).items()}
    site.channel = Script([order(Kind.END, number=[0], **given)])
    site.channel.leave = lambda patience: None
    site.run()
    assert all(torch.equal(t, given[key]) for key, t in export(site.party.network).items())


BAD_ANSWERS = {
    "of another kind": (ASKS, other(kind=lambda m: Kind.PREDICT)),
    "of another step": (ASKS, other(step=lambda m: m.step + 1)),
    "of another client": (ASKS, other(client=lambda m: 0)),
    "with nothing": (ASKS, other(tensors=lambda m: {})),
    "with something beside it": (ASKS, lambda m: replace(m, tensors={**m.tensors, "x": torch.zeros(3)})),
    "with NaN": (ASKS, lambda m: replace(m, tensors={n: t * float("nan") for n, t in m.tensors.items()})),
    "of another shape": (ASKS, lambda m: replace(m, tensors={n: t[None] for n, t in m.tensors.items()})),
    "in double precision": (ASKS, lambda m: replace(m, tensors={n: t.double() for n, t in m.tensors.items()})),
    "a gradient with infinity": (GRADIENT, tensor("dz", put(float("inf")))),
    "a gradient of another shape": (GRADIENT, tensor("dz", lambda dz: dz[:, :1])),
    "a gradient that is missing": (GRADIENT, other(tensors=lambda m: {})),
    "a gradient of another step": (GRADIENT, other(step=lambda m: m.step + 1)),
    "bytes": (ASKS, lambda m: b"CP" + bytes(40)),
    "predictions of another shape": ((Kind.PREDICT,), lambda m: replace(m, tensors={"u": m["u"][:, :1]})),
    "predictions with NaN": ((Kind.PREDICT,), lambda m: replace(m, tensors={"u": m["u"] * float("nan")})),
}


@protocols
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_client_refuses_answers_that_are_none(name, protocol, tmp_path):
    plan = tiny_plan(epochs=2, batch_size=BATCH, clients=2, shared_client_network=False, protocol=protocol)
    site, server = alone(plan, tmp_path), build_server(plan.public(), TASK)
    kinds, spoil = BAD_ANSWERS[name]

    def answer(message):
        right = server.handle(message)
        return spoil(right) if message.kind in kinds else right

    first = order(Kind.EVALUATE, what=[1, 0]) if Kind.PREDICT in kinds else TURN
    site.channel = Script([first], answer)
    before, files = export(site.party.network), on_disk(tmp_path, BOOKS)
    with pytest.raises(ProtocolError):
        site.run()
    assert on_disk(tmp_path, BOOKS) == files
    assert [message.kind for message in site.channel.said][-1] in kinds  # it said nothing after that
    learnt = {key: t for key, t in before.items() if "running" not in key and "tracked" not in key}
    assert all(torch.equal(t, export(site.party.network)[key]) for key, t in learnt.items())


def test_the_same_script_with_right_answers_is_followed(tmp_path):
    """So that the tests above refuse what they mean to refuse."""
    plan = tiny_plan(epochs=2, batch_size=BATCH, clients=2, shared_client_network=False)
    site, server = alone(plan, tmp_path), build_server(plan.public(), TASK)
    orders = [TURN, order(Kind.KEEP, step=2, number=[1]), order(Kind.EVALUATE, step=2, what=[1, 0])]
    site.channel = Script([*orders, order(Kind.REWIND, step=2, number=[0])], server.handle)
    with pytest.raises(Over):
        site.run()
    answers = [message for message in site.channel.said if message.kind not in (*ASKS, *GRADIENT, Kind.PREDICT)]
    assert [message.kind for message in answers] == [Kind.TURN, Kind.KEEP, Kind.EVALUATE, Kind.REWIND]
    assert int(answers[0]["samples"]) == 2 * BATCH and int(answers[-1]["steps"]) == 0
    assert site.snapshots.numbers() == [0, 1]
