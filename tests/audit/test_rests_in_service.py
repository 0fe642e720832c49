"""A guard that rests in service is judged by what it sends there, too: what it drew in training covers nothing."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder, Linked
from cutlayer.audit import matrix
from cutlayer.audit.knowledge import after_training
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.verdicts import verdict
from cutlayer.audit.victim import Victim
from cutlayer.core.guard import Guarded, GuardModule
from cutlayer.core.seeds import derive, generator
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Chain, Guard, Noise, TopK

LOADED = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
READER = Decoder(steps=10, hidden=16, readers=("ridge",))
LINKED = Linked(epochs=2, steps=10, hidden=16, readers=("ridge",))


class _Drawing(GuardModule):
    def __init__(self, private):
        super().__init__()
        self.private = private

    def forward(self, z, batch):
        drawn = torch.randn(z.shape, generator=generator(derive(self.private, batch.seed)))
        return Guarded(z + 10 * drawn.to(z) if self.training else z)


@dataclass(frozen=True, repr=False)
class Drawing(Guard):
    """Noise in which nothing can be read, in training alone."""

    rests_in_service: ClassVar[bool] = True

    @property
    def draws_anew(self):
        return True

    def build(self, shape, public, private, task=None):
        return _Drawing(private)


def ran(guard, *attacks):
    return audit(AuditSpec(tiny_plan(epochs=2, batch_size=16), [guard], attacks, images=20, alone=False), LOADED)


@pytest.mark.parametrize("guard", [Drawing(), Chain(TopK(share=0.9), Drawing())], ids=["alone", "in a chain"])
def test_what_it_sends_in_service_counts(guard):
    found = ran(guard, READER, LINKED)
    open_cut, row, *linked = [row for row in found.rows if "linked_by" not in row]
    told = row["read_in"]
    assert row["value"] == told["service"] > told["training"] + 0.1
    assert "read_in" not in open_cut and not linked
    assert all("read_in" not in one for one in found.rows if "linked_by" in one), "in service nothing is sent again"
    (note,) = [one for one in verdict(found.rows, found.floors, repr(guard)).notes if "rests in service" in one]
    assert "1 of 1 read better in service" in note


def test_a_reading_that_diverged_is_not_the_better_one(monkeypatch):
    """Its row would count for nothing, and what was read in training for nothing with it."""
    judge = matrix.judge

    def diverging(attack, victim, *given):
        row, pictures = judge(attack, victim, *given)
        return ({**row, "recon_std": 0.0} if victim.still else row), pictures

    monkeypatch.setattr(matrix, "judge", diverging)
    row = ran(Drawing(), READER).rows[-1]
    assert row["recon_std"] > 0 and row["value"] == row["read_in"]["training"] < row["read_in"]["service"]


def test_one_that_draws_in_service_too_is_read_once():
    assert all("read_in" not in row for row in ran(Noise(scale=0.5), READER).rows)


def test_who_copies_the_guard_copies_it_as_it_is_in_service():
    run = LocalRun(tiny_plan(guard=Drawing(), batch_size=16), tiny_parts(), classes=3)
    victim = Victim(run, 8)
    known = [after_training(one, run.parts).guard.copy(1).training for one in (victim, victim.in_service)]
    assert known == [True, False]
