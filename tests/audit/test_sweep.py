"""A sweep: points, families and fronts from the rows of an audit, the figure and table, and the command itself."""

import csv
import io
import json

import pytest
from toys import samples
from typer.testing import CliRunner
from verdict_rows import pictured

from cutlayer.audit.report.sweep import USUAL, figure, points, table
from cutlayer.audit.verdicts import total_bytes
from cutlayer.cli import app as cli
from cutlayer.core.batch import Task
from cutlayer.data.base import Loaded
from cutlayer.training.plan.plan_text import read_guards

FLOORS = {name: {"ssim": 0.2} for name in ("blank", "mean", "class_mean")}
RATES = {
    "bits per feature": 4.0,
    "bits per input pixel": 2.0,
    "uplink ratio": 3.0,
    "total ratio": 2.5,
    "amortised": 5.0,
}


def row(guard, accuracy, up, ssim, seed=0, **changes):
    cost = {"bytes_up": up, "bytes_down": 10.0, "bytes_weights": 1.0, "rates": RATES, "seed": seed}
    return pictured(guard, ssim, **cost, accuracy=accuracy, **changes)


ROWS = [
    row("none", 0.90, 1000.0, 1.0),
    row("Quantize(bits=8)", 0.90, 300.0, 0.9),
    row("Quantize(bits=1)", 0.70, 50.0, 0.6),
    row("Chain(LightSplit(ratio=8), Quantize(bits=4))", 0.85, 60.0, 0.5),
    row("Chain(LightSplit(ratio=8), Quantize(bits=2))", 0.60, 55.0, 0.3),
    row("TopK(share=0.1, alpha=1e-05)", 0.80, 400.0, 0.4),
]


def by_guard(rows=ROWS):
    return {point.guard: point for point in points(rows, FLOORS)}


def test_families_are_guards_with_other_numbers_and_name_what_they_share():
    found = by_guard()
    assert [(point.family, point.setting) for point in found.values()] == [
        ("none", ""),
        ("Quantize(bits=…)", "8"),
        ("Quantize(bits=…)", "1"),
        ("Chain(LightSplit(ratio=8), Quantize(bits=…))", "4"),
        ("Chain(LightSplit(ratio=8), Quantize(bits=…))", "2"),
        ("TopK(share=0.1, alpha=1e-05)", ""),
    ]


def test_the_front_has_what_nothing_else_beats():
    found = by_guard()
    assert {name for name, point in found.items() if point.front} == {
        "Quantize(bits=8)",
        "Quantize(bits=1)",
        "Chain(LightSplit(ratio=8), Quantize(bits=4))",
    }
    extra = {"TopK(share=0.1, alpha=1e-05)", "Chain(LightSplit(ratio=8), Quantize(bits=2))"}
    assert {name for name, point in found.items() if point.front_with_leakage and not point.front} == extra
    # Every point is checked against the definition, written the other way round.
    for one in found.values():
        better = [p for p in found.values() if p.bytes_total <= one.bytes_total and p.accuracy >= one.accuracy]
        assert one.front == all((p.bytes_total, p.accuracy) == (one.bytes_total, one.accuracy) for p in better)


def test_a_point_is_the_mean_over_seeds_and_the_strongest_attack():
    again = row("Quantize(bits=8)", 0.80, 500.0, 0.95, seed=1)
    point = by_guard([*ROWS, row("none", 0.90, 1000.0, 1.0, seed=1), again])["Quantize(bits=8)"]
    assert point.accuracy == pytest.approx(0.85) and point.bytes_up == 400.0
    assert point.bytes_total == pytest.approx(400 + 10 + 1 + 5), "weights and exchanged decoders are counted"
    assert point.ssim == 0.95 and point.leak == pytest.approx(0.75 / 0.8)
    assert total_bytes(again) == 516


