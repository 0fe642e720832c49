"""The report shows every row that was made, with its own pictures, and the guards in the order it claims."""

import json
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import samples, tiny_plan
from verdict_rows import COST, FLOORS, named, pictured

from cutlayer.attacks import Attack, Attacker
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.report import pictures
from cutlayer.audit.report.terminal import print_table
from cutlayer.audit.result import Audit
from cutlayer.audit.rows import picture_key
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.data.base import Loaded
from cutlayer.guards import LightSplit
from cutlayer.metrics.images import scores

CONTROL_FAILED = "it was too weak for the open cut"


def row(guard, ssim, attack="A", why=None, **more):
    return pictured(guard, ssim, attack, valid=why is None, why_invalid=why, **more)


def other(guard, why=None):
    """A row of an attack on labels, which makes no pictures."""
    return named(guard, 0.625, "Labels", chance=0.5, count=200, valid=why is None, why_invalid=why)


def audited(*rows):
    """Where everything of a row is one grey, different from all others: a picture tells whose it is."""
    rows = list(rows)
    keys = list(dict.fromkeys(picture_key(one) for one in rows if one["metric"] == "ssim"))
    greys = {key: torch.full((3, 1, 12, 12), (place + 1) / (len(keys) + 1)) for place, key in enumerate(keys)}
    return Audit(tiny_plan(), FLOORS, torch.zeros(3, 1, 12, 12), torch.tensor([2, 0, 1]), rows=rows, pictures=greys)


def page_of(found):
    return report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")


def section(page, title):
    """From a headline to the next one of its size."""
    return page.split(f"<h2>{title}</h2>", 1)[1].split("<h2>", 1)[0]


def lines_of(table):
    return [line for line in table.split("<tr")[1:] if "<td>" in line]


# -------------------------------------------------------------------------------- whose pictures
def drawn(monkeypatch, draw, *args):
    """(label, mean grey of each picture beside it) of every line of a grid."""
    seen = []

    def look(figure, plt, tight=True):
        for axes in figure.axes:
            grey = float(axes.images[0].get_array().mean())
            if axes.texts:
                seen.append((axes.texts[0].get_text(), []))
            seen[-1][1].append(grey)
        plt.close(figure)
        return b""

    monkeypatch.setattr(pictures, "png", look)
    draw(*args)
    return seen


def test_beside_each_guard_stand_the_pictures_of_the_row_that_counts_for_it(monkeypatch):
    """That is the strongest valid one. Pictures of another row would show too little or too much."""
    found = audited(
        row("none", 0.8, "A"), row("none", 0.9, "B"),
        row("g", 0.7, "A"), row("g", 0.5, "B"),
        row("h", 0.95, "A", why=CONTROL_FAILED), row("h", 0.3, "B"),
    )  # fmt: skip
    lines = drawn(monkeypatch, pictures.reconstructions, found)
    assert [label.split("\n") for label, _ in lines] == [
        ["original"], ["none", "SSIM 0.90"], ["g", "SSIM 0.70"], ["h", "SSIM 0.30"],
    ]  # fmt: skip
    shown = [float(found.pictures[key].mean()) for key in ("none | B", "g | A", "h | B")]
    for (_, greys), grey in zip(lines, [0.0, *shown], strict=True):
        assert greys == pytest.approx([grey] * 3)


def test_a_guard_whose_attacks_all_failed_is_shown_as_such_with_its_pictures(monkeypatch):
    found = audited(row("none", 0.9), row("g", 0.2, why=CONTROL_FAILED))
    (label, greys) = drawn(monkeypatch, pictures.reconstructions, found)[-1]
    assert label == "g\nattack failed"
    assert greys == pytest.approx([float(found.pictures["g | A"].mean())] * 3)


