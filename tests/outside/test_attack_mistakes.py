"""What an attack of somebody else may get wrong: its row then says why, and never shows another figure."""

from dataclasses import dataclass

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.attacks import Attack, Attacker
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.engines.local.run import LocalRun

COUNT = 12


class Answers(Attacker):
    def __init__(self, reconstruct=None, infer=None, remarks=None):
        self.given = reconstruct, infer, remarks

    def reconstruct(self, messages):
        return self.given[0](COUNT)

    def infer(self, messages):
        return self.given[1](sum(len(message["z"]) for message in messages if "z" in message.tensors))

    def remarks(self):
        return self.given[2] or {}


@dataclass(frozen=True, repr=False)
class Pictures(Attack):
    """Makes pictures of nothing."""


@dataclass(frozen=True, repr=False)
class Labels(Attack):
    """Names labels at random."""

    secret = "labels"


@dataclass(frozen=True, repr=False)
class Members(Attack):
    """Scores samples at random."""

    secret = "membership"


@pytest.fixture(scope="module")
def victim():
    run = LocalRun(tiny_plan(batch_size=8), tiny_parts(), classes=TASK.classes)
    return Victim(run, COUNT)


def grey(count):
    return torch.full((count, *TASK.shape), 0.5)


MISTAKES = {
    "too few pictures": (Pictures(), {"reconstruct": lambda n: grey(n - 3)}, "9 answers for the 12 rows"),
    "scores of every class": (Labels(), {"infer": lambda n: torch.rand(n, 3)}, "one number for each row"),
    "two scores a sample": (Members(), {"infer": lambda n: torch.rand(n, 2)}, "one number for each row"),
    "a figure of the judge's": (
        Pictures(),
        {"reconstruct": grey, "remarks": {"ssim": 0.0, "match": 1.0}},
        "remarks() names ssim, which the judge measures",
    ),
    "what no file holds": (
        Pictures(),
        {"reconstruct": grey, "remarks": {"loss": torch.tensor(1.0)}},
        "remarks() has loss, which is a Tensor",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_what_to_do(mistake, victim):
    attack, answers, words = MISTAKES[mistake]
    with pytest.raises(ValueError) as told:
        judge(attack, victim, tiny_parts(), 0, attacker=Answers(**answers))
    assert words in str(told.value)


def test_a_column_of_one_is_one_number_for_each_row(victim):
    flat, column = (
        judge(Labels(), victim, tiny_parts(), 0, attacker=Answers(infer=one))[0]
        for one in (lambda n: torch.zeros(n), lambda n: torch.zeros(n, 1))
    )
    assert flat["value"] == column["value"]


def test_other_remarks_stand_in_the_row(victim):
    said = {"reader": "mine", "match": 0.5}
    row, _ = judge(Pictures(), victim, tiny_parts(), 0, attacker=Answers(reconstruct=grey, remarks=said))
    assert row.items() >= said.items()
