"""Laws that hold for every attack. A new attack adds one line to ATTACKS."""

import pytest
import torch
from toys import GUARDS, TASK, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.attacks.base import IN_WORDS
from cutlayer.engines.local import LocalRun
from cutlayer.judge import Victim, judge
from cutlayer.metrics import ncc
from cutlayer.spec import spec

ATTACKS = [Decoder(steps=120, width=16, hidden=64)]
all_attacks = pytest.mark.parametrize("attack", ATTACKS, ids=repr)


def trained(guard):
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch=8), tiny_parts(), classes=TASK.classes)
    run.train()
    return run


@pytest.fixture(scope="module")
def open_cut():
    return trained(GUARDS[0])


@all_attacks
def test_its_text_is_itself_and_it_says_what_it_knows(attack):
    assert spec(repr(attack), "attacks") == attack
    assert set(attack.needs) <= set(IN_WORDS)
    assert len(attack.in_words()) == 1 + len(attack.needs)


@all_attacks
def test_it_succeeds_on_the_unguarded_cut(attack, open_cut):
    row, pictures = judge(attack, Victim(open_cut, 32), open_cut.parts, seed=0)
    floor = open_cut.parts.aux.x.mean(0).expand(32, *TASK.shape)
    assert row["ncc"] > ncc(Victim(open_cut, 32).truth, floor).mean().item() + 0.1
    assert pictures.shape == (32, *TASK.shape)


@all_attacks
def test_it_is_reproducible_and_leaves_the_random_state_and_the_victim_alone(attack, open_cut):
    before, state = {k: t.clone() for k, t in open_cut._tensors().items()}, torch.get_rng_state()
    one, _ = judge(attack, Victim(open_cut, 32), open_cut.parts, seed=0)
    other, _ = judge(attack, Victim(open_cut, 32), open_cut.parts, seed=0)
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[name]) for name, t in open_cut._tensors().items())


@all_attacks
@pytest.mark.parametrize("guard", GUARDS[1:], ids=repr)
def test_it_runs_against_every_guard(attack, guard):
    run = trained(guard)
    row, pictures = judge(attack, Victim(run, 16), run.parts, seed=0)
    assert pictures.min() >= 0 and pictures.max() <= 1 and row["n"] == 16
