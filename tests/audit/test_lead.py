"""What a report begins with: what is read of the open cut and behind the best guard, and what that rests on."""

from html import unescape

import pytest
import torch
from toys import tiny_plan
from verdict_rows import FLOORS, named, pictured

from cutlayer.audit.report import files as report
from cutlayer.audit.report.lead import lead
from cutlayer.audit.result import Audit
from cutlayer.audit.verdicts import guards_of, over_seeds, verdict

SPREAD = [0.1 * (n % 3) - 0.1 for n in range(40)]  # around a mean, so that there is an interval


def row(guard, ssim, **more):
    return pictured(guard, [ssim + by for by in SPREAD], **more)


def told(*rows, secrets=()):
    verdicts = [verdict(rows, FLOORS, guard, secrets) for guard in guards_of(rows)]
    accuracies = {
        guard: over_seeds([one for one in rows if one["guard"] == guard], lambda one: one["accuracy"])
        for guard in guards_of(rows)
    }
    return lead(verdicts, accuracies, secrets)


def test_it_says_what_is_read_of_the_open_cut_with_its_interval_and_a_blind_guess():
    open_cut, rests = told(row("none", 0.8))
    low, high = row("none", 0.8)["interval"]["value"]
    assert open_cut == (
        f"Without a guard the strongest attacker rebuilds the private images at SSIM 0.80 ({low:.2f} to {high:.2f}), "
        "where 1 would be a perfect copy and a blind guess reaches 0.30."
    )
    assert rests == (
        "This rests on Decoder() (white box); labels, attribute and membership were not tried, and an attack that is "
        "not here may do better."
    )


def test_the_best_guard_is_the_one_that_leaks_least_and_all_are_counted():
    _, best, count, _ = told(row("none", 0.9), row("A()", 0.8), row("B()", 0.5), row("C()", 0.55))
    assert best.startswith("Behind B(), which leaks least of the 3 guards, the strongest attacker rebuilds the ")
    assert "unguarded 1.00" in best and "a blind guess 0.30" in best and "of the leak is left (" in best
    assert best.endswith("Verdict: weakens.")
    assert count == "Of the 3 guards, 2 weaken the attacks and 1 does not protect."


def test_guards_that_leak_alike_make_none_of_them_the_one_that_leaks_least():
    labels = named("none", 0.9), named("A()", 0.9), named("B()", 0.9)
    best = told(row("none", 0.9), row("A()", 0.8), row("B()", 0.5), *labels)[1]
    assert best.startswith("Behind A(), which leaks no more than any other of the 2 guards, the strongest attacker")


def test_the_only_guard_is_no_best_one_and_needs_no_count():
    _, only, _ = told(row("none", 0.9), row("A()", 0.8))
    assert only.startswith("Behind A() the strongest attacker rebuilds")


def test_a_lower_bound_makes_nobody_the_best_guard():
    """Weak attackers found nothing behind B, and D names everything the same: neither leads the report."""
    rows = [row("none", 0.9), row("A()", 0.8), row("D()", 0.35, accuracy=0.2), row("B()", 0.4, white_box=False)]
    _, best, count, _ = told(*rows)
    assert best.startswith("Behind A(), which leaks least of the 1 guard that could be judged, ")
    assert count == "Of the 3 guards, 1 does not protect, 1 could not be judged and 1 has lost the task."
    _, count, _ = told(rows[0], *rows[2:])
    assert count == "Of the 2 guards, 1 could not be judged and 1 has lost the task."


def test_one_guard_of_which_too_little_is_known_leaks_at_least_so_much():
    weak = {"white_box": False}
    _, only, _ = told(row("none", 0.9), row("A()", 0.4, **weak))
    assert ". So at least " in only and only.endswith("Verdict: unknown.")
    _, only, _ = told(row("none", 0.9), row("A()", 0.4, accuracy=0.2))
    assert only.startswith("Behind A(): The task is lost: accuracy 0.20 against 0.90 unguarded")
    broken = {"valid": False, "why_invalid": "it failed"}
    _, only, _ = told(row("none", 0.9), row("A()", 0.4, **broken))
    assert only.startswith("Behind A(): No valid attack, so nothing can be said: it failed.")


