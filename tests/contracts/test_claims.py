"""What is claimed of what leaves is true of what leaves: every guard, alone and in every chain of two."""

from dataclasses import dataclass

import pytest
import torch
from toys import ALL_GUARDS, TASK, TinyNet, cut_of

from cutlayer import Plan
from cutlayer.audit.check import check
from cutlayer.audit.check.claims import COMPANY, chains_with
from cutlayer.core.guard import Guarded, GuardModule
from cutlayer.guards import (
    DPSGD,
    DST,
    LFQ,
    PCA,
    SEAL,
    WCC,
    Chain,
    Claim,
    Clip,
    Gaussian,
    Guard,
    Haar,
    KAnonymous,
    LightSplit,
    Quantize,
    Sent,
    SplitFC,
    Subset,
)
from cutlayer.guards.base import standing
from cutlayer.training.claims import held
from cutlayer.training.facts.privacy import lines, privacy
from cutlayer.training.laws import claims_what_is_so, toy_batch

CUT = (4, 5, 5)
ONE_OF_A_KIND = list({type(guard): guard for guard in reversed(ALL_GUARDS) if len(guard.stages()) == 1}.values())
CLAIMANTS = [guard for guard in ONE_OF_A_KIND if guard.claims(cut_of(guard))]


@pytest.mark.parametrize("guard", ALL_GUARDS, ids=repr)
def test_a_guard_claims_what_is_true(guard):
    claims_what_is_so(guard, cut_of(guard), TASK)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guard", ONE_OF_A_KIND, ids=repr)
def test_every_chain_of_two_claims_what_is_true(guard):
    """In either order beside every guard that claims something: two that claim nothing cannot be wrong."""
    cut = cut_of(guard)
    for chain in chains_with(guard, [one for one in CLAIMANTS if cut_of(one) == cut], cut):
        claims_what_is_so(chain, cut, TASK)


