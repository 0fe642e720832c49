"""Verdicts must not flatter: what counts as found, what a good grade rests on, the tail, doubt, and every secret."""

import random
import re
from pathlib import Path

import pytest
from verdict_rows import FLOORS, named, pictured

from cutlayer.audit import grades
from cutlayer.audit.control import why_invalid
from cutlayer.audit.grades import GRADES, LEAST_LEAK, STRONG_CONTROL
from cutlayer.audit.leak import leak_share
from cutlayer.audit.verdicts import (
    by_form,
    ceiling,
    flags,
    read_secrets,
    strongest,
    verdict,
)
from cutlayer.audit.words import bytes_compared

HIDDEN = (pictured("none", 0.95), pictured("g", 0.31))
PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def judged(*rows, guard="g", floors=FLOORS, secrets=()):
    return verdict(list(rows), floors, guard, secrets)


def spread(mean, width, count=100, seed=0):
    """Scores around a mean."""
    draw = random.Random(seed)
    return [mean + draw.uniform(-width, width) for _ in range(count)]


# ------------------------------------------------------------------ the grades
@pytest.mark.parametrize(
    ("ssim", "grade"),
    [(0.95, "does not protect"), (0.6, "weakens"), (0.45, "blunts"), (0.31, "hides"), (0.1, "hides")],
)
def test_the_share_of_the_leak_that_is_left_gives_the_grade(ssim, grade):
    found = judged(pictured("none", 0.9), pictured("g", ssim, bytes_up=4.0))
    assert found.grade == found.graded == grade
    assert f"{100 * leak_share(ssim, 0.9, 0.3):.0f} % of the leak" in found.sentence
    assert "1.3x fewer bytes" in found.sentence


def test_the_open_cut_is_open():
    found = judged(pictured("none", 0.9), guard="none")
    assert found.grade == "open" and "SSIM 0.90 (a blind guess reaches 0.30)" in found.sentence


def test_the_leak_is_what_lies_above_the_best_blind_guess():
    floors = FLOORS | {"mean": {**FLOORS["mean"], "ssim_either": 0.4, "ssim_p90": 0.4}}
    assert judged(pictured("none", 0.9), pictured("g", 0.5), floors=floors).leak == pytest.approx(0.2)


def test_of_a_figure_that_the_open_cut_does_not_leak_no_share_is_taken():
    """Of a tail that the open cut leaves at its floor, a guard that shows any would leave millions of times that."""
    floors = FLOORS | {"mean": {**FLOORS["mean"], "ssim_p90": 0.95}}
    rows = pictured("none", 0.9, ssim_p90=0.95), pictured("g", 0.45, ssim_p90=0.951)
    assert judged(*rows, floors=floors).leak == pytest.approx(0.25)
    read = pictured("none", 0.9, ssim_p90=0.3), pictured("g", 0.45, ssim_p90=0.9)
    assert judged(*read).leak == 1.0


def test_the_unaligned_decoder_is_no_floor():
    rows = pictured("none", 0.9), pictured("g", 0.6)
    for unaligned in (0.1, 0.55):
        floors = FLOORS | {"unaligned": {**FLOORS["mean"], "ssim_either": unaligned}}
        assert judged(*rows, floors=floors).leak == pytest.approx(0.5)


def test_a_cut_that_hardly_leaks_gives_no_verdict():
    """Otherwise a share of nearly nothing would read as protection."""
    hardly = judged(pictured("none", 0.3 + LEAST_LEAK - 0.01), pictured("g", 0.3))
    assert hardly.grade == "unknown" and "leaks too little" in hardly.sentence


def test_nothing_is_said_of_a_guard_without_a_valid_attack():
    failed = {"valid": False, "why_invalid": "it failed"}
    found = judged(pictured("none", 0.9, **failed), pictured("g", 0.2, **failed))
    assert found.grade == "unknown" and "nothing can be said: it failed" in found.sentence


def test_a_secret_that_was_tried_on_the_open_cut_alone_is_not_known():
    found = judged(*HIDDEN, named("none", 1.0))
    assert found.grade == "unknown" and "none was tried" in found.sentence


def test_a_guard_that_loses_the_task_is_not_praised_for_hiding():
    found = judged(pictured("none", 0.9), pictured("g", 0.3, accuracy=0.3))
    assert found.grade == "task lost" and "accuracy 0.30 against 0.90" in found.sentence