def test_of_several_secrets_the_one_that_came_off_worst_is_said():
    rows = [row("none", 0.9), row("A()", 0.35), named("none", 0.9), named("A()", 0.85)]
    open_cut, guard, _ = told(*rows)
    assert "a blind guess reaches 0.30; and reads the labels at accuracy 0.90 (" in open_cut
    assert open_cut.endswith("where chance is 0.20.")
    assert guard.startswith("Behind A() the strongest attacker reads the labels at accuracy 0.85 (")
    assert "unguarded 0.90, chance 0.20" in guard
    open_cut, guard, _ = told(*rows, secrets=("images",))
    assert "labels" not in open_cut and "labels" not in guard


def test_bad_pictures_that_tell_which_image_they_are_of_are_said_to():
    floors = {name: marks | {"identified": 0.1} for name, marks in FLOORS.items()}
    each = {"identified_each": {"scores": [1.0] * 30 + [0.0] * 10, "units": None}}
    rows = [row("none", 0.9, identified=1.0, **each), row("A()", 0.36, identified=0.75, **each)]
    judged = [verdict(rows, floors, guard) for guard in ("none", "A()")]
    assert judged[1].grade == "weakens"
    assert "75 % of its pictures still tell which private image they are of" in lead(judged, {}, ())[1]


def test_a_cut_that_hardly_leaks_is_said_to_and_compares_no_guards():
    open_cut, count, _ = told(pictured("none", 0.32), pictured("A()", 0.31), pictured("B()", 0.3))
    assert open_cut.startswith("Even unguarded the images come back at SSIM 0.32 only")
    assert told(pictured("none", 0.32), pictured("A()", 0.31))[:-1] == [open_cut]
    assert count == "Of the 2 guards, 2 could not be judged."


def test_an_open_cut_on_which_every_attack_ended_in_an_error_is_said_to_be_missing():
    first = told(row("A()", 0.8), row("B()", 0.5))[0]
    assert first == "No attack on the open cut was finished, so there is nothing to set a guard beside."
    found = audited(row("A()", 0.8), row("B()", 0.5))
    page = unescape(report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x"))
    assert first in page and "points" not in page.split("<h2>What it costs</h2>")[1].split("</table>")[0]


def test_of_many_attackers_the_first_two_are_named():
    rows = [row("none", 0.9 - 0.01 * n, attack=name) for n, name in enumerate(("A()", "B()", "C()", "D()"))]
    assert told(*rows)[-1].startswith("This rests on A() (white box), B() (white box) and 2 more; ")


def test_who_rests_on_no_attacker_with_a_working_control_hears_so():
    weak = {"why_control_failed": "it was too weak"}
    assert told(row("none", 0.9, **weak))[-1].startswith("No attacker with a working control stands behind this; ")


def audited(*rows):
    truth, labels = torch.zeros(3, 1, 12, 12), torch.tensor([2, 0, 1])
    grey = {f"{one['guard']} | Decoder()": torch.full((3, 1, 12, 12), 0.5) for one in rows}
    return Audit(tiny_plan(), FLOORS, truth, labels, rows=list(rows), pictures=grey)


@pytest.fixture(scope="module")
def page():
    found = audited(row("none", 0.9), row("A()", 0.8), row("B()", 0.5, bytes_up=2.0, accuracy=0.85))
    return unescape(report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x"))


def test_a_report_leads_with_the_leak_then_cards_then_costs(page):
    order = [
        "Without a guard the strongest attacker", "Behind B(), which leaks least", "This rests on", "An audit of",
        "<h2>Verdict</h2>", '<div class="verdict does-not-protect">', "<th>best-read", "<h2>What it costs</h2>",
        "<h2>Reconstructions</h2>",
    ]  # fmt: skip
    places = [page.index(one) for one in order]
    assert places == sorted(places)


def test_what_it_costs_is_accuracy_bytes_and_the_clients_work_beside_the_open_cut(page):
    costs = page.split("<h2>What it costs</h2>", 1)[1].split("<h2>", 1)[0]
    line = next(one for one in costs.split("<tr>") if "B()" in one)
    assert "<td>0.850" in line and "−5.0 points" in line and "<td>10<" in line and "1.6x fewer" in line
    assert all(word in costs for word in ("accuracy", "bytes", "MMAC"))
