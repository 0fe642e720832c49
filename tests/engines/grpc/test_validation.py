"""What a server lets in: everything else is refused by name, and nothing has changed."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from rehearsal import Rehearsal, open_site, refuse_other_counts, refuse_other_weights, undisturbed
from spoilt import other, put, tensor
from toys import TASK, batches, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.core.message import Kind, Message
from cutlayer.core.state import optimizer_state
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import service as network
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.guards import KAnonymous
from cutlayer.nets import TextDecoder, TextEncoder
from cutlayer.training.build import build_client, build_server
from cutlayer.training.growing_text import GROWS
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn
from cutlayer.wire import frames

PROTOCOLS = [Vanilla(), UShaped(), Bypass()]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
ASKS, GRADIENT = (Kind.FORWARD, Kind.LOSS), (Kind.BACKWARD,)
BATCH = 8


# ---------------------------------------------------------------- what a client may do wrong
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
