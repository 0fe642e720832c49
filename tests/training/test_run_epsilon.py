"""An ε of a whole run: noise that follows from the epochs of a plan, and what the ledger then says."""

from dataclasses import replace

import pytest
from toys import TASK, TinyNet, tiny_plan

from cutlayer.core.spec import spec
from cutlayer.guards import DPSGD, Chain, Clip, Gaussian
from cutlayer.guards.parts.calibration import sampled_multiplier
from cutlayer.training.facts.privacy import privacy, rounding

NET = TinyNet(norm="group")
RUN = Chain(Clip(norm=1.0), Gaussian(epsilon=6.0, per="run"))


def frozen(part, guard, epochs):
    return tiny_plan(net=NET, guard=guard, frozen_parts=(part,), epochs=epochs)


@pytest.mark.parametrize("epochs", [1, 5, 30])
@pytest.mark.parametrize(
    ("part", "price", "asked", "guard"),
    [
        ("head", "epsilon", 6.0, RUN),
        ("body", "weights", 10.0, DPSGD(epsilon=10.0)),
        ("body", "weights", 1.0, DPSGD(clip=0.3, epsilon=1.0, delta=1e-6)),
    ],
)
def test_a_run_spends_the_epsilon_that_was_asked_for(part, price, asked, guard, epochs):
    ledger = privacy(frozen(part, guard, epochs), TASK)
    assert asked - 1e-6 <= ledger[price]["total"] <= asked + rounding(asked, epochs)


def test_what_is_spent_after_fewer_epochs_is_less_and_the_noise_stays():
    whole = privacy(frozen("body", DPSGD(epsilon=10.0), 30), TASK)["weights"]
    stopped = privacy(frozen("body", DPSGD(epsilon=10.0), 30), TASK, epochs=3)["weights"]
    assert stopped["multiplier"] == whole["multiplier"] and stopped["total"] < 3


def test_the_epochs_are_those_of_the_plan_it_stands_in():
    """However it got there: typed, replaced, by a text or in a chain."""
    plan = frozen("body", DPSGD(epsilon=10.0), 4)
    four = plan.guard.multiplier
    assert replace(plan, epochs=16).guard.multiplier == pytest.approx(2 * four)
    assert replace(replace(plan, epochs=16), epochs=4).guard.multiplier == four
    assert replace(plan, guard=spec(repr(plan.guard))).guard.multiplier == four
    chained = replace(plan, guard=Chain(Clip(), Gaussian(epsilon=6.0, per="run"), DPSGD(epsilon=10.0))).guard
    assert chained.releases_weights().multiplier == four / 2
    assert repr(plan.guard) == "DPSGD(clip=1.0, epsilon=10.0)" and plan.guard == DPSGD(epsilon=10.0)


def test_outside_a_plan_there_is_no_noise_to_build_with():
    with pytest.raises(ValueError, match="give it to a Plan"):
        DPSGD(epsilon=10.0).releases_weights()
    with pytest.raises(ValueError, match="give it to a Plan"):
        RUN.build((4, 5, 5), 1, 2)


def test_with_sampling_the_noise_is_what_the_usual_accountant_of_dpsgd_gives():
    from opacus.accountants import RDPAccountant  # as large as torch, and all workers read this file

    multiplier = sampled_multiplier(10.0, 1e-5, 64 / 45000, 30)
    second = RDPAccountant()
    second.history = [(multiplier, 64 / 45000, round(30 * 45000 / 64))]
    assert second.get_epsilon(1e-5) == pytest.approx(10.0, rel=0.02)


def test_noise_of_papers_is_less_and_the_ledger_says_what_holds_here():
    papers = privacy(frozen("body", DPSGD(epsilon=10.0, sampling=64 / 45000), 30), TASK)["weights"]
    assert papers["total"] > 100, "batches are shuffled, not drawn in secret"


def test_a_body_that_learns_has_no_epsilon_whatever_was_typed():
    assert privacy(frozen("tail", DPSGD(epsilon=10.0), 5), TASK)["weights"]["total"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DPSGD(epsilon=0)", "above 0"),
        ("DPSGD(epsilon=1, noise=2.0)", "either noise or epsilon"),
        ("DPSGD(epsilon=1, delta=0.0)", "delta is a probability"),
        ("DPSGD(sampling=0.1)", "beside an epsilon"),
        ("DPSGD(epsilon=1, sampling=1.5)", "below 1"),
        ("Gaussian(epsilon=1, per='day')", "per 'release'"),
    ],
)
def test_what_makes_no_sense_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        spec(text)