def test_an_attack_that_failed_leaves_the_leak_open_and_the_figure_whole():
    rows = [ROWS[0], ROWS[1], row("BF16()", 0.9, 500.0, 0.9, valid=False, why_invalid="it failed")]
    found = points(rows, FLOORS)
    assert found[-1].leak is None and found[-1].grade == "unknown"
    weak = points([row("none", 0.9, 9.0, 1.0, white_box=False), row("g", 0.9, 9.0, 0.2, white_box=False)], FLOORS)
    assert weak[1].grade == "unknown" and weak[1].leak is None, "what a weak attack missed colours nothing blue"
    png, svg = figure(found)
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and b"no valid attack" not in png and b"</svg>" in svg
    assert figure(found)[1] == svg, "the same figure is the same file"
    lines = list(csv.DictReader(io.StringIO(table(found).decode())))
    assert [line["guard"] for line in lines] == ["none", "Quantize(bits=8)", "BF16()"]
    assert lines[2]["leak"] == "" and lines[0]["leak"] == "1" and lines[1]["front"] == "true"


def test_a_lost_task_has_no_leak_in_a_sweep_and_earns_no_place_on_the_front():
    """What a network that learnt nothing sends is read badly, and that was drawn blue, as if a guard hid it."""
    lost = row("Gaussian(scale=9)", 0.2, 30.0, 0.25)
    found = by_guard([*ROWS, lost])
    point = found["Gaussian(scale=9)"]
    assert point.grade == "task lost" and point.leak is None
    (line,) = csv.DictReader(io.StringIO(table([point]).decode()))
    assert (line["leak"], line["grade"], line["ssim"]) == ("", "task lost", "0.25")
    dear = by_guard([*ROWS, {**lost, "bytes_up": 2000.0}])["Gaussian(scale=9)"]
    assert not dear.front_with_leakage, "nobody knows it to leak less than the others"
    said = b"white: the task is lost"
    assert said in figure(list(found.values()))[1] and said not in figure(points(ROWS, FLOORS))[1]


def test_the_usual_sweep_can_be_read_and_has_what_its_help_says():
    assert len(read_guards(USUAL)) == 13


def test_the_command(tmp_path, monkeypatch):
    from cutlayer.data import Fashion

    task = Task((1, 28, 28), 3)
    loaded = Loaded(samples(120, 1, task), samples(40, 2, task), ("a", "b", "c"))
    monkeypatch.setattr(Fashion, "load", lambda self, folder=None: loaded)
    words = [
        "sweep", "Plan(epochs=1, batch_size=16)", "--guard", "Quantize(bits={1,8})", "--images", "24", "--attack",
        "Decoder(steps=10, readers=('ridge',))", "--threads", "1", "--out", str(tmp_path / "a"), "--json",
        "--secrets", "images",
    ]  # fmt: skip
    ran = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert ran.exit_code == 0
    told = json.loads(ran.stdout)
    assert [one["guard"] for one in told["rows"]] == ["none", "Quantize(bits=1)", "Quantize(bits=8)"]
    assert told["secrets"] == ["images"] and [one["guard"] for one in told["verdicts"]] == [
        one["guard"] for one in told["rows"]
    ]
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files == {
        "audit.json", "command.json", "report.html", "tradeoff.png", "reconstructions.png", "read-best.png",
        "sweep.png", "sweep.svg", "sweep.csv", "events.jsonl",
    }  # fmt: skip
    page = (tmp_path / "a" / "report.html").read_text()
    assert "Rate, accuracy and leakage" in page and "total ratio" in page and "2/(1 + ρ)" in page
    with pytest.raises(ValueError, match="never closed"):
        CliRunner().invoke(cli.app, ["sweep", "--guard", "Quantize(bits={1,8)"], catch_exceptions=False)
    with pytest.raises(ValueError, match="secrets are among"):
        CliRunner().invoke(cli.app, ["audit", "--secrets", "faces"], catch_exceptions=False)
