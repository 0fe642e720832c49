"""What settings of one guard say of each other in a tune, and which is tried beside the guard that leads."""

import pytest

from cutlayer.audit.tune import run
from cutlayer.audit.tune.budget import Budget
from cutlayer.audit.tune.front import chosen, leading, waiting, why_chosen
from cutlayer.audit.tune.neighbours import family, pooled, step
from cutlayer.audit.tune.space import built, kinds, space_of
from cutlayer.audit.tune.study import Study
from cutlayer.audit.tune.trial import Tried
from cutlayer.core.search import Between, OneOf
from cutlayer.guards import Chain, Gate, LightSplit, Quantize


def tried(guard, leak, loss, size, stage="reader", why=None, trainings=1):
    accuracy = None if loss is None else 0.9 - loss / 100
    return Tried(guard, stage, why, leak, loss, size, 100, accuracy, trainings=trainings)


# ------------------------------------------------------------------ what they say of each other
def test_a_family_is_the_guards_whatever_their_settings():
    assert family(repr(Gate(numbers=8, bits=1))) == family(repr(Gate())) == ("Gate",)
    assert family(repr(Chain(LightSplit(ratio=4), Quantize(bits=2)))) == ("Chain", "LightSplit", "Quantize")
    assert family("mine.py:Shrunk(share=0.5)") == ("mine.py:Shrunk",)
    assert family("A") == ("A",)


def test_where_more_bytes_leak_less_or_lose_more_both_are_given_their_mean():
    some = [
        tried("Gate(numbers=4)", 0.2, 3.0, 4.0),
        tried("Gate(numbers=8)", 0.5, 1.0, 8.0, trainings=3),
        tried("Gate(numbers=16)", 0.3, 2.0, 16.0),
        tried("Gate(numbers=32)", 0.6, -1.0, 32.0),
        tried("TopK(share=0.1)", 0.1, 9.0, 20.0),
    ]
    found = pooled(some)
    assert [found[one.guard].loss for one in some] == pytest.approx([3.0, 1.25, 1.25, -1.0, 9.0]), "by trainings"
    assert [found[one.guard].leak for one in some] == pytest.approx([0.2, 0.45, 0.45, 0.6, 0.1])
    assert some[1].leak == 0.5, "what was found stays as it was"


def test_leaks_are_pooled_among_those_that_were_read_equally_far():
    some = [
        tried("Gate(numbers=4)", 0.5, 1.0, 4.0, stage="attack"),
        tried("Gate(numbers=8)", 0.3, 1.0, 8.0),
        tried("Gate(numbers=16)", 0.1, 1.0, 16.0, why="over leak by a linear reader"),
        tried("Gate(numbers=32)", None, 20.0, 32.0, stage="training")._replace(accuracy=None),
    ]
    found = pooled(some)
    assert [found[one.guard].leak for one in some] == [0.5, 0.3, 0.1, None]
    assert found["Gate(numbers=32)"].loss == 20.0, "a training that was ended early is no measure of the others"
    assert found["Gate(numbers=4)"].loss == 1.0


def test_the_choice_goes_by_what_neighbours_make_likely():
    """Sixteen numbers sent more and lost more than eight: both lose 0.55, which is less than the other guard does."""
    some = [
        tried("Gate(numbers=8)", 0.30, 0.5, 8.0, stage="attack"),
        tried("Gate(numbers=16)", 0.29, 0.6, 16.0, stage="attack"),
        tried("TopK(share=0.1)", 0.10, 0.58, 20.0, stage="attack"),
    ]
    assert [one.guard for one in chosen(some, Budget(leak=0.5))] == [
        "Gate(numbers=8)", "Gate(numbers=16)", "TopK(share=0.1)"
    ]  # fmt: skip
    said = why_chosen(some[1], some, Budget(leak=0.5))
    assert said.endswith(
        "next is TopK(share=0.1), whose own figures are better, but not as settings beside it have it"
    )


# ------------------------------------------------------------------ beside the one that leads
SPACE = {"Gate.numbers": Between(4, 128, log=True), "Gate.bits": Between(1, 4)}


def sends(settings):
    return settings["Gate.numbers"] * settings["Gate.bits"] / 8


def at(numbers, bits):
    return {"guard": "Gate", "Gate.numbers": numbers, "Gate.bits": bits}


def test_the_first_step_is_to_the_side_that_the_budget_asks_for():
    lead = at(32, 2)
    fewer, more = (step(lead, SPACE, [lead], sends, less=less) for less in (True, False))
    assert fewer == at(12, 2), "from 8 bytes halfway to the least, which is one"
    assert more == at(67, 2)


def test_then_the_widest_gap_around_the_leader_is_halved_one_setting_at_a_time():
    lead, tried_ = at(11, 2), [at(32, 2), at(11, 2)]
    for _ in range(20):
        found = step(lead, SPACE, tried_, sends, less=True)
        if found is None:
            break
        assert found not in tried_
        assert sum(found[name] != lead[name] for name in lead) == 1
        tried_.append(found)
    else:
        pytest.fail("it never ends")
    sizes = sorted(sends(one) for one in tried_)
    here = sizes.index(sends(lead))
    assert sizes[here + 1] / sizes[here] < 1.5 and sizes[here] / sizes[here - 1] < 1.5, "close by on both sides"


def test_where_a_setting_does_not_change_the_bytes_its_own_scale_is_gone_by():
    space = {"Noise.scale": Between(0.1, 10.0, log=True)}
    lead = {"guard": "Noise", "Noise.scale": 1.0}
    found = step(lead, space, [lead], lambda settings: 100.0, less=True)
    assert found["Noise.scale"] == pytest.approx(0.316, rel=0.01)
    other = step(lead, space, [lead, found], lambda settings: 100.0, less=True)
    assert other["Noise.scale"] == pytest.approx(3.16, rel=0.01)