@pytest.mark.parametrize(
    ("accuracy", "before", "chance", "lost"),
    [
        (0.50, 0.90, 0.5, True),  # of two classes no guard gets below half of it
        (0.57, 0.90, 0.5, True),
        (0.59, 0.90, 0.5, False),
        (0.50, 0.55, 0.5, False),  # the unguarded model is hardly one: there is no task to lose
        (0.92, 0.93, 0.9, False),
        (0.46, 0.90, 0.1, False),
    ],
)
def test_of_few_classes_the_task_is_lost_where_little_more_than_guessing_is_left(accuracy, before, chance, lost):
    rows = [
        pictured(guard, 0.9, accuracy=reached, accuracy_chance=chance)
        for guard, reached in (("none", before), ("g", accuracy))
    ]
    found = judged(*rows)
    assert (found.grade == "task lost") == lost
    assert (f"naming the commonest class gives {chance:.2f}" in found.sentence) == lost


def test_a_sentence_that_begins_with_a_name_leaves_it_as_it_is_typed():
    """It may be a file's, and files are told apart by the case of their letters."""
    name = "my/reader.py:Reader()"
    rows = [pictured(guard, 0.5, name, broken=3, below_default=["steps 1 of 2"]) for guard in ("none", "g")]
    found = verdict(rows, FLOORS, "g")
    begun = [one for one in (*found.flags, *flags(rows, [found])) if name.casefold() in one.casefold()]
    assert begun and all(one.startswith(name) for one in begun), begun


def test_who_was_told_the_key_is_a_limit_and_no_threat():
    told = pictured("g", 0.9, "Decoder(keys='true')", ceiling=True)
    assert strongest([told], "g") == told, "where there is no other, it is what we know"
    guessed = pictured("g", 0.4)
    assert strongest([told, guessed], "g") == guessed and ceiling([told, guessed], "g") == told
    assert ceiling([guessed], "g") is None
    assert "Who knew the key would reach 0.90." in judged(pictured("none", 0.95), told, guessed).notes


# ------------------------------------------------------------------ a leak found is a leak
CONTROL = "on the unguarded cut it reached ncc 0.2, below its bar"


def failing_control(guard, scores, attack="Outside()"):
    row = pictured(guard, scores, attack, white_box=False, why_control_failed=CONTROL)
    reason = why_invalid(row, CONTROL, None if guard == "none" else FLOORS)
    return {**row, "valid": reason is None, "why_invalid": reason}


def test_what_beats_every_blind_guess_counts_though_its_control_failed():
    alone = judged(failing_control("none", 0.4), failing_control("g", 0.771))
    assert alone.grade == "does not protect" and "what it found it has found" in alone.sentence
    beside = judged(
        pictured("none", 0.95), pictured("g", 0.35), failing_control("none", 0.4), failing_control("g", 0.771)
    )
    assert beside.grade == "does not protect" and beside.leak == pytest.approx((0.771 - 0.3) / (0.95 - 0.3))


def test_a_low_score_of_an_attack_whose_control_failed_counts_for_nothing():
    low = failing_control("g", 0.2)
    assert not low["valid"] and CONTROL in low["why_invalid"]
    assert judged(failing_control("none", 0.4), low).grade == "unknown"


def test_it_must_beat_the_guess_surely():
    """One lucky image in forty lifts the mean above the floor, and no more than that."""
    assert why_invalid(pictured("g", [0.3] * 39 + [0.5]), CONTROL, FLOORS) is not None
    assert why_invalid(pictured("g", [0.2] * 30 + [0.9] * 10), CONTROL, FLOORS) is None, "a sure tail is a leak"
    assert why_invalid(named("g", 0.22), CONTROL, FLOORS) is not None
    assert why_invalid(named("g", 0.5), CONTROL, FLOORS) is None


def test_on_the_open_cut_an_attack_that_missed_its_bar_is_no_control():
    assert why_invalid(pictured("none", 0.9), CONTROL) == f"the attack failed its control: {CONTROL}"


