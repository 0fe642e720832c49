"""Seals on weights: what no client of the run has made is refused, and so is what is older than the newest seen."""

import pytest
import torch

from cutlayer.core.errors import OffPlan
from cutlayer.training.seals import NAME, Seals

KEY = bytes(range(32))


def state(value=1.0):
    return {"net.a": torch.full((2, 3), value), "stat.b": torch.arange(3), "optimizer.0.m": torch.zeros(2, 3)}


def parties(*keys):
    return [Seals(key, "plan", client) for client, key in enumerate(keys)]


def handed(one, sender):
    """What a client sends: as it has sent it, it goes on from there."""
    sent = sender.seal(one)
    sender.check(sent)
    return sent


def test_weights_go_round_and_every_client_takes_them_from_the_last():
    first, second = parties(KEY, KEY)
    for value in (1.0, 2.0, 3.0):
        second.check(handed(state(value), first))
        first.check(handed(state(-value), second))


CHANGES = {
    "one weight": lambda s: s["net.a"].__setitem__((0, 0), 7.0),
    "a statistic": lambda s: s["stat.b"].__setitem__(0, 5),
    "the optimizer": lambda s: s["optimizer.0.m"].__setitem__((0, 0), 1.0),
    "the form": lambda s: s.__setitem__("net.a", s["net.a"].reshape(3, 2)),
    "a name": lambda s: s.__setitem__("net.c", s.pop("net.a")),
    "no seal": lambda s: s.pop(NAME),
    "half a seal": lambda s: s.__setitem__(NAME, s[NAME][:50]),
    "zeros": lambda s: s[NAME].zero_(),
    **{
        f"byte {at} of the seal": lambda s, at=at: s[NAME].__setitem__(at, s[NAME][at] ^ 1)
        for at in (0, 16, 24, 30, 60, 120)
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_a_server_changes_is_noticed(change):
    first, second = parties(KEY, KEY)
    sent = handed(state(), first)
    change(sent)
    with pytest.raises(OffPlan, match="the server brings"):
        second.check(sent)


def test_who_has_no_key_makes_no_weights():
    stranger, honest = parties(bytes(32), KEY)
    with pytest.raises(OffPlan, match="no client of this run has made them"):
        honest.check(stranger.seal(state()))


def test_another_plan_or_another_run_with_the_same_key_is_no_source_of_weights():
    first, second = parties(KEY, KEY)
    other = Seals(KEY, "another plan", 0)
    with pytest.raises(OffPlan, match="no client of this run"):
        second.check(other.seal(state()))
    second.check(handed(state(), first))
    earlier = Seals(KEY, "plan", 0)
    for _ in range(5):
        old = handed(state(5.0), earlier)
    with pytest.raises(OffPlan, match="another run"):
        second.check(old)


def test_what_is_older_than_the_newest_seen_is_refused_but_after_a_rewind():
    first, second = parties(KEY, KEY)
    old = handed(state(1.0), first)
    second.check(old)
    seen = second.seen()
    second.check(handed(state(2.0), first))
    with pytest.raises(OffPlan, match="weights of round 1, and round 2 was here before"):
        second.check(old)
    second.check(old, any_round=True)
    second.check(old)
    second.go_to(seen)
    second.check(old)


def test_two_pasts_do_not_go_together():
    """A server that has two clients make the same round cannot show both to a third."""
    first, second, third = parties(KEY, KEY, KEY)
    start = handed(state(0.0), first)
    for one in (second, third):
        one.check(start)
    branches = second.seal(state(1.0)), first.seal(state(2.0))
    third.check(branches[0])
    with pytest.raises(OffPlan, match="other weights of round 2"):
        third.check(branches[1])
    # Nor a round that was made of another one than the last.
    second.go_to(first.seen())
    second.check(branches[1])
    with pytest.raises(OffPlan, match="other weights of round 3"):
        third.check(second.seal(state(3.0)))


def test_weights_without_their_optimizer_are_still_known():
    first, second = parties(KEY, KEY)
    sent = handed(state(), first)
    second.check({name: tensor for name, tensor in sent.items() if not name.startswith("optimizer.")})
