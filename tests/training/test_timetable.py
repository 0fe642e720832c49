"""Which rounds a plan has: what is counted without writing them down equals what is written down."""

import pytest
from toys import tiny_plan

from cutlayer.training.plan.roles import AllActive, Frozen, SendOnce
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.timetable import Timetable

UNEVEN, EVEN = [3, 0, 5, 4, 1], [4, 4, 4, 4, 4]
ROLES = [AllActive(), Frozen(0.4), Frozen(0.4, discard=True), Frozen(0.4, rotate=2, discard=True)]
CHANGES = [
    *({"roles": roles} for roles in (*ROLES, SendOnce(split=1))),
    *({"roles": roles, "clients_per_round": 2} for roles in ROLES),
]


def plan(**changes):
    return tiny_plan(**({"clients": 5, "epochs": 4, "rounds": SplitFed()} | changes))


def written_down(timetable):
    return [
        (turn.client, epoch, batch, turn.frozen)
        for epoch in range(timetable.plan.epochs)
        for one in timetable.rounds(epoch)
        for turn in one
        for batch in range(turn.first, turn.last)
    ]


@pytest.mark.parametrize("batches", [UNEVEN, EVEN], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_steps_and_their_places_are_those_of_the_rounds(batches, length, changes):
    timetable = Timetable(plan(local_steps=length, **changes), batches)
    every = written_down(timetable)
    assert timetable.steps == len(every)
    for client in range(5):
        own = [place for number, *place in every if number == client]
        assert [list(timetable.place(client, step)) for step in range(len(own))] == own
        with pytest.raises(ValueError, match=f"client {client} has no such step in this plan"):
            timetable.place(client, len(own))


@pytest.mark.parametrize("changes", [{"roles": Frozen(0.5)}, {"clients_per_round": 2}], ids=str)
def test_a_long_plan_is_counted_without_writing_its_rounds_down(changes, monkeypatch):
    monkeypatch.setattr(Timetable, "rounds", lambda *given: pytest.fail("it wrote them down"))
    assert Timetable(plan(epochs=10**9, **changes), EVEN).steps == 10**9 * (8 if "roles" not in changes else 20)