def test_a_choice_is_stepped_along_and_what_cannot_be_built_is_left_out():
    space = {"Mine.kind": OneOf("a", "b", "c")}
    lead = {"guard": "Mine", "Mine.kind": "a"}
    found = step(lead, space, [lead], lambda settings: None if settings["Mine.kind"] == "c" else 10.0, less=True)
    assert found["Mine.kind"] == "b"
    assert (
        step(lead, space, [lead, found], lambda settings: None if settings["Mine.kind"] == "c" else 10.0, True)
        is None
    )
    assert step(lead, space, [lead], lambda settings: None, less=True) is None


def test_whether_fewer_bytes_would_serve_hangs_on_what_presses():
    both = Budget(leak=0.6, loss=6)
    assert both.asks_for_less({"leak": 0.4, "loss": 1.0}) and not both.asks_for_less({"leak": 0.1, "loss": 4.0})
    assert both.asks_for_less({"leak": 0.7, "loss": 9.0}) and not both.asks_for_less({"leak": 0.1, "loss": 9.0})
    only = Budget(leak=0.6)
    assert only.asks_for_less({"leak": 0.7, "loss": 0.0}) and not only.asks_for_less({"leak": 0.5, "loss": 1.0})
    assert Budget(loss=6).asks_for_less({"leak": 0.2, "loss": 5.0}), "the least leak within the loss is wanted"


def test_the_leader_is_within_the_budget_and_of_equals_the_one_that_sends_least():
    budget = Budget(leak=0.6, loss=6)
    near = [tried("Gate(numbers=8)", 0.30, 0.5, 8.0), tried("Gate(numbers=16)", 0.31, 0.1, 16.0)]
    far = tried("Gate(numbers=64)", 0.45, -0.2, 64.0)
    out = tried("TopK(share=0.1)", 0.0, 0.0, 2.0, why="over loss under other seeds")
    assert leading([out, far, *near[::-1]], budget)[0] is near[0]
    assert waiting([far, *near[::-1]], budget) == [*near, far]
    assert leading([out, tried("TopK(share=0.5)", 0.9, 0.0, 9.0, why="over leak by one reader")], budget)[0] is out
    assert leading([tried("A", None, None, 1.0, stage="fit", why="does not fit")], budget) == []


# ------------------------------------------------------------------ in a search
def test_two_of_three_draws_are_beside_the_leader_and_the_third_is_of_the_kind_tried_least():
    these = kinds(["Quantize", "Gate"])
    some = Study(these, chains=False, budget=Budget(leak=0.6, loss=6), seed=0)
    some.sends = lambda guard: guard.numbers * guard.bits / 8 if isinstance(guard, Gate) else 100.0 * guard.bits
    drawn = []
    for _ in range(8):
        number, guard = some.ask()
        drawn.append(guard)
        leaks = 0.2 + 0.02 * guard.bits if isinstance(guard, Gate) else 0.9
        why = None if leaks < 0.6 else "over leak by one reader"
        some.tell(number, tried(repr(guard), leaks, 1.0, some.sends(guard), why=why))
    assert [type(guard) for guard in drawn] == [Quantize, Gate, Gate, Gate, Quantize, Gate, Gate, Quantize]
    assert len(set(drawn)) == len(drawn)
    assert sum(getattr(drawn[1], name) != getattr(drawn[2], name) for name in ("numbers", "bits")) == 1


def test_side_by_side_nobody_is_sent_where_another_is():
    some = Study(kinds(["Gate"]), chains=False, budget=Budget(leak=0.6, loss=6), seed=0)
    some.sends = lambda guard: guard.numbers * guard.bits / 8
    number, guard = some.ask()
    some.tell(number, tried(repr(guard), 0.3, 1.0, some.sends(guard)))
    (_, one), (_, other) = some.ask(), some.ask()
    assert one != other


def test_of_kinds_tried_as_seldom_that_which_came_nearest_to_the_budget_is_drawn():
    these = kinds(["Quantize", "TopK", "Noise"])
    some = Study(these, chains=False, budget=Budget(leak=0.4), seed=0)
    some.sends = lambda guard: 100.0 * getattr(guard, "share", 1.0)
    leaks = {"Quantize": 0.9, "TopK": 0.5, "Noise": 0.6}
    drawn = []
    for _ in range(6):
        number, guard = some.ask()
        drawn.append(type(guard).__name__)
        some.tell(number, tried(repr(guard), leaks[drawn[-1]], 1.0, 1.0, why="over leak by one reader"))
    assert drawn == ["Quantize", "TopK", "Noise", "TopK", "TopK", "Noise"], (
        "TopK leads, and Noise was nearer than Quantize"
    )


def test_a_guard_whose_bytes_nobody_can_tell_is_left_to_the_sampler(monkeypatch):
    def broken(work, guard):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(run, "sends", broken)
    assert run._sends(None, Quantize(bits=2)) is None


def test_settings_name_a_guard_and_what_may_be_tried_of_it():
    these = kinds(["LightSplit", "Quantize"])
    settings = {"guard": "LightSplit", "LightSplit.ratio": 4.0, "then": "Quantize", "then Quantize.bits": 2}
    assert built(settings, these, chains=True) == Chain(LightSplit(ratio=4.0), Quantize(bits=2))
    assert set(space_of(settings, these)) == {"LightSplit.ratio", "then Quantize.bits"}
    assert set(space_of({"guard": "Quantize", "then": "nothing"}, these)) == {"Quantize.bits"}
