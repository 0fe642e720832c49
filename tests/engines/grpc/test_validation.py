"""What a server lets in and what a client believes: everything else is refused by name, and nothing has changed."""

import hashlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from rehearsal import Rehearsal, open_site, refuse_other_counts, refuse_other_weights, share, undisturbed
from toys import TASK, batches, tiny_parts, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.core.errors import ProtocolError
from cutlayer.core.message import Kind, Message
from cutlayer.core.state import optimizer_state
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import service as network
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.guards import KAnonymous
from cutlayer.nets import TextDecoder, TextEncoder
from cutlayer.training.batches import task_of
from cutlayer.training.build import build_client, build_server
from cutlayer.training.growing_text import GROWS
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import export, learn
from cutlayer.wire import frames

PROTOCOLS = [Vanilla(), UShaped(), Bypass()]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
ASKS, GRADIENT = (Kind.FORWARD, Kind.LOSS), (Kind.BACKWARD,)
BATCH = 8


# ---------------------------------------------------------------- what a client may do wrong
def other(**changes):
    return lambda message: replace(message, **{name: change(message) for name, change in changes.items()})


def tensor(name, change):
    """The message with one tensor changed, added (from `None`) or, where `change` is None, left out."""

    def made(message):
        tensors = {one: t for one, t in message.tensors.items() if one != name or change is not None}
        return replace(message, tensors=tensors if change is None else {**tensors, name: change(tensors.get(name))})

    return made


def put(value):
    def made(t):
        t = t.clone()
        t.reshape(-1)[-1] = value
        return t

    return made


def many(count):
    return lambda t: t[:1].expand(count, *t.shape[1:]).clone()


def labelled(count, y=lambda t: t, rows=lambda t: t):
    """A LOSS message whose `count` labels say which row they are of."""

    def made(message):
        numbers = torch.arange(count) % len(message["z"])
        return replace(
            message, tensors={"z": message["z"], "y": y(numbers % TASK.classes), "rows": rows(numbers)}
        )  # fmt: skip

    return made


