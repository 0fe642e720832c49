"""HeadSwap: a head of the server's making shows every picture, unless clients look at what they are given."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.attacks import HeadSwap
from cutlayer.attacks.headswap import swapped
from cutlayer.audit.hijack import Training, hijack
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.engines.local.run import LocalRun
from cutlayer.metrics.images import ncc
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.step import export, load

RELAY = tiny_plan(clients=3, batch_size=8, epochs=1)
PLANS = [RELAY, *(tiny_plan(clients=3, batch_size=8, epochs=2, rounds=rounds) for rounds in (SplitFed(), Wave()))]


def attacked(attack, plan):
    parts = tiny_parts()
    run, attacker, *_ = hijack(attack, Training(plan, parts, TASK))
    row, _ = judge(attack, Victim(run, 16), parts, 0, attacker=attacker)
    return run, row["ncc"]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: repr(plan.rounds))
def test_it_reads_pictures_of_clients_that_believe_and_fails_at_those_that_look(plan):
    _, believed = attacked(HeadSwap(checked=False), plan)
    run, looked_at = attacked(HeadSwap(), plan)
    assert believed > 0.8 and looked_at < believed - 0.2
    honest = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    assert run.progress.step < honest.timetable.steps, "a client has refused, and the run is over"


def test_a_swapped_head_has_the_form_of_an_honest_one_and_copies():
    run = LocalRun(RELAY, tiny_parts(), classes=TASK.classes)
    network = run.networks[0]
    honest = export(network)
    made = swapped(honest)
    assert {name: (t.shape, t.dtype) for name, t in made.items()} == {
        name: (t.shape, t.dtype) for name, t in honest.items()
    }
    load(network, made)
    x = run.samples[0].x[:8].to(torch.get_default_dtype())
    with torch.no_grad():
        z = network.split.eval().head(x)[:, : x.shape[1]]
    pooled = torch.nn.functional.max_pool2d(x[:, :, 1:-1, 1:-1], 2)
    assert (ncc(z, pooled) > 0.999).all()
