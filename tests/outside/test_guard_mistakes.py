"""What a guard of somebody else may get wrong: each mistake is named before anything is trained."""

from pathlib import Path

import pytest
from toys import tiny_plan

from cutlayer.audit import check
from cutlayer.audit.fit import why_unfit
from cutlayer.core.spec import spec
from cutlayer.guards import WCC, Chain, Clip, Gaussian
from cutlayer.training.facts.privacy import lines, privacy
from cutlayer.training.laws import TASK, refuse_broken
from cutlayer.training.plan.shapes import cut_shapes

SHOWN = (Path(__file__).parents[2] / "recipes" / "plugins" / "channel_dropout.py").read_text()
SENT = "z * mask.reshape(*mask.shape, *[1] * (z.dim() - 2)) / self.keep"
LEAVES = f"return Guarded({SENT})"
MISTAKES = {
    "another precision": (LEAVES, f"return Guarded(({SENT}).double())", "return seen.to(z)"),
    "whole numbers": (LEAVES, f"return Guarded(({SENT}).round().long())", "return seen.to(z)"),
    "z in place": (LEAVES, f"z *= 2\n        {LEAVES}", "changes z in place"),
    "inputs in place": (LEAVES, f"batch.x.mul_(0.5)\n        {LEAVES}", "changes batch.x in place"),
    "labels in place": (LEAVES, f"batch.y.zero_()\n        {LEAVES}", "changes batch.y in place"),
    "a penalty a sample": (LEAVES, f'return Guarded({SENT}, {{"mine": z.flatten(1).mean(1)}})', "one number"),
    "a penalty for the task": (LEAVES, f'return Guarded({SENT}, {{"task": z.mean()}})', "the task's own loss"),
    "drawing anew, and silent of it": ("    def draws_anew(", "    def draws(", "let draws_anew return True"),
    "no super": ("super().__init__()", "nn.Module.__init__(self)", "call super().__init__()"),
}


@pytest.fixture
def guard(tmp_path):
    def written(*changes):
        text = SHOWN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "mine.py").write_text(text)
        return spec(f"{tmp_path / 'mine.py'}:ChannelDropout(keep=0.5)", "guards")

    return written


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_is_trained(mistake, guard):
    old, new, words = MISTAKES[mistake]
    with pytest.raises(ValueError, match="breaks a law of guards") as told:
        refuse_broken([guard((old, new))], (4, 5, 5), TASK)
    assert words in str(told.value)


def test_no_epsilon_is_said_of_noise_with_the_input_behind_it(guard):
    """Noise in front of a guard that adds the input in the clear hides nothing of it."""
    for secret in ("batch.x.mean()", "batch.y.reshape(-1, *[1] * (z.dim() - 1))"):
        peeks = guard((LEAVES, f"return Guarded({SENT} + {secret})"))
        assert any("write bound(self, before)" in one.why for one in check.check(peeks) if one.holds is False)
    refuse_broken([peeks], (4, 5, 5), TASK)  # by itself it is no noise's business
    with pytest.raises(ValueError, match="so no ε holds"):
        privacy(tiny_plan(guard=Chain(Clip(), Gaussian(epsilon=8.0), peeks)), TASK)
    says = ("import Guard,", "import Bound, Guard,")
    bound = """    def bound(self, before):
        return Bound(why="the mean of the inputs leaves beside it")

    def build("""
    honest = guard(says, ("    def build(", bound), (LEAVES, f"return Guarded({SENT} + batch.x.mean())"))
    told = privacy(tiny_plan(guard=Chain(Clip(), Gaussian(epsilon=8.0), honest)), TASK)
    assert told["epsilon"] is None and told["why_no_epsilon"] == "the mean of the inputs leaves beside it"


def test_the_guard_of_the_docs_makes_none(guard):
    refuse_broken([guard()], (4, 5, 5), TASK)
    assert [one.why for one in check.check(guard()) if one.holds is False] == []


def test_a_secret_in_what_a_client_hands_on_is_found(guard):
    """A relay's server has the weights between two turns, and those that two clients share."""
    kept = "self.keep, self.private = keep, private"
    for persistent in (True, False):
        key = f"self.register_buffer('key', torch.tensor(private), persistent={persistent})"
        one = guard((kept, f"{kept}; {key}"))
        broken = [found.why for found in check.check(one) if found.holds is False]
        assert ["the guard's seed is in what" in why for why in broken] == [True] * persistent


def test_claims_of_another_kind_are_told_what_to_return(guard):
    """The answer was a line of the package."""
    boasts = (
        "    def build(",
        '    def claims(self, shape):\n        return "it hides everything"\n\n    def build(',
    )
    with pytest.raises(ValueError, match=r"claims\(\) returns a tuple of Claim\(text, holds\); got 'it hides"):
        refuse_broken([guard(boasts)], (4, 5, 5), TASK)


def test_noise_in_training_alone_is_found_out(guard):
    """Predictions then leave in the clear, and an audit looks at messages of the training."""
    undone = ("return nn.Identity()  # what", "return self.lift(shape, public)  # what")
    noisy = (LEAVES, "return Guarded((z + 3 * torch.randn_like(z) * self.training).flatten(1))")
    shapes = """    def out_shape(self, shape):
        return (torch.Size(shape).numel(),)

    def lift(self, shape, public):
        return torch.nn.Unflatten(1, tuple(shape))

    def build("""
    one = guard(undone, noisy, ("    def build(", shapes))
    (broken,) = [found for found in check.check(one) if found.holds is False]
    assert "act in eval(), too" in broken.why
    with pytest.raises(ValueError, match="in service they are the same"):
        refuse_broken([one], (4, 5, 5), TASK)
    said = f"    rests_in_service = True\n\n{shapes}"
    refuse_broken([guard(undone, noisy, ("    def build(", said))], (4, 5, 5), TASK)


def test_no_claim_that_is_false_is_repeated(guard):
    """The report of an audit has what is claimed under "for every input and every attacker", a training says "may be
    claimed"."""
    claims = """    def claims(self, shape):
        return (Claim("no number that leaves is above {most}", lambda sent: bool(sent.seen.max() <= {most})),)

    def build("""
    assert "import Guard," in SHOWN
    for most, true in ((1e9, True), (1.0, False)):
        one = guard(("    def build(", claims.format(most=most)), ("import Guard,", "import Claim, Guard,"))
        for whole in (one, Chain(one, WCC(weight=0.1))):
            told = why_unfit(tiny_plan(), TASK, whole)
            assert told is None if true else told is not None and 'claims "no number that leaves is above' in told
            plan = tiny_plan(guard=whole)
            if true:
                assert "no number that leaves is above" in lines(privacy(plan, TASK))[0]
            else:
                with pytest.raises(ValueError, match='claims "no number that leaves is above'):
                    cut_shapes(plan, TASK)