# label: (kinds it is done to, what is done, the name of the refusal)
IN_A_TURN = {
    "z has another shape": (ASKS, tensor("z", lambda z: z[:, :1]), "shape"),
    "z is one number": (ASKS, tensor("z", lambda z: z.reshape(-1)[0]), "shape"),
    "z has no rows": (ASKS, tensor("z", lambda z: z[:0]), "shape"),
    "z has too many rows": (ASKS, tensor("z", many(2 * BATCH + 1)), "shape"),
    "z in double precision": (ASKS, tensor("z", lambda z: z.double()), "dtype"),
    "z in whole numbers": (ASKS, tensor("z", lambda z: z.long()), "dtype"),
    "z holds NaN": (ASKS, tensor("z", put(float("nan"))), "non-finite"),
    "z holds infinity": (ASKS, tensor("z", put(-float("inf"))), "non-finite"),
    "z is missing": (ASKS, tensor("z", None), "shape"),
    "something else comes along": (ASKS, tensor("x", lambda _: torch.zeros(3)), "shape"),
    "a later step": (ASKS, other(step=lambda m: m.step + 1), "step"),
    "a step far away": (ASKS, other(step=lambda m: 2**63), "step"),
    "a gradient first": (ASKS, lambda m: Message(Kind.BACKWARD, m.client, m.step, {"du": torch.tensor(1.0)}), "kind"),
    "a prediction in a turn": (ASKS, lambda m: Message(Kind.PREDICT, m.client, m.step, {"z": m["z"]}), "kind"),
    "an answer to no order": (ASKS, lambda m: Message(Kind.KEEP, m.client, m.step, {}), "kind"),
    "another client's number": (ASKS, other(client=lambda m: m.client - 1), "unknown client"),
    "a client that is none": (ASKS, other(client=lambda m: 2**32 - 1), "unknown client"),
    "forward twice": (GRADIENT, lambda m: forwards(m), "kind"),
    "du has another shape": (GRADIENT, tensor("du", lambda du: du.expand(3, *du.shape).clone()), "shape"),
    "du in half precision": (GRADIENT, tensor("du", lambda du: du.half()), "dtype"),
    "du holds NaN": (GRADIENT, tensor("du", put(float("nan"))), "non-finite"),
    "du is missing": (GRADIENT, tensor("du", None), "shape"),
    "du of another step": (GRADIENT, other(step=lambda m: m.step + 1), "step"),
    "du of another client": (GRADIENT, other(client=lambda m: m.client - 1), "unknown client"),
}
LABELS = {
    "a class too high": (ASKS, tensor("y", put(TASK.classes)), "range"),
    "a class below zero": (ASKS, tensor("y", put(-1)), "range"),
    "labels that are no whole numbers": (ASKS, tensor("y", lambda y: y.float()), "shape"),
    "fewer labels than rows": (ASKS, tensor("y", lambda y: y[:-1]), "shape"),
    "labels in a table": (ASKS, tensor("y", lambda y: y[:, None]), "shape"),
    "labels are missing": (ASKS, tensor("y", None), "shape"),
    "a row that is not there": (ASKS, labelled(4, rows=put(99)), "range"),
    "a row below zero": (ASKS, labelled(4, rows=put(-1)), "range"),
    "rows that are no whole numbers": (ASKS, labelled(4, rows=lambda r: r.int()), "shape"),
    "more rows than labels": (ASKS, labelled(4, y=lambda y: y[:-1]), "shape"),
    "labels of no row": (ASKS, labelled(0), "shape"),
    "more labels than a batch has": (ASKS, labelled(2 * BATCH + 1), "shape"),
}
# These have the right form: only when they are computed does it show.
COMPUTED = {
    "numbers too large to compute with": (ASKS, tensor("z", lambda z: torch.full_like(z, 3e38)), "non-finite"),
    "a gradient too large": (GRADIENT, tensor("du", lambda du: torch.full_like(du, 3e38)), "non-finite"),
}
NONE = {"samples": torch.tensor([0])}
ANSWERS = {
    "how many is missing": ((Kind.TURN, Kind.WEIGHTS), tensor("samples", None), "shape"),
    "fewer than none": ((Kind.TURN, Kind.WEIGHTS), tensor("samples", lambda t: -t), "shape"),
    "more than there are": ((Kind.TURN, Kind.WEIGHTS), tensor("samples", lambda t: t + 10**12), "range"),
    "a share of one": ((Kind.TURN, Kind.WEIGHTS), tensor("samples", lambda t: t.float()), "shape"),
    "two numbers": ((Kind.TURN, Kind.WEIGHTS), tensor("samples", lambda t: torch.cat([t, t])), "shape"),
    "another step": ((Kind.TURN, Kind.WEIGHTS), other(step=lambda m: m.step - 1), "step"),
    "another client": ((Kind.TURN, Kind.WEIGHTS), other(client=lambda m: m.client - 1), "unknown client"),
    "something beside it": ((Kind.TURN, Kind.WEIGHTS), tensor("x", lambda _: torch.zeros(3)), "shape"),
    "it comes too early": (ASKS, lambda m: Message(Kind.WEIGHTS, m.client, m.step, NONE), "step"),
}
EVALUATED = {
    "more right than all": ((Kind.EVALUATE,), tensor("score", lambda t: t.flip(0) + torch.tensor([99, 0])), "range"),
    "a score of one number": ((Kind.EVALUATE,), tensor("score", lambda t: t[:1]), "shape"),
    "a score below zero": ((Kind.EVALUATE,), tensor("score", lambda t: t - 1000), "shape"),
    "a prediction with NaN": ((Kind.PREDICT,), tensor("z", put(float("nan"))), "non-finite"),
    "a prediction of another shape": ((Kind.PREDICT,), tensor("z", lambda z: z[..., :2]), "shape"),
    "a prediction of everything": ((Kind.PREDICT,), tensor("z", many(4097)), "shape"),
    "learning while predicting": ((Kind.PREDICT,), other(kind=lambda m: Kind.FORWARD), "kind"),
}
ANSWERS |= {
    "a snapshot at no step": ((Kind.KEEP,), tensor("steps", None), "shape"),
    "a snapshot below zero": ((Kind.KEEP,), tensor("steps", lambda t: t - 1000), "shape"),
    "a way back to nowhere": ((Kind.REWIND,), tensor("steps", lambda t: t.repeat(3)), "shape"),
}
RELAYED = {
    "weights with NaN": ((Kind.WEIGHTS,), tensor("net.head.0.weight", put(float("nan"))), "non-finite"),
    "weights of another name": ((Kind.WEIGHTS,), tensor("net.more", lambda _: torch.zeros(3)), "shape"),
    "weights of another shape": ((Kind.WEIGHTS,), tensor("net.head.0.weight", lambda t: t[1:]), "shape"),
    "weights of another precision": ((Kind.WEIGHTS,), tensor("net.head.0.weight", lambda t: t.double()), "shape"),
    "a weight is missing": ((Kind.WEIGHTS,), tensor("net.head.0.weight", None), "shape"),
}  # fmt: skip


