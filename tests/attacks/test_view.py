"""How an attacker looks at a guarded cut: two ways into one space, in every form of knowledge, for every guard."""

import pytest
import torch
from toys import GUARDS, TASK, cut_of, samples

from cutlayer.attacks import FORA, Knowledge, KnownGuard
from cutlayer.attacks.base import FORMS
from cutlayer.attacks.parts.view import View
from cutlayer.core.batch import Batch
from cutlayer.guards import DCT, Chain, LightSplit, Quantize

PUBLIC, PRIVATE, OWN = 5, 11, 7
CASES = [
    (guard, form.knows) for guard in GUARDS for form in FORA().against(guard, cut_of(guard)) if form.knows in FORMS
]


def view_of(guard, form):
    public = guard.public_part()
    return View(form, "own", Knowledge(guard=KnownGuard(public, cut_of(guard), PUBLIC, TASK)), OWN)


@pytest.mark.parametrize(("guard", "form"), CASES, ids=lambda given: given if isinstance(given, str) else repr(given))
def test_both_ways_end_at_one_shape_and_the_attackers_own_can_learn(guard, form):
    """What a client sends is compared with what the attacker would send, and a gradient leads to the latter."""
    cut, batch = cut_of(guard), samples(12)
    view, z = view_of(guard, form), torch.randn(12, *cut_of(guard)).relu()
    module = guard.public_part().build(cut, PUBLIC, PRIVATE, TASK)
    with torch.no_grad():
        seen, _, rows, _ = module(z, Batch(batch.x, batch.y, seed=3))
        seen, rows = module.unmixed(seen, rows)
        theirs = view.read(seen)
    own = torch.randn(12, *view.own).requires_grad_()
    sent = view.sent(own, batch.x, batch.y, 0)
    assert sent.shape[1:] == theirs.shape[1:] == view.shape
    if "lift" in form:
        assert view.shape == cut, "behind the lift a message is a map again"
    (slope,) = torch.autograd.grad(sent.square().sum(), own)
    assert slope.isfinite().all() and slope.abs().sum() > 0


@pytest.mark.parametrize(
    "guard", [LightSplit(ratio=4), DCT(energy=0.7), Chain(LightSplit(ratio=4), Quantize(bits=4))], ids=repr
)
def test_who_has_the_clients_activations_sees_the_clients_messages(guard):
    """Nothing here is secret: with the same z both ways must end at the same row. With a lift alone they do not."""
    cut, batch = cut_of(guard), samples(12)
    z = torch.randn(12, *cut).relu()
    seen = guard.build(cut, PUBLIC, PRIVATE, TASK)(z, Batch(batch.x, batch.y)).seen
    for form in ("matched", "matched+lift"):
        view = view_of(guard, form)
        torch.testing.assert_close(view.sent(z, batch.x, batch.y, 0), view.read(seen))
    alone = view_of(guard, "lift")
    assert not torch.allclose(alone.sent(z, batch.x, batch.y, 0), alone.read(seen), atol=0.1)


def test_another_lift_takes_the_place_of_the_public_one():
    lift = torch.nn.Sequential(torch.nn.Linear(25, 100), torch.nn.Unflatten(1, (4, 5, 5)))
    known = Knowledge(guard=KnownGuard(LightSplit(ratio=4), (4, 5, 5), PUBLIC, TASK))
    seen = torch.randn(3, 25)
    assert torch.equal(View("matched+lift", "own", known, OWN, lift=lift).read(seen), lift(seen))
    assert torch.equal(View("matched", "own", known, OWN, lift=lift).read(seen), seen), "this form reads what came"
