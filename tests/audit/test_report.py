"""The report: one self-contained file that says what the table says, also when an attack failed."""

import json
import re
from dataclasses import replace

import pytest
from test_schema import strays
from toys import samples, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.spec import AuditSpec
from cutlayer.data.base import Loaded
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import LightSplit


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


def test_a_failed_attack_is_shown_as_failed(result, tmp_path):
    rows = [{**row, "valid": False, "why_invalid": "the attack failed its control: so it did"} for row in result.rows]
    failed = replace(result, rows=rows)
    page = report.html(
        failed, {"tradeoff.png": report.tradeoff(failed), "reconstructions.png": report.reconstructions(failed)}, "x"
    )
    assert page.count("not valid: the attack failed its control") == 2
    assert "nothing can be said" in page


def test_text_from_outside_cannot_become_markup(result):
    page = report.html(result, {"tradeoff.png": b"", "reconstructions.png": b""}, "<script>alert(1)</script>")
    assert "<script>" not in page


def test_the_first_pictures_show_every_class_once(result):
    first = report._one_of_each(result.labels)[:3]
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