def forwards(message):
    """A question of the same step, in the middle of one."""
    kind = Kind.LOSS if message["du"].dim() == 0 else Kind.FORWARD
    labels = {"y": torch.zeros(2, dtype=torch.int64)} if kind is Kind.LOSS else {}
    return Message(kind, message.client, message.step, {"z": torch.zeros(2, 4, 5, 5), **labels})


# ------------------------------------------------------------------------------ what the validator lets through
def conversation(plan, count=2):
    """What an honest client says in a turn of `count` batches, at a server of its own."""
    server = build_server(plan.public(), TASK)
    said: list[Message] = []

    def send(message):
        said.append(message)
        return server.handle(message)

    client = build_client(plan, TASK, 1, send)
    for batch in batches(count):
        learn(client, batch)
    return said


def everything(server):
    held = {
        f"held/{client}/{step}/{name}": getattr(one, name).detach().clone()
        for client, steps in server.pending.held.items()
        for step, one in steps.items()
        for name in ("z", "u")
    }
    net = {f"net/{name}": t.clone() for name, t in server.body.state_dict().items()}
    grads = {f"grad/{n}": p.grad.clone() for n, p in server.body.named_parameters() if p.grad is not None}
    return held | net | grads | optimizer_state(server.optimizer), server.bodies.updates


def same(one, another):
    return one[1] == another[1] and one[0].keys() == another[0].keys() and all(
        torch.equal(t, another[0][name]) for name, t in one[0].items()
    )  # fmt: skip


@protocols
def test_each_refusal_at_the_door_by_name_and_then_the_right_message(protocol):
    plan = tiny_plan(batch_size=BATCH, clients=2, protocol=protocol, server_optimizer=SGD(lr=0.05, momentum=0.9))
    said = conversation(plan)
    server, validator = build_server(plan.public(), TASK), MessageValidator(plan, TASK)
    validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 2, 0])}))
    table = IN_A_TURN | (LABELS if protocol == Vanilla() else {})
    seen = Counter()
    for message in said:
        before = everything(server)
        for label, (kinds, spoil, name) in table.items():
            if message.kind not in kinds:
                continue
            with pytest.raises(Refused) as found:
                validator.check(spoil(message), 1)
            assert found.value.name == name, (label, found.value)
            seen[label] += 1
        assert same(everything(server), before)
        validator.check(message, 1)
        server.handle(message)
        validator.passed(message)
    assert set(seen) == set(table)
    validator.closed(Message(Kind.TURN, 1, 2, {}))
    with pytest.raises(Refused, match="the turn is steps") as found:
        validator.check(said[-2], 1)  # once more, when the turn is over
    assert found.value.name == "step"


