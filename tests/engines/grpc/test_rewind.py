"""A snapshot is all that the next step depends on: with every guard, in a new process or in one that lives on."""

import pytest
from rehearsal import refuse_other_tensors
from toys import GUARDS, TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.protocols import Vanilla


class Broken(Exception):
    """The connection is gone in the middle of a step."""


class Corridor:
    """Between clients and server: breaks once, at the n-th message of a kind."""

    def __init__(self, kind, count):
        self.kind, self.left = kind, count

    def __call__(self, handle):
        def carried(message):
            answer = handle(message)
            if message.kind is self.kind:
                self.left -= 1
                if self.left == 0:
                    raise Broken
            return answer

        return carried


def start(plan, wrap=lambda handle: handle):
    return LocalRun(plan, tiny_parts(24), classes=TASK.classes, wrap=wrap)


PLANS = [
    *(
        tiny_plan(clients=2, shared_client_network=guard.exchange == "replace", batch_size=6, guard=guard, epochs=1)
        for guard in GUARDS
    ),
    tiny_plan(
        clients=2, shared_client_network=False, batch_size=6, epochs=1, guard=DPSGD(), net=TinyNet(norm="group")
    ),
    tiny_plan(
        clients=2, shared_client_network=False, batch_size=6, epochs=1, protocol=Vanilla(), client_optimizer=Adam()
    ),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.protocol} {plan.guard}")
def test_a_client_that_goes_back_learns_the_same_again(plan):
    whole = start(plan)
    whole.train()
    # The third update is made at the server and its answer lost: the client stands in the middle of a step.
    run, kept = start(plan, Corridor(Kind.BACKWARD, count=3)), []
    with pytest.raises(Broken):
        run.train(on_round=lambda: kept.append(run.snapshot()) if not kept else None)
    tensors, facts = kept[0]
    assert 0 < facts["step"] < whole.progress.step
    for client in range(plan.clients):
        run.server.forget(client)
    fresh = start(plan)
    for one in (run, fresh):
        one.restore({name: tensor.clone() for name, tensor in tensors.items()}, facts)
        assert one.train()
        refuse_other_tensors(whole.tensors(), one.tensors())
        assert [row["task"] for row in one.progress.history] == [row["task"] for row in whole.progress.history]
    assert fresh.carrier.evaluate("test") == whole.carrier.evaluate("test")
