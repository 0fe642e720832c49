"""The report: one self-contained file that says what the table says, also when an attack failed."""

import json
import re
from dataclasses import replace

import pytest
from test_schema import strays
from toys import samples, tiny_plan

from cutlayer.attacks import Decoder, LabelClustering
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.report.pictures import reconstructions, tradeoff, wrapped
from cutlayer.audit.report.shown import one_of_each
from cutlayer.audit.report.tidy import without_empty_columns
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.data.base import Loaded
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import LightSplit
from cutlayer.training.protocols import Vanilla


@pytest.fixture(scope="module")
def result():
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16)
    reader = Decoder(steps=60, width=16, hidden=64)
    return audit(AuditSpec(plan, [LightSplit(ratio=4)], [reader], images=24), loaded)


def test_an_audit_becomes_five_files(result, tmp_path):
    report.write(result, tmp_path / "a", "cutlayer audit --guard x")
    assert {file.name for file in (tmp_path / "a").iterdir()} == {
        "audit.json",
        "report.html",
        "tradeoff.png",
        "reconstructions.png",
        "read-best.png",
    }
    assert list(tmp_path.iterdir()) == [tmp_path / "a"], "nothing is left beside it"
    data = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert strays(data) == []
    assert data["rows"] == json.loads(json.dumps(result.rows)) and data["command"] == "cutlayer audit --guard x"
    page = (tmp_path / "a" / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", page), "nothing is loaded from elsewhere"
    for row in result.rows:
        assert f"{row['ssim']:.3f}" in page and row["guard"] in page
    assert "What the attacker knew" in page and "cutlayer audit --guard x" in page


def test_an_audit_of_labels_alone_has_a_report(tmp_path):
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    found = audit(AuditSpec(tiny_plan(epochs=1, batch_size=16), [], [LabelClustering()], images=24), loaded)
    report.write(found, tmp_path / "a", "x")
    page = (tmp_path / "a" / "report.html").read_text()
    assert "LabelClustering" in page and 'type="range"' not in page, "nothing to slide between"


def test_attacks_that_all_find_nothing_are_refused_before_any_training():
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    heard = []
    spec = AuditSpec(tiny_plan(protocol=Vanilla()), [], [], optional_attacks=[LabelClustering()], images=24)
    with pytest.raises(ValueError, match=r"no attack has anything to find here: .*they travel"):
        audit(spec, loaded, Resources(on_event=heard.append))
    assert not heard


def test_a_failed_attack_is_shown_as_failed(result, tmp_path):
    rows = [{**row, "valid": False, "why_invalid": "the attack failed its control: so it did"} for row in result.rows]
    failed = replace(result, rows=rows)
    page = report.html(
        failed, {"tradeoff.png": tradeoff(failed), "reconstructions.png": reconstructions(failed)}, "x"
    )
    assert page.count("not valid: the attack failed its control") == 2
    assert "nothing can be said" in page


def test_text_from_outside_cannot_become_markup(result):
    page = report.html(result, {"tradeoff.png": b"", "reconstructions.png": b""}, "<script>alert(1)</script>")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_the_first_pictures_show_every_class_once(result):
    first = one_of_each(result.labels)[:3]
    assert sorted(result.labels[first].tolist()) == [0, 1, 2]


def test_clients_that_fare_differently_are_in_the_report(tmp_path):
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=8, clients=3, partition=Dirichlet(alpha=0.5))
    found = audit(AuditSpec(plan, attacks=[Decoder(steps=10, width=8, hidden=16)], images=24), loaded)
    fair = found.rows[0]["fairness"]
    assert 0 <= fair["worst"] <= fair["mean"] <= fair["best"] <= 1
    page = report.html(found, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")
    assert "<h2>Clients</h2>" in page and f"<td>{fair['worst_tenth']:.3f}</td>" in page


def test_one_client_is_nobody_to_compare(result):
    assert "fairness" not in result.rows[0]
    assert "<h2>Clients</h2>" not in report.html(result, {"tradeoff.png": b"", "reconstructions.png": b""}, "x")


def test_a_column_in_which_nothing_stands_is_left_out():
    page = "<table>\n<tr><th>guard</th><th>LPIPS</th><th>NCC</th></tr>\n" + "".join(
        f'<tr class="x"><td>{name}</td><td>–</td><td>0.5</td></tr>\n' for name in "ab"
    )
    tidied = without_empty_columns(page + "</table>")
    assert "LPIPS" not in tidied and "–" not in tidied and tidied.count("0.5") == 2 and '<tr class="x">' in tidied


def test_a_column_with_one_figure_stays_and_so_do_cells_over_several_columns():
    some = "<table><tr><th>a</th><th>b</th></tr><tr><td>x</td><td>–</td></tr><tr><td>y</td><td>1</td></tr></table>"
    over = '<table><tr><th>a</th><th colspan="2">b</th></tr><tr><td>x</td><td>–</td><td>–</td></tr></table>'
    assert without_empty_columns(some + over) == some + over


def test_no_column_of_the_report_is_only_dashes(result, tmp_path):
    report.write(result, tmp_path / "a", "x")
    page = (tmp_path / "a" / "report.html").read_text()
    assert "<th>LPIPS</th>" not in page and "<th>NCC</th>" in page, "this audit has no LPIPS"


def test_a_lower_bound_of_a_leak_is_called_one_in_every_table(result, tmp_path, monkeypatch):
    judged = [one if one.guard == "none" else replace(one, grade="unknown", leak=0.41) for one in result.verdicts()]
    monkeypatch.setattr(type(result), "verdicts", lambda self: judged)
    report.write(result, tmp_path / "a", "x")
    cells = re.findall(r"[^<>]*\b41 %", (tmp_path / "a" / "report.html").read_text())
    assert cells and all("at least" in one for one in cells), cells


def test_figures_are_said_in_words(result, tmp_path):
    report.write(result, tmp_path / "a", "x")
    page = (tmp_path / "a" / "report.html").read_text()
    alts = re.findall(r'<img alt="([^"]*)"', page)
    own = [row for row in result.rows if row["guard"] == "none"]
    assert all(len(alt) > 20 for alt in alts) and any(f"no guard SSIM {own[0]['value']:.2f}" in alt for alt in alts)


def test_it_says_where_when_and_how_long(result):
    told = report.as_data(result, "x")["made"]
    assert json.loads(json.dumps(told)) == told
    page = report.html(result, {"tradeoff.png": b"", "reconstructions.png": b""}, "cutlayer audit")
    assert told["date"][:10] in page and told["machine"] in page and f"torch {told['versions']['torch']}" in page
    slowest = max(row["seconds"] for row in result.rows)
    assert told["seconds"] >= slowest > 0


@pytest.mark.parametrize(
    "name", ["my/guards/coarse.py:Coarse(window=4)", "Chain(LightSplit(ratio=8), WCC(weight=0.01))", "x" * 70]
)
def test_a_name_stays_inside_its_figure(name):
    """That of a guard from outside the package has its file in front and no space in it."""
    lines = wrapped(name).split("\n")
    assert max(map(len, lines)) <= 28 and "".join(lines).replace(" ", "") == name.replace(" ", "")