@protocols
def test_a_step_that_was_answered_is_not_answered_again(protocol):
    plan = tiny_plan(batch_size=BATCH, clients=2, protocol=protocol)
    said, validator = conversation(plan), MessageValidator(plan, TASK)
    validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 2, 0])}))
    for place, message in enumerate(said):
        for old in said[:place]:
            with pytest.raises(Refused):
                validator.check(old, 1)
        validator.check(message, 1)
        validator.passed(message)


def test_a_turn_is_closed_at_its_end_and_not_before():
    plan = tiny_plan(batch_size=BATCH, clients=2)
    said, validator = conversation(plan), MessageValidator(plan, TASK)
    validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 2, 0])}))
    for message in said:
        with pytest.raises(Refused, match="of a turn that ends at 2"):
            validator.closed(Message(Kind.TURN, 1, 0, {}))
        validator.passed(message)
    validator.closed(Message(Kind.TURN, 1, 2, {}))


@pytest.mark.parametrize(("rounds", "lets"), [(Relay(), False), (SplitFed(), True)], ids=repr)
def test_only_where_rounds_merge_may_a_client_say_that_it_has_nothing(rounds, lets):
    plan = tiny_plan(batch_size=BATCH, clients=2, rounds=rounds)
    validator, nothing = MessageValidator(plan, TASK), Message(Kind.TURN, 1, 0, {"samples": torch.tensor(0)})
    validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 2, 0])}))
    with nullcontext() if lets else pytest.raises(Refused, match="of a turn that ends at 2"):
        validator.closed(nothing)


def test_rows_that_samples_share_are_let_in():
    """Labels say of which row they are, where a guard lets samples share rows."""
    plan = tiny_plan(batch_size=6, clients=2, protocol=Vanilla(), guard=KAnonymous(k=2))
    said, validator = conversation(plan), MessageValidator(plan, TASK)
    assert any("rows" in message.tensors for message in said)
    validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 2, 0])}))
    for message in said:
        validator.check(message, 1)
        validator.passed(message)


@pytest.mark.parametrize(
    ("z", "grows", "why"),
    [
        ((1, 2, 8), [5, 0, 4], None),
        ((1, 2, 8), [5, 0, 5], "range"),
        ((1, 2, 8), [5, -1, 0], "range"),
        ((1, 7, 8), [5, 0, 0], "shape"),
        ((1, 0, 8), [5, 0, 0], "shape"),
        ((2, 2, 8), [5, 0, 0], "shape"),
        ((1, 2, 9), [5, 0, 0], "shape"),
        ((1, 2, 8), [5, 0], "shape"),
        ((1, 2, 8), [5.0, 0.0, 0.0], "shape"),
    ],
)
def test_places_of_a_growing_text_lie_in_it(z, grows, why):
    validator = MessageValidator(tiny_plan(net=TextDecoder(width=8, vocabulary=11)), Task((6,), 11, {}, 11))
    validator.open(None)
    message = Message(Kind.PREDICT, 0, 0, {"z": torch.ones(z), GROWS: torch.tensor(grows)})
    with nullcontext() if why is None else pytest.raises(Refused) as refused:
        validator.check(message, 0)
    assert why is None or refused.value.name == why


def test_a_network_that_names_no_tokens_has_no_growing_texts():
    validator = MessageValidator(tiny_plan(net=TextEncoder(width=8, vocabulary=11)), Task((6,), 2, {}, 11))
    validator.open(None)
    with pytest.raises(Refused, match="carries"):
        validator.check(Message(Kind.PREDICT, 0, 0, {"z": torch.ones(1, 6, 8), GROWS: torch.tensor([5, 0, 0])}), 0)


def test_a_visitor_only_predicts():
    plan = tiny_plan(batch_size=BATCH)
    validator = MessageValidator(plan, TASK)
    validator.open(None)
    right = Message(Kind.PREDICT, 0, 0, {"z": torch.zeros(4096, 4, 5, 5)})
    validator.check(right, 0)
    for kind in set(Kind) - {Kind.PREDICT}:
        with pytest.raises(Refused, match="only PREDICT is") as found:
            validator.check(replace(right, kind=kind), 0)
        assert found.value.name == "kind"