# ------------------------------------------------------------------ grades need strength
def test_what_an_attacker_misses_that_knew_too_little_is_no_privacy():
    fora = {"attack": "FORA(knows='oblivious')", "white_box": False}
    weak = judged(pictured("none", 0.95, **fora), pictured("g", 0.12, **fora))
    assert weak.grade == "unknown" and "no white-box attacker" in weak.sentence
    strong = judged(
        pictured("none", 0.95, **fora), pictured("g", 0.12, **fora), pictured("none", 0.95), pictured("g", 0.3)
    )
    assert strong.grade == "hides"
    assert any("rests on Decoder() (white box), FORA(knows='oblivious')" in note for note in strong.notes)
    # What it does find counts.
    assert judged(pictured("none", 0.95, **fora), pictured("g", 0.9, **fora)).grade == "does not protect"


def test_a_white_box_that_hardly_reads_the_open_cut_earns_nothing_good():
    weak = judged(pictured("none", 0.40), pictured("g", 0.32))
    assert weak.grade == "unknown" and "reaches SSIM 0.40 only" in weak.sentence
    assert judged(pictured("none", STRONG_CONTROL + 0.01), pictured("g", 0.35)).grade == "blunts"


def test_a_white_box_that_others_surpass_on_the_open_cut_earns_nothing_good():
    fora = {"attack": "FORA()", "white_box": False}
    others = pictured("none", 0.95, **fora), pictured("g", 0.2, **fora)
    weak = judged(pictured("none", 0.6), pictured("g", 0.31), *others)
    assert weak.grade == "unknown" and "reaches 0.60 only, where another one reaches 0.95" in weak.sentence
    assert judged(pictured("none", 0.85), pictured("g", 0.31), *others).grade == "hides"


def test_a_white_box_below_its_default_strength_earns_nothing_good():
    less = {"attack": "Decoder(steps=5)", "plain": "Decoder(steps=5)", "below_default": ["steps 5 of 400"]}
    weak = judged(pictured("none", 0.9, **less), pictured("g", 0.3, **less))
    assert weak.grade == "unknown" and "Decoder(steps=5) worked below its default strength (steps 5 of 400)" in (
        weak.sentence
    )
    assert any("below its default strength" in flag for flag in weak.flags)


def test_a_weak_attacker_that_finds_everything_has_proved_it():
    less = {"attack": "Decoder(steps=5)", "plain": "Decoder(steps=5)", "below_default": ["steps 5 of 400"]}
    rows = pictured("none", 0.9, **less), pictured("g", 0.88, **less), pictured("h", 0.3, **less)
    verdicts = [judged(*rows, guard=name) for name in ("none", "g", "h")]
    assert [one.grade for one in verdicts] == ["open", "does not protect", "unknown"]
    assert [bool(one.flags) for one in verdicts] == [False, False, True]
    assert flags(rows[:2], verdicts[:2]) == [] and "below its default" in flags(rows, verdicts)[0]