@pytest.mark.parametrize("guard", CLAIMANTS, ids=repr)
def test_every_check_can_fail(guard):
    z, other = (torch.randn(128, *CUT, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    nothing_of_it = Sent(z, 1e3 * other, None, 10**6)
    assert [claim.holds(nothing_of_it) for claim in guard.claims(CUT)] == [False]


# Measured once on what these sent: rows of length 13.5, a cosine of -0.24, raw floats, 593 of 360 bytes.
LOST = [
    Chain(Clip(norm=1.0), Gaussian(scale=1.0)),
    Chain(Clip(norm=1.0), Gaussian(epsilon=8)),
    Chain(SEAL(), Gaussian(scale=2.0)),
    Chain(LFQ(bits=3), Gaussian(scale=0.1)),
    Chain(SplitFC(ratio=2, budget=1), Clip(norm=1.0)),
    Chain(Gaussian(scale=0.5), Quantize(bits=2)),
]


@pytest.mark.parametrize("chain", LOST, ids=repr)
def test_a_later_guard_takes_away_what_it_breaks(chain):
    first = standing(chain, CUT)[0]
    assert not first.claims and first.sentence() == f"none: {chain.parts[1]} changes what leaves behind it"
    assert chain.parts[0].claims(CUT)[0].text not in chain.claim(CUT)


@pytest.mark.parametrize("chain", LOST, ids=repr)
def test_what_was_taken_away_was_false(chain, monkeypatch):
    """The same chains, if claims survived whatever comes: the law finds each of them out."""
    own = chain.parts[0].claims(CUT)[0]
    monkeypatch.setattr(type(chain.parts[0]), "claims", lambda self, shape: (own._replace(survives=lambda *_: True),))
    z = 10 * torch.randn(32, *CUT, generator=torch.Generator().manual_seed(0))
    found = held(chain, CUT, z, toy_batch(TASK, 32), TASK)
    assert not found[0].holds and found[0].claim.text == own.text
    with pytest.raises(AssertionError, match="that is false of what Chain"):
        claims_what_is_so(chain, CUT, TASK)


@pytest.mark.parametrize(
    "chain",
    [
        Chain(LightSplit(ratio=4), Quantize(bits=4)),
        Chain(Subset(ratio=4), Gaussian(scale=0.1)),
        Chain(Clip(norm=1.0), LightSplit(ratio=4)),
        Chain(Clip(norm=1.0), KAnonymous(k=2)),
        Chain(KAnonymous(k=2), Gaussian(scale=0.1)),
        Chain(Clip(norm=2.0), Clip(norm=1.0)),
        *(Chain(one, WCC(weight=0.1)) for one in CLAIMANTS if not one.mixes_samples),
    ],
    ids=repr,
)
def test_what_a_later_guard_cannot_break_is_kept(chain):
    assert standing(chain, CUT)[0].claims


def test_the_ledger_says_no_more_than_what_leaves():
    plan = Plan(net=TinyNet(), guard=Chain(Clip(norm=1.0), Gaussian(epsilon=8)), frozen_parts=("head",))
    told = privacy(plan, TASK)
    clip, noise = (one["claim"] for one in told["claims"])
    assert clip == "none: Gaussian(epsilon=8) changes what leaves behind it" and noise.startswith("Gaussian noise")
    assert "longer than" not in " ".join(lines(told))


def test_a_claim_that_begins_with_none_is_a_claim(monkeypatch):
    said = Claim("none of what leaves is larger than 1", lambda sent: True)
    monkeypatch.setattr(Subset, "claims", lambda self, shape: (said,))
    told = lines(privacy(Plan(net=TinyNet(), guard=Chain(Subset(ratio=4), Gaussian(scale=0.1))), TASK))
    assert "none of what leaves is larger than 1" not in told[0], "the noise behind it has taken it away"
    told = lines(privacy(Plan(net=TinyNet(), guard=Subset(ratio=4)), TASK))
    assert told[0] == "may be claimed: Subset(ratio=4): none of what leaves is larger than 1"


def test_a_guard_beside_the_messages_takes_nothing_away():
    chain = Chain(Clip(norm=1.0), DPSGD(clip=1.0, noise=1.0))
    assert chain.claim(CUT) == "Clip: no row that leaves is longer than 1 in L2"


# ------------------------------------------------------------------------------------------------ planted liars
class _Louder(GuardModule):
    def forward(self, z, batch):
        return Guarded(1.5 * z)


@dataclass(frozen=True, repr=False)
class Boaster(Guard):
    """Claims a bound that it does not have."""

    def build(self, shape, public, private, task=None):
        return _Louder()

    def claims(self, shape):
        return (Claim("no number that leaves is above 3", lambda sent: bool((sent.seen <= 3).all())),)


@dataclass(frozen=True, repr=False)
class Accomplice(Guard):
    """Claims nothing itself, but says that it stretches no row."""

    def build(self, shape, public, private, task=None):
        return _Louder()

    def bound(self, before):
        return before


@dataclass(frozen=True, repr=False)
class Prattler(Guard):
    """A sentence that nobody can check."""

    def build(self, shape, public, private, task=None):
        return _Louder()

    def claim(self, shape):
        return "perfectly private"


@pytest.mark.parametrize(
    ("liar", "law", "words"),
    [
        (Boaster(), "what it claims is true", '"no number that leaves is above 3", and that is false'),
        (Accomplice(), "what it claims is true", '"no row that leaves is longer than 1 in L2", and that is false of'),
        (Prattler(), "its claims are one line each", "a sentence that nothing checks"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_check_finds_a_liar_out(liar, law, words):
    (broken,) = [one for one in check(liar) if one.holds is False]
    assert broken.law.startswith(law) and words in broken.why


def test_the_company_of_an_outsiders_guard_makes_every_claim_there_is():
    as_the_cosine = {DST, Haar, PCA}  # the same claim in another basis
    assert {type(one) for one in CLAIMANTS} - as_the_cosine <= {type(one) for one in COMPANY}
