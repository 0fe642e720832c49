"""Whose answers leave before the body steps: those of a relay that nobody looks into."""

import pytest
from toys import TASK, tiny_plan

from cutlayer.engines.grpc.replies import Replies
from cutlayer.training.build import build_server
from cutlayer.training.coordinator import Coordinator
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave


@pytest.mark.parametrize(
    ("rounds", "watchers", "first"),
    [(Relay(), [], True), (Relay(), [lambda message, answer: answer(message)], False), (Wave(), [], False)]
    + [(SplitFed(version=version), [], False) for version in (1, 2)],
)
def test_a_step_that_may_find_its_turn_void_or_is_watched_comes_before_the_answer(rounds, watchers, first):
    plan = tiny_plan(clients=2, rounds=rounds)
    server = build_server(plan.public(), TASK)
    Replies(Coordinator(plan, server, [1, 1]), at_server=watchers)
    assert server.answers_first is first