def test_of_several_seeds_pictures_and_figure_are_those_of_the_one_whose_originals_are_shown(monkeypatch):
    """The originals are one seed's: another seed's figure, or another attack's pictures, would be false there."""
    found = audited(
        row("none", 0.8, "A"), row("none", 0.6, "B"), row("g", 0.5, "A"), row("g", 0.3, "B"),
        row("none", 0.7, "A", seed=1), row("none", 0.9, "B", seed=1), row("g", 0.95, "B", seed=1),
    )  # fmt: skip
    lines = drawn(monkeypatch, pictures.reconstructions, found)
    assert [label.split("\n") for label, _ in lines] == [
        ["original, seed 0"], ["none", "SSIM 0.80"], ["g", "SSIM 0.50"],
    ]  # fmt: skip
    for (_, greys), key in zip(lines[1:], ("none | A", "g | A"), strict=True):
        assert greys == pytest.approx([float(found.pictures[key].mean())] * 3)
    assert "of seed 0" in section(page_of(found), "Reconstructions")
    assert "of seed 0" not in section(page_of(audited(row("none", 0.8))), "Reconstructions")


@dataclass(frozen=True, repr=False)
class Grey(Attack):
    """Returns the auxiliary images, less bright: what it scores hangs on its field alone."""

    bright: float
    needs: ClassVar[tuple[str, ...]] = ("aux",)

    def attacker(self, knowledge, seed):
        bright = self.bright

        class Guess(Attacker):
            def reconstruct(self, messages):
                return knowledge.aux[: sum(len(message["z"]) for message in messages)] * bright

        return Guess()


def test_the_pictures_that_an_audit_keeps_of_a_row_are_those_its_figures_are_of():
    cells = ResultStore()
    cells.put("0 | floors", FLOORS)  # of no interest here, and the longest part
    loaded = Loaded(samples(80, 1), samples(30, 2), ("a", "b", "c"))
    attacks = [Grey(bright=0.2), Grey(bright=0.9)]
    plan = tiny_plan(epochs=1, batch_size=16)
    made = audit(AuditSpec(plan, [LightSplit(ratio=4)], attacks, images=24), loaded, Resources(store=cells))
    assert len(made.rows) == len(made.pictures) == 4
    for one in made.rows:
        again = scores(made.truth, made.pictures[picture_key(one)])
        assert (again["ssim"], again["psnr"]) == (one["ssim"], one["psnr"])
    assert len({one["psnr"] for one in made.rows}) > 1, "else nothing could be confused"


