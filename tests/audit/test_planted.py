"""A weak suite, an inverted reader and a leaking tail, planted in an audit: each of its pages finds them out."""

import json

import pytest
import torch
from toys import samples, tiny_plan
from verdict_rows import COST, FLOORS, named

from cutlayer.audit.report import files as report
from cutlayer.audit.report import pictures
from cutlayer.audit.report.terminal import print_table
from cutlayer.audit.result import Audit
from cutlayer.audit.rows import picture_key
from cutlayer.audit.uncertainty import intervals, sampled
from cutlayer.metrics.bootstrap import RECOGNISED
from cutlayer.metrics.images import scores, ssim_either
from cutlayer.metrics.recognition import identified

TRUTH = samples(100).images()
GREY = torch.full_like(TRUTH, 0.5) + 0.01 * torch.rand(TRUTH.shape, generator=torch.Generator().manual_seed(0))


def row(guard, pictures, attack, **changes):
    """The row that the judge would write of these pictures."""
    each = ssim_either(TRUTH, pictures)
    facts = COST | scores(TRUTH, pictures) | {
        "guard": guard, "attack": attack, "plain": attack, "secret": "images", "metric": "ssim", "chance": None,
        "n": len(TRUTH), "value": float(each.mean()), "above_half": float((each > RECOGNISED).double().mean()),
        "worst": [[n, float(each[n])] for n in each.sort(descending=True).indices[:10].tolist()],
        "sampled": sampled(each, None), "identified": float(identified(TRUTH, pictures).mean()),
        "identified_each": sampled(identified(TRUTH, pictures), None),
    } | changes  # fmt: skip
    return {**facts, "interval": intervals(facts)}


def audited(guarded, attack="Decoder()", **changes):
    open_cut, behind = 0.9 * TRUTH + 0.1 * GREY, guarded
    rows = [row(guard, made, attack, **changes) for guard, made in (("none", open_cut), ("Planted()", behind))]
    pictures = {picture_key(one): made for one, made in zip(rows, (open_cut, behind), strict=True)}
    mean = TRUTH.mean(0).expand_as(TRUTH)
    marks = {**scores(TRUTH, mean), "identified": float(identified(TRUTH, mean).mean())}
    floors = {name: {**FLOORS[name], **marks} for name in FLOORS}
    return Audit(tiny_plan(), floors, TRUTH, torch.arange(100) % 3, rows=rows, pictures=pictures)


def said(found, capsys):
    """What the JSON page, the HTML page and the terminal say of the planted guard: its grade in all three."""
    data = json.loads(json.dumps(report.as_data(found, "x")))
    (judged,) = [one for one in data["verdicts"] if one["guard"] == "Planted()"]
    page = report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert f'<span class="tag">{judged["graded"]}</span>\n<h3>Planted()</h3>' in page
    print_table(found)
    printed = capsys.readouterr().err
    line, *_ = [line for line in printed.splitlines() if line.startswith(" Planted()")]
    assert line.rstrip().endswith(judged["graded"])
    for name in judged["secrets"][0]["rests_on"]:
        assert name in printed and name in page.replace("&#39;", "'"), "the verdict names the attackers it rests on"
    return judged, page


def test_a_guard_that_does_hide_is_still_said_to(capsys):
    """Else nothing below would mean anything."""
    judged, _ = said(audited(GREY), capsys)
    assert judged["grade"] == "hides" and judged["secrets"][0]["rests_on"] == ["Decoder() (white box)"]


@pytest.mark.parametrize(
    ("attack", "weakness", "why"),
    [
        ("FORA(knows='oblivious')", {"white_box": False}, "no white-box attacker"),
        ("Decoder(steps=5)", {"below_default": ["steps 5 of 400"]}, "below its default strength"),
    ],
)
def test_a_weak_suite_is_found_out(attack, weakness, why, capsys):
    judged, page = said(audited(GREY, attack, **weakness), capsys)
    assert judged["grade"] == "unknown" and why in judged["sentence"] and why in page


def test_an_inverted_reader_is_found_out(capsys):
    found = audited(1 - TRUTH)
    assert found.rows[1]["ssim"] < 0.3, "by its sign alone it would hide everything"
    judged, page = said(found, capsys)
    assert judged["grade"] == "does not protect" and "Does not protect images" in page


def test_a_leaking_tail_is_found_out(capsys):
    tail = GREY.clone()
    tail[::10] = TRUTH[::10]
    judged, page = said(audited(tail), capsys)
    assert judged["grade"] == "does not protect" and "The best-read tenth of the images is at 1.00" in page
    (images,) = judged["secrets"]
    assert images["above_half"] == pytest.approx(0.1)
    assert sorted(number for number, _ in images["worst"]) == list(range(0, 100, 10))


def test_a_pale_picture_that_names_its_image_is_found_out(capsys):
    """By SSIM it hides everything, and whoever has the images still says which one each picture is of."""
    pale = GREY + 0.03 * (TRUTH - 0.5)
    found = audited(pale)
    assert found.rows[1]["identified"] > 0.9
    judged, page = said(found, capsys)
    (images,) = judged["secrets"]
    assert images["leak"] < 0.1 < 0.9 < images["identified_leak"] and images["identified_by"] == "Decoder()"
    assert judged["grade"] == "weakens" and "still tell which private image they are of" in page
    # Rows and floors of before this was measured are graded as they were.
    for marks in [*found.rows, *found.floors.values()]:
        marks.pop("identified", None)
    assert said(found, capsys)[0]["grade"] == "hides"


def test_labels_that_are_read_are_in_the_verdict(capsys):
    found = audited(GREY)
    found.rows += [named(guard, 1.0, chance=0.317) for guard in ("none", "Planted()")]
    judged, page = said(found, capsys)
    assert judged["grade"] == "does not protect" and judged["secrets"][0]["grade"] == "hides"
    assert "Does not protect labels" in page and "<b>Not tried: attribute, membership.</b>" in page
    found.secrets = ("images",)
    assert said(found, capsys)[0]["grade"] == "hides"


def test_the_images_that_were_read_best_are_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(pictures, "grid", lambda lines, labels: shown.extend(lines) or b"drawn")
    tail = GREY.clone()
    tail[::10] = TRUTH[::10]
    assert pictures.read_best(audited(tail)) == b"drawn"
    (original, truth), (_, made) = shown[-2:]
    assert original == "Planted()\noriginal" and torch.equal(truth, made), "the ten that came back whole"