# ------------------------------------------------------------- over sockets, beside an honest one
class Spoiler:
    """A client whose messages are spoilt one after the other; each time it comes back as a new process would."""

    def __init__(self, rehearsal, name, table):
        self.rehearsal, self.name, self.left = rehearsal, name, dict(table)
        self.wrong: list[str] = []
        self.expected: Counter[str] = Counter()
        self.busy = ""

    def run(self):
        while True:
            there = self.rehearsal
            site = open_site(there.plan, self.name, there.address(self.name), there.folder / self.name, there.parts)
            plain, self.busy = site.channel.send, ""
            site.channel.send = lambda frame, plain=plain: self.send(frame, plain)
            try:
                result = site.run()
            except Refused as error:
                self.told(error)
                site.channel.close()
                continue
            there.sites[self.name], there.results[self.name] = site, result
            return

    def send(self, frame, plain):
        if self.busy:
            self.wrong.append(f"{self.busy}: accepted")
            self.busy = ""
        message = frames.decode(bytes(frame))
        for label, (kinds, spoil, _) in self.left.items():
            if message.kind in kinds:
                self.busy = label
                plain(frames.encode(spoil(message)))
                return
        plain(frame)

    def told(self, error):
        _, _, name = self.left.pop(self.busy, ((), None, "nothing to refuse"))
        self.expected[error.name] += 1
        if name != error.name:
            self.wrong.append(f"{self.busy}: {name} expected, {error.name} came: {error}")


@pytest.fixture
def endless(monkeypatch):
    """A client may be wrong as often as it likes."""
    monkeypatch.setattr(admission, "STRIKES", 10**6)
    monkeypatch.setattr(admission, "LOSSES", 10**6)
    monkeypatch.setattr(network, "CONNECTIONS", (10**6, 10.0))


@protocols
def test_whatever_a_client_does_wrong_the_run_ends_as_if_it_had_not(protocol, tmp_path, endless):
    plan = tiny_plan(epochs=2, batch_size=BATCH, clients=2, protocol=protocol)
    table = IN_A_TURN | (LABELS if protocol == Vanilla() else {}) | COMPUTED | ANSWERS | RELAYED
    # Without a tail at home du is one number, and the largest is not too large here.
    skipped = {"a gradient too large"} if protocol == Vanilla() else set()
    there = Rehearsal(plan, tmp_path, names=("honest", "wrong"), limits=Limits(every=1, deadline=20.0))
    spoiler = Spoiler(there, "wrong", {label: row for label, row in table.items() if label not in skipped})
    there.join("honest")
    there._start(spoiler.run)
    there.serve()
    result = there.end()
    assert spoiler.wrong == [] and spoiler.left == {}
    assert result["refused"] == dict(spoiler.expected) == there.service.status()["refused"]
    assert result["exact"] and not result["skipped"]
    local = undisturbed(plan)
    refuse_other_weights(local, there)
    refuse_other_counts(local, there)


def test_own_heads_stay_at_home(tmp_path, endless):
    plan = tiny_plan(epochs=1, batch_size=BATCH, clients=2, shared_client_network=False)
    table = {
        "weights that nobody asked for": (
            (Kind.TURN,),
            tensor("net.head.0.weight", lambda _: torch.zeros(3)),
            "shape",
        ),
        **{label: row for label, row in ANSWERS.items() if label != "it comes too early"},
        **EVALUATED,
    }
    there = Rehearsal(plan, tmp_path, names=("honest", "wrong"), limits=Limits(every=1, deadline=20.0))
    spoiler = Spoiler(there, "wrong", table)
    there.join("honest")
    there._start(spoiler.run)
    there.serve()
    result = there.end()
    assert spoiler.wrong == [] and spoiler.left == {}
    assert result["refused"] == dict(spoiler.expected) and result["exact"]
    refuse_other_weights(undisturbed(plan), there)


# ------------------------------------------------------------------------ what a client believes
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
