"""Whose answers leave before the body has learnt: those of a relay that nobody looks into."""

import pytest
from rehearsal import NAMES, refuse_other_counts, refuse_other_weights, rehearse, undisturbed
from toys import TASK, tiny_plan

from cutlayer.core import server as core_server
from cutlayer.core.input_first import input_first
from cutlayer.engines.grpc.replies import Replies
from cutlayer.training.build import build_server
from cutlayer.training.coordinator import Coordinator
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import Vanilla


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


@pytest.mark.parametrize(
    "changes", [{}, {"micro_batches": 2, "protocol": Vanilla()}], ids=["whole", "in pieces, vanilla"]
)
def test_over_sockets_weights_wait_for_a_second_pass_and_get_what_one_process_gives_them(
    changes, tmp_path, monkeypatch
):
    later = []
    monkeypatch.setattr(core_server, "input_first", lambda *given: later.append(input_first(*given)) or later[-1])
    plan = tiny_plan(clients=2, epochs=2, batch_size=6, server_optimizer=Adam(), **changes)
    local = undisturbed(plan)
    assert not later, "nobody else computes meanwhile in one process"
    run = rehearse(plan, tmp_path, names=NAMES[: plan.clients])
    assert len(later) == sum(local.progress.taken) * plan.micro_batches and None not in later
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
