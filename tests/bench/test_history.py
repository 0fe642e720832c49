"""Measurements beside earlier ones."""

import json

import bench_history
import pytest
import tables

from cutlayer.bench import history


def row(name, ratio, baseline="the plain way", machine="x", goal="recorded"):
    return {"name": name, "ratio": ratio, "baseline": baseline, "machine": machine, "goal": goal}


def test_better_and_worse_go_by_what_is_measured():
    before = {one["name"]: one for one in (row("a", 0.5), row("b", 1.0), row("c", 2.0, "few clients (memory)"))}
    now = [row("a", 0.7), row("b", 0.98), row("c", 1.0, "few clients (memory)"), row("new", 1.0)]
    changes = {change.name: change for change in history.against(now, before)}
    assert changes.keys() == {"a", "b", "c"}
    assert [str(changes[name]).split("  ")[-1] for name in "abc"] == ["better", "as before", "better"]
    assert changes["c"].gain == 2.0  # half of the memory
    assert str(history.against([row("a", 0.3)], before)[0]).endswith("worse")


def test_memory_that_must_not_grow_is_better_the_nearer_the_few_are_to_the_many():
    """`stream.memory` is the peak of few pictures by that of many: a ratio of memory, and yet more is better."""
    before = {"s": row("s", 0.97, "2000 pictures (memory)", goal=">= 0.95")}
    (change,) = history.against([row("s", 0.5, "2000 pictures (memory)", goal=">= 0.95")], before)
    assert str(change).endswith("worse")


def test_the_table_says_where_a_lower_ratio_is_better():
    said = {row["name"]: tables.ratio(row) for row in json.loads(tables.MEASURED.read_text())}
    assert {name.split(".")[0] for name, text in said.items() if "lower" in text} == {
        "load", "frozen", "splitfed", "wire",
    }  # fmt: skip
    assert [name for name, text in said.items() if "1 is best" in text] == ["link.model"]


def test_other_baselines_are_not_compared():
    assert history.against([row("a", 1.0, "another way")], {"a": row("a", 1.0)}) == []


def test_another_machine_is_said():
    assert history.other_machine([row("a", 1)], {"a": row("a", 1)}) == ""
    assert "y" in history.other_machine([row("a", 1, machine="y")], {"a": row("a", 1)})


def test_what_was_measured_anew_takes_its_place_in_the_record(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps([row("b", 2.0), row("c", 3.0)]))
    found = bench_history.recorded([row("a", 1.0), row("b", 1.0)], [tmp_path / "bench.json"])
    assert [(one["name"], one["ratio"]) for one in found] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


@pytest.mark.parametrize("text", ["", "[1]", json.dumps([{"name": "a"}])])
def test_a_file_that_is_no_measurement_is_refused(text, tmp_path):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(ValueError, match="give the file that an earlier"):
        history.read(tmp_path / "bench.json")