def test_a_few_messages_earn_nothing_good():
    rows = [pictured("none", [0.9] * 20), pictured("g", [0.3] * 20)]
    assert judged(*rows).grade == "unknown" and "tried on 20 messages only" in judged(*rows).sentence
    # Two hundred images in groups of ten are twenty messages.
    groups = [n // 10 for n in range(200)]
    assert judged(pictured("none", [0.9] * 200), pictured("g", [0.3] * 200, units=groups)).grade == "unknown"


def test_rows_without_scores_of_single_images_earn_nothing_good():
    """Those of older audits: neither their tail nor their interval is known."""
    rows = [pictured("none", 0.9), pictured("g", 0.3)]
    for row in rows:
        for name in ("sampled", "interval", "ssim_p90"):
            del row[name]
    assert judged(*rows).grade == "unknown" and "single samples were not kept" in judged(*rows).sentence


def priced(total, asked):
    return {"privacy": {"epsilon": {"total": total}}, "epsilon_asked": asked}


@pytest.mark.parametrize(
    ("total", "asked", "grade"),
    [(2.0, 2.0, "hides"), (2.1, 2.0, "unknown"), (None, 2.0, "unknown"), (2.0, None, "unknown"),
     (50.0, 100.0, "unknown")],
)  # fmt: skip
def test_an_epsilon_no_larger_than_asked_for_stands_in_for_a_strong_attacker(total, asked, grade):
    weak = {"attack": "FORA()", "white_box": False}
    assert judged(pictured("none", 0.9, **weak), pictured("g", 0.3, **weak, **priced(total, asked))).grade == grade


# ------------------------------------------------------------------ the tail
def test_one_image_in_ten_that_comes_back_whole_is_found_out():
    for count in (100, 256):
        scores = [0.3] * count
        for place in range(count // 10):
            scores[10 * place] = 1.0
        found = judged(pictured("none", [0.95] * count), pictured("g", scores))
        assert found.grade == "does not protect", count
        assert "The best-read tenth of the images is at 1.00" in found.sentence
        (images,) = found.secrets
        assert images.statistic == "p90" and images.above_half == pytest.approx(count // 10 / count)
        assert images.worst == [[10 * n, 1.0] for n in range(10)]


@pytest.mark.parametrize(
    ("ssim", "right", "said"),
    [(0.31, 0.8, True), (0.31, 0.3, False), (0.31, None, False), (0.95, 0.8, False)],
)
def test_bad_pictures_that_show_the_class_are_said_to(ssim, right, said):
    """Of forty pictures, a fifth of the commonest class, 30 % may be chance. Who reads all needs no word."""
    eye = {} if right is None else {"class_named": right, "class_originals": 0.9, "class_chance": 0.2}
    found = judged(HIDDEN[0], pictured("g", ssim, **eye))
    assert ("The class is in them: a classifier names it right for 80 % of its pictures" in found.sentence) == said


def test_the_tail_is_held_against_the_open_cuts_own():
    """Were it held against the mean, an open cut's own tail would make every guard look bad."""
    scores = [0.4] * 60 + [0.95] * 40
    found = judged(pictured("none", scores), pictured("g", [0.31] * 60 + [0.36] * 40))
    assert found.secrets[0].control in (pytest.approx(0.62), pytest.approx(0.95))
    assert found.leak == pytest.approx((0.33 - 0.3) / (0.62 - 0.3))


# ------------------------------------------------------------------ doubt
def test_where_the_interval_spans_two_grades_both_are_printed_and_the_worse_one_counts():
    found = judged(pictured("none", 0.9), pictured("g", spread(0.43, 0.1)))
    low, high = found.secrets[0].leak_interval
    assert low < 0.35 < high and found.grade == "weakens" and found.graded == "blunts or weakens"
    assert f"({100 * low:.0f} to {100 * high:.0f} %)" in found.sentence


def test_an_interval_from_nothing_to_all_of_the_leak_says_nothing():
    told = {"attack": "Membership()", "secret": "membership", "chance": 0.5, "white_box": True}
    found = judged(named("none", 0.65, **told), named("g", 0.52, **told))
    assert found.grade == found.graded == "unknown" and "from nothing to all" in found.sentence
    # One that is as likely chance on the open cut as behind the guard.
    unsure = judged(named("none", 0.56, **told), named("g", 0.56, **told))
    assert unsure.grade == "unknown" and "not surely above chance" in unsure.sentence
    assert judged(named("none", 0.56, **told), guard="none").grade == "unknown"


def test_images_that_share_a_message_are_one_observation():
    scores = [score for score in spread(0.5, 0.1, 40) for _ in range(5)]
    alone, grouped = (
        judged(pictured("none", 0.9), pictured("g", scores, units=units)).secrets[0].leak_interval
        for units in (None, [n // 5 for n in range(200)])
    )
    assert grouped[1] - grouped[0] > 1.5 * (alone[1] - alone[0])


def test_each_seed_is_held_against_its_own_control_and_the_worst_counts():
    """Against the strongest control of all seeds, a guard would profit from an open cut that was read by luck."""
    rows = [pictured("none", 0.9), pictured("g", 0.36), pictured("none", 0.6, seed=1), pictured("g", 0.45, seed=1)]
    found = judged(*rows)
    assert found.leak == pytest.approx(0.5) and found.secrets[0].seed == 1
    assert found.secrets[0].by_seed == [[0, pytest.approx(0.1)], [1, pytest.approx(0.5)]]
    assert "Images: over 2 seeds 10 to 50 % left." in found.notes


def test_what_a_guard_costs_is_the_mean_over_seeds():
    rows = [
        pictured(guard, 0.9, seed=seed, accuracy=accuracy, bytes_up=up)
        for guard, seed, accuracy, up in (
            ("none", 0, 0.9, 40.0), ("none", 1, 0.8, 40.0), ("g", 0, 0.9, 12.0), ("g", 1, 0.6, 4.0),
        )
    ]  # fmt: skip
    assert "Accuracy −10.0 points, 3.0x fewer bytes" in judged(*rows).sentence


def test_the_same_rows_give_the_same_verdict():
    rows = pictured("none", 0.9), pictured("g", spread(0.5, 0.1))
    assert judged(*rows) == judged(*rows)


# ------------------------------------------------------------------ every secret
def test_a_guard_whose_labels_are_read_does_not_protect():
    found = judged(*HIDDEN, named("none", 1.0, chance=0.317), named("g", 1.0, chance=0.317))
    assert found.grade == "does not protect" and "Does not protect labels" in found.sentence
    assert [(one.secret, one.grade) for one in found.secrets] == [("images", "hides"), ("labels", "does not protect")]
    assert "Images: hides, 2 % left." in found.sentence


def test_what_was_not_tried_is_said():
    found = judged(*HIDDEN)
    assert found.grade == "hides" and found.untried == ["labels", "attribute", "membership"]
    assert "Not tried: labels, attribute and membership." in found.notes
    travels = [{**row, "labels_travel": True} for row in HIDDEN]
    assert any("Labels travel to the server as they are" in note for note in judged(*travels).notes)


def test_the_verdict_goes_by_the_secrets_that_were_asked_for():
    rows = *HIDDEN, named("none", 1.0), named("g", 1.0)
    assert judged(*rows, secrets=("images",)).grade == "hides"
    assert judged(*rows, secrets=("labels",)).grade == "does not protect"
    assert len(judged(*rows, secrets=("images",)).secrets) == 2, "the others are still shown"
    asked = judged(*HIDDEN, secrets=("images", "membership"))
    assert asked.grade == "unknown" and "membership" in asked.sentence


def test_a_secret_of_which_nothing_is_known_is_no_good_grade():
    failed = {
        "secret": "membership",
        "attack": "Membership()",
        "valid": False,
        "why_invalid": "it failed its control",
    }
    found = judged(*HIDDEN, named("none", 0.5, **failed), named("g", 0.5, **failed))
    assert found.grade == "unknown" and "it failed its control" in found.sentence


def test_attributes_are_graded_each_by_itself():
    """One is read, one is hidden: what was read of the first must not be held against the chance of the second."""
    rows = [
        named(guard, right, f"AttributeInference('{target}')", "attribute", chance, white_box=True, target=target)
        for target, chance, unguarded, behind in (("age", 0.1, 0.5, 0.5), ("sex", 0.5, 0.98, 0.5))
        for guard, right in (("none", unguarded), ("g", behind))
    ]
    found = judged(*rows)
    assert [(one.target, one.grade) for one in found.secrets] == [
        ("age", "does not protect"),
        ("sex", "blunts"),
    ]
    assert found.grade == "does not protect"


def test_secrets_are_typed_with_commas_between():
    assert read_secrets(None) == () and read_secrets("images, labels") == ("images", "labels")
    with pytest.raises(
        ValueError, match="among images, records, series, texts, labels, attribute, membership; got 'pictures'"
    ):
        read_secrets("pictures")


# ------------------------------------------------------------------ runs that prove nothing
def test_a_model_that_hardly_learnt_is_flagged_and_earns_nothing_good():
    poor = {"accuracy": 0.3, "accuracy_chance": 0.2}
    rows = pictured("none", 0.9, **poor), pictured("g", 0.31, **poor)
    found = judged(*rows)
    assert found.grade == "unknown" and "hardly learnt its task: accuracy 0.300" in found.sentence
    assert any("hardly learnt" in flag for flag in flags(rows, [found])) and any(
        "hardly learnt" in one for one in found.flags
    )
    assert flags([pictured("none", 0.9)], []) == []


def test_a_guard_that_is_read_better_than_the_open_cut_is_flagged():
    found = judged(pictured("none", 0.9, psnr=19.3), pictured("g", 0.31, psnr=21.8))
    assert found.grade == "unknown" and "21.8 against 19.3 dB" in found.sentence
    assert any("read better than the open cut" in flag for flag in found.flags)
    assert judged(pictured("none", 0.9, psnr=19.3), pictured("g", 0.31, psnr=19.5)).flags == []
    better = judged(pictured("none", 0.6), pictured("g", 0.9))
    assert better.grade == "does not protect" and any("read better" in flag for flag in better.flags)


def test_a_row_that_does_not_count_says_nothing_of_how_well_a_guard_is_read():
    found = judged(pictured("none", 0.9, psnr=15.0), pictured("g", 0.31, psnr=25.0, valid=False, why_invalid="-"))
    assert not any("read better" in flag for flag in found.flags)


def test_an_attack_that_diverged_is_named_and_earns_nothing_good():
    broken = pictured("g", 0.3, broken=3)
    reason = why_invalid(broken, None, FLOORS)
    assert "NaN or infinity for 3 of 40" in reason
    found = judged(pictured("none", 0.9), {**broken, "valid": False, "why_invalid": reason})
    assert found.grade == "unknown" and any("NaN or infinity" in flag for flag in found.flags)
    # What it rebuilt before it diverged, it has rebuilt.
    assert why_invalid(pictured("g", 0.8, broken=3), None, FLOORS) is None


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(4.0, "4.0x fewer bytes"), (0.8, "1.2x more bytes"), (0.5, "2.0x more bytes"), (1.02, "as many bytes")],
)
def test_more_bytes_are_not_called_fewer(ratio, said):
    assert said in bytes_compared(ratio)


def test_what_hides_is_not_said_to_rebuild():
    assert "rebuild" not in judged(*HIDDEN).sentence


def test_forms_are_compared_by_what_they_reached():
    rows = [pictured("g", 0.1, "FORA()", form="oblivious"), pictured("g", 0.8, "FORA()", form="matched")]
    (forms,) = by_form(rows, "g")
    assert forms.gain == pytest.approx(0.7)


# ------------------------------------------------------------------ one table
def test_the_page_has_the_thresholds_of_the_code():
    table = dict(re.findall(r"^\| at most (\d+) % \| (\w+) \|$", PAGE, re.MULTILINE))
    assert table == {f"{100 * limit:.0f}": name for limit, name in GRADES[:-1]}
    assert f"| more | {GRADES[-1][1]} |" in PAGE
    for name in (
        "LEAST_LEAK", "LEAST_TASK", "LEAST_GAIN", "LEAST_LEARNT", "STRONG_CONTROL", "STRONG_SHARE", "LEAST_UNITS",
        "MOST_EPSILON", "READ_BETTER", "WIDE_GAP",
    ):  # fmt: skip
        assert re.search(rf"^\| `{name}` \| {getattr(grades, name):g}\b", PAGE, re.MULTILINE), name


# ------------------------------------------------------------------ messages of several epochs
ANEW = {"draws_anew": True}
LINKING = pictured("g", 0.31, attack="Linked()", linked_by="neighbours", **ANEW)


def test_a_guard_that_draws_anew_is_graded_well_only_if_several_epochs_were_read_together():
    open_cut, hidden = pictured("none", 0.95), pictured("g", 0.31, **ANEW)
    lacking = judged(open_cut, hidden)
    assert lacking.grade == "unknown" and "those of several epochs together" in lacking.sentence
    assert judged(open_cut, hidden, LINKING).grade == "hides"
    assert judged(open_cut, pictured("g", 0.31)).grade == "hides", "what is drawn once needs no such attacker"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ceiling": True, "linked_by": "order"}, "nobody tried to read"),
        ({"why_control_failed": "it failed", "valid": False, "why_invalid": "it failed"}, "failed its control"),
        ({"below_default": ["epochs 3 of 6"]}, "epochs 3 of 6"),
    ],
)
def test_one_that_proves_nothing_does_not_count_for_it(changes, why):
    found = judged(pictured("none", 0.95), pictured("g", 0.31, **ANEW), {**LINKING, **changes})
    assert found.grade == "unknown" and why in found.sentence


def test_labels_behind_such_a_guard_need_no_linked_pictures():
    rows = [named("none", 0.9, white_box=True), named("g", 0.2, white_box=True, **ANEW)]
    assert not any("several epochs" in doubt for one in judged(*rows).secrets for doubt in one.doubts)


def test_an_epsilon_covers_every_epoch():
    price = {"privacy": {"epsilon": {"total": 1.0}}, "epsilon_asked": 1.0}
    assert judged(pictured("none", 0.95), pictured("g", 0.31, **ANEW, **price)).grade == "hides"


def test_who_knew_the_order_is_named_as_a_limit():
    limit = {**LINKING, "value": 0.9, "ceiling": True, "linked_by": "order"}
    found = judged(pictured("none", 0.95), pictured("g", 0.31, **ANEW), LINKING, limit)
    assert found.grade == "hides"
    assert any("which sample every row stands for" in note and "0.90" in note for note in found.notes)
