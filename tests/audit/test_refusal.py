"""An attacker that finds at work that it lacks something is listed as not tried; the others lose nothing by it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import samples, tiny_plan

from cutlayer.attacks import Attack, Attacker, Decoder, smashed
from cutlayer.audit.matrix import audit
from cutlayer.audit.refusal import NotTried, refusals
from cutlayer.audit.report import files as report
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.data.base import Loaded
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import DCT, Chain, LightSplit, NoGuard, NoPeek

LOADED = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
READER = Decoder(readers=("ridge",))
BOTH = (LightSplit(ratio=4), DCT(energy=0.8))
GUARDS = ("none", *map(repr, BOTH))
ERRORS = {
    "images": ValueError("it learns from 9 images at least; set more aside: --aux-samples 9"),
    "memory": MemoryError(),
    "torch": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    "bug": RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
}


@dataclass(frozen=True, repr=False)
class Lacking(Attack):
    """The mean picture, but against the guards named it lacks something, before it begins or while it works."""

    lacks: str
    against_guards: tuple[str, ...] = ()
    late: bool = False
    needs: ClassVar[tuple[str, ...]] = ("aux", "guard")

    def attacker(self, knowledge, seed):
        fails = repr(knowledge.guard.spec) in self.against_guards
        if fails and not self.late:
            raise ERRORS[self.lacks]
        return _Mean(knowledge.aux.mean(0), ERRORS[self.lacks] if fails else None)


class _Mean(Attacker):
    def __init__(self, image, error):
        self.image, self.error = image, error

    def reconstruct(self, messages):
        if self.error is not None:
            raise self.error
        return self.image.expand(len(smashed(messages)), *self.image.shape)


def ran(*attacks, guards=BOTH, resources=None):
    return audit(
        AuditSpec(tiny_plan(epochs=1, batch_size=16), guards, attacks, images=12, alone=False), LOADED, resources
    )


@pytest.mark.parametrize(
    ("lacks", "late", "words"),
    [
        ("images", False, "set more aside"),
        ("memory", False, "needs more memory"),
        ("torch", True, "needs more memory"),
    ],
)
def test_who_lacks_something_is_named_with_the_reason_and_the_others_stay(lacks, late, words, tmp_path):
    lost = Lacking(lacks, (repr(LightSplit(ratio=4)),), late)
    found = ran(READER, lost)
    (one,) = found.not_tried
    assert (one["guard"], one["attack"], one["seed"]) == ("LightSplit(ratio=4)", repr(lost), 0) and words in one[
        "why"
    ]
    assert {(row["guard"], row["attack"]) for row in found.rows} == {
        (guard, attack)
        for guard in ("none", "LightSplit(ratio=4)", "DCT(energy=0.8)")
        for attack in map(repr, (READER, lost))
    } - {(one["guard"], one["attack"])}
    assert found.left_out == {}
    page = report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert "Attacks that were not tried" in page and words in page
    assert report.as_data(found, "x")["not_tried"] == [one]


def test_without_its_control_an_attack_is_not_tried_anywhere_and_a_resumed_audit_says_the_same(tmp_path):
    lost = Lacking("images", (repr(NoGuard()),))
    found = ran(READER, lost, resources=Resources(store=ResultStore(tmp_path / "cells", "x")))
    whys = {one["guard"]: one["why"] for one in found.not_tried}
    assert "set more aside" in whys["none"] and "which is its control" in whys["DCT(energy=0.8)"]
    assert {row["attack"] for row in found.rows} == {repr(READER)}
    again = ran(READER, lost, resources=Resources(store=ResultStore(tmp_path / "cells", "x")))
    assert again.not_tried == found.not_tried and len(again.rows) == len(found.rows)


def test_a_guard_that_nobody_tried_is_left_out_by_name_and_no_row_at_all_is_refused(tmp_path):
    found = ran(Lacking("memory", (repr(DCT(energy=0.8)),)))
    assert set(found.left_out) == {"DCT(energy=0.8)"} and "more memory" in found.left_out["DCT(energy=0.8)"]
    with pytest.raises(ValueError, match=r"no attack could be tried.*set more aside"):
        report.write(ran(Lacking("images", (repr(NoGuard()),)), guards=()), tmp_path / "out", "x")


def test_a_bug_is_no_refusal():
    found = ran(Lacking("bug", (repr(NoGuard()),)), guards=())
    assert len(found.failed) == 1 and "it failed: RuntimeError" in found.not_tried[0]["why"]
    assert "cannot be multiplied" in found.not_tried[0]["why"]
    with pytest.raises(ValueError, match="scores"), refusals(READER):
        raise ValueError("scores have another shape")
    with pytest.raises(NotTried), refusals(READER):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_first_client_with_a_single_image_is_refused_before_any_training():
    """Nothing that was rebuilt of it could count, and a spread of one is no number."""
    loaded, heard = Loaded(samples(40, 1), samples(12, 2), ("a", "b", "c")), []
    plan = tiny_plan(clients=8, partition=Dirichlet(alpha=0.05, refill=True), aux_samples=12, val_share=0.0)
    spec = AuditSpec(plan, [], [READER], seeds=[2], images=8)
    with pytest.raises(ValueError, match=r"the first client's images, and with .* it has 1 of 28"):
        audit(spec, loaded, Resources(on_event=heard.append))
    assert not heard


def test_a_guard_that_needs_more_samples_than_a_client_has_is_refused_before_any_training():
    trained, plan = [], tiny_plan(epochs=1, batch_size=16, clients=30)
    few = Chain(LightSplit(ratio=4), NoPeek())
    given = {"attacks": (READER,), "images": 2, "alone": False, "seeds": (0, 1)}
    resources = Resources(on_event=trained.append)
    with pytest.raises(ValueError, match=r"client 0 has 3 samples.* needs 4 at a time"):
        audit(AuditSpec(plan, (few,), **given), LOADED, resources)
    assert not trained
    result = audit(AuditSpec(plan, optional_guards=(few, DCT(energy=0.8)), **given), LOADED)
    assert "needs 4 at a time" in result.left_out[repr(few)] and not result.failed
    assert {row["guard"] for row in result.rows} == {"none", repr(DCT(energy=0.8))}
