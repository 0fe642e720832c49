"""Every protocol: its text makes it again, what it says of itself is what leaves, and split training is training."""

import pytest
from toys import TASK, Here, batches, split_and_whole, states, tiny_plan

from cutlayer.audit.check.run import check
from cutlayer.core.spec import spec
from cutlayer.training.protocols import Alone, Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import learn

# One line per protocol: all laws below run over it, and those of test_split_equals_whole.py where there is a cut.
PROTOCOLS = [Vanilla(), UShaped(), Bypass(), Federated(), Alone()]
CROSSING = [protocol for protocol in PROTOCOLS if protocol.crosses]
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)


@each_protocol
def test_its_laws_hold(protocol):
    assert [finding.why for finding in check(protocol) if finding.holds is False] == []


@each_protocol
def test_it_is_typed_with_and_without_parentheses(protocol):
    name = type(protocol).__name__
    assert spec(name, "protocols") == spec(f"{name}()", "protocols") == protocol


@each_protocol
def test_both_sides_hold_the_whole_network_and_nothing_twice(protocol):
    """Head, body and tail: each is at one side at most, and what else there is belongs to the protocol itself."""
    client, server, *_ = split_and_whole(tiny_plan(protocol=protocol))
    ours, theirs = states(client, server), tiny_plan().net
    parts = {"head": theirs.head(TASK.shape), "tail": theirs.tail(TASK.shape, 3)}
    if protocol.has_body:
        parts["body"] = theirs.body(TASK.shape)
    whole = sum(t.numel() for part in parts.values() for t in part.state_dict().values())
    own = sum(t.numel() for name, t in ours.items() if name.startswith(("client.rejoin.", "client.local.")))
    assert sum(t.numel() for t in ours.values()) == whole + own


@each_protocol
def test_where_nothing_crosses_nobody_is_asked(protocol):
    client, server, *_ = split_and_whole(tiny_plan(protocol=protocol))
    before = {name: t.clone() for name, t in states(client, server).items()}
    learn(client, batches(1)[0])
    moved = {name.partition(".")[0] for name, t in states(client, server).items() if not t.equal(before[name])}
    assert moved == ({"client", "server"} if protocol.crosses else {"client"})
    asked = []
    client.split(batches(1)[0], _Asked(server.body, asked))
    assert bool(asked) == protocol.crosses


class _Asked(Here):
    def __init__(self, body, asked):
        super().__init__(body)
        self.asked = asked

    def body(self, z, *given):
        self.asked.append(z)
        return super().body(z, *given)