def test_an_audit_keeps_the_pictures_of_its_first_seed_alone():
    cells = ResultStore()
    for seed in (3, 4):
        cells.put(f"{seed} | floors", FLOORS)
    loaded = Loaded(samples(80, 1), samples(30, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16)
    made = audit(AuditSpec(plan, attacks=[Grey(bright=0.9)], seeds=(3, 4), images=24), loaded, Resources(store=cells))
    first, second = made.rows
    assert made.seed == first["seed"] == 3 and second["seed"] == 4
    again = scores(made.truth, made.pictures[picture_key(first)])
    assert again["psnr"] == first["psnr"] != second["psnr"]


def test_each_column_shows_one_image_and_what_was_made_of_it(monkeypatch):
    """Every class once, in the order of classes, and never the reconstruction of another image below an original."""
    labels = torch.tensor([2, 0, 1, 0])
    truth = torch.arange(4).div(10).reshape(4, 1, 1, 1).expand(4, 1, 12, 12)
    lines = drawn(monkeypatch, pictures.grid, [("original", truth), ("guess", truth + 0.5)], labels)
    assert lines[0][1] == pytest.approx([0.1, 0.2, 0.0, 0.3])
    assert lines[1][1] == pytest.approx([0.6, 0.7, 0.5, 0.8])


def test_pictures_from_a_recording_stand_beside_the_attack_that_made_them(monkeypatch, tmp_path):
    rows = [{"attack": "A", "ssim": 0.2}, {"attack": "B", "ssim": 0.6}]
    pictures = {name: torch.full((3, 1, 12, 12), grey) for name, grey in (("B", 0.75), ("A", 0.25))}
    truth, labels = torch.zeros(3, 1, 12, 12), torch.arange(3)
    lines = drawn(monkeypatch, report.write_attack, {"rows": rows}, truth, labels, pictures, tmp_path)
    assert [(label, greys[0]) for label, greys in lines] == [
        ("original", 0.0), ("B\nSSIM 0.60", 0.75), ("A\nSSIM 0.20", 0.25),
    ]  # fmt: skip


# ----------------------------------------------------------------------------------- failed rows
MIXED = (
    row("none", 0.9, "A"), row("none", 0.1, "B", why=CONTROL_FAILED),
    row("g", 0.4, "A"), row("g", 0.2, "B", why=CONTROL_FAILED), row("g", 0.3, "C", why="one picture for all"),
    row("h", 0.15, "B", why=CONTROL_FAILED),
    other("none"), other("g", why="the labels stayed hidden on the open cut too"),
)  # fmt: skip


def test_every_row_is_in_the_report_and_the_failed_ones_say_why():
    """Who sees only what succeeded takes an attack that was never able to for a guard that held."""
    leakage = section(page_of(audited(*MIXED)), "Leakage")
    whole = leakage.split("<details>", 1)[1]
    assert "Every attack in every form: 6 rows" in whole
    found = lines_of(whole)
    pictured = [one for one in MIXED if one["metric"] == "ssim"]
    assert len(found) == len(pictured)
    for line, one in zip(found, pictured, strict=True):
        assert f"<td>{one['guard']}<br>" in line and f"{one['attack']}, seed 0" in line
        assert f"<td>{one['ssim']:.3f}</td>" in line
        assert ('class="invalid"' in line) == ("not valid:" in line) == (not one["valid"])
        assert one["valid"] or f"not valid: {one['why_invalid']}" in line


def test_a_guard_without_a_valid_attack_keeps_its_line_among_those_that_count():
    leakage = section(page_of(audited(*MIXED)), "Leakage").split("<details>", 1)[0]
    none, g, h, *floors = lines_of(leakage)
    assert "A, seed 0" in none and "A, seed 0" in g and "invalid" not in none + g
    assert "<td>h<br>" in h and f"not valid: {CONTROL_FAILED}" in h
    assert len(floors) == len(FLOORS) and "invalid" not in "".join(floors)


def test_failed_attacks_on_other_secrets_are_shown_too():
    works, fails = lines_of(section(page_of(audited(*MIXED)), "Other secrets"))
    assert "not valid" not in works
    assert 'class="invalid"' in fails and "not valid: the labels stayed hidden on the open cut too" in fails


def test_what_chance_is_for_sorted_labels_is_said():
    """`LabelClustering` has 0.43 there where the commonest class has 0.22."""
    assert "groups of chance that are named as generously" in section(page_of(audited(*MIXED)), "Other secrets")


def test_the_verdict_of_a_guard_without_a_valid_attack_says_so_and_why():
    verdicts = section(page_of(audited(*MIXED)), "Verdict")
    assert f"No valid attack, so nothing can be said: {CONTROL_FAILED}." in verdicts


def test_the_file_of_an_audit_has_every_row():
    found = audited(*MIXED)
    assert json.loads(json.dumps(report.as_data(found, "x")))["rows"] == json.loads(json.dumps(list(MIXED)))


def test_the_table_of_a_terminal_has_a_line_for_every_guard(capsys):
    print_table(audited(*MIXED))
    lines = capsys.readouterr().err.splitlines()
    (failed,) = [line for line in lines if line.startswith(" h ")]
    assert "0.150" in failed and "unknown" in failed
    assert sum("Labels " in line and "0.500" in line for line in lines) == 2, "one for each attack on labels"


def test_figures_of_several_seeds_agree_wherever_they_stand(capsys):
    """Bytes were those of the strongest row's seed in a terminal, means in the verdict, and the first seed's in other
    tables; the sentence on the open cut had another seed's score than the table above it."""
    rows = [
        row(guard, ssim + 0.05 * seed, seed=seed, bytes_up=up - 40.0 * seed, bytes_down=8.0)
        for seed in (0, 1)
        for guard, ssim, up in (("none", 0.8, 100.0), ("g", 0.7, 90.0))
    ]
    found = audited(*rows)
    print_table(found)
    none, g = [line for line in capsys.readouterr().err.splitlines() if line.startswith((" none ", " g "))]
    assert none.split()[-3:-1] == ["80", "8"] and "70" in g.split()
    page = page_of(found)
    verdicts = section(page, "Verdict")
    assert "at SSIM 0.85 (a blind guess" in verdicts and "<td>0.850" in verdicts
    costs, detail = section(page, "What it costs"), section(page, "Cost in detail")
    assert "<td>88<" in costs and "means over the seeds" in costs
    assert "of the first seed" in detail and "108" in detail
    assert "of the first seed" not in page_of(audited(*rows[:2]))


# --------------------------------------------------------------------------------------- ranking
def test_guards_are_ranked_with_the_least_leakage_first_and_the_unknown_last():
    ssim = {"none": 0.9, "d": 0.8, "a": 0.15, "c": 0.6, "b": 0.3, "e": 0.85}
    rows = [row(guard, value) for guard, value in ssim.items()]
    rows.insert(3, row("x", 0.05, why=CONTROL_FAILED))
    verdicts = section(page_of(audited(*rows)), "Verdict").split("<details>", 1)[0]
    found = re.findall(r"<td>(\d+)&nbsp;&nbsp;(\w+)</td>", verdicts)
    assert [guard for _, guard in found] == ["a", "b", "c", "d", "e", "none", "x"]
    # The number is that of the mark in the plot, and stays that of the audit's order.
    assert [int(number) for number, _ in found] == [2, 5, 4, 1, 6, 0, 3]
    leaks = [int(percent) for percent in re.findall(r"</span>(\d+) %", verdicts)]
    assert leaks == sorted(leaks) and len(leaks) == 6


def test_the_number_of_a_guard_is_that_of_its_mark_in_the_plot(monkeypatch):
    """A guard without a valid attack has a number and no mark: the ones behind it must not move up."""
    marks = {}

    def look(figure, plt, tight=True):
        (axes,) = figure.axes
        marks.update({text.get_text(): text.get_position() for text in axes.texts if text.get_text().isdigit()})
        plt.close(figure)
        return b""

    monkeypatch.setattr(pictures, "png", look)
    pictures.tradeoff(audited(row("none", 0.9), row("x", 0.4, why=CONTROL_FAILED), row("g", 0.3, accuracy=0.7)))
    assert marks == {"0": (0.9, 0.9), "2": (0.3, 0.7)}


# ------------------------------------------------------------------------------------------ cost
def test_bytes_are_told_as_bytes_and_the_verdict_says_how_many_times_fewer():
    rows = [row("none", 0.9), row("g", 0.3, bytes_up=2.0, bytes_down=2.0), row("h", 0.2, bytes_weights=16.0)]
    none, g, h = lines_of(section(page_of(audited(*rows)), "Cost in detail"))
    assert "<td>16</td>" in none and "<td>4</td>" in g and "<td>32</td>" in h
    verdict = section(page_of(audited(*rows)), "Verdict")
    assert "4.0x fewer bytes" in verdict and "2.0x more bytes" in verdict


def test_what_may_be_claimed_stands_beside_the_guard_it_is_claimed_of():
    claimed = {**COST["privacy"], "claims": [{"guard": "h", "claim": "rank 3 of 8"}]}
    page = page_of(audited(row("none", 0.9), row("g", 0.3), row("h", 0.2, privacy=claimed)))
    g, h = lines_of(section(page, "What may be claimed"))
    assert "<td>g</td>" in g and "may be claimed: nothing" in g
    assert "<td>h</td>" in h and "rank 3 of 8" in h
