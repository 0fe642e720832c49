"""A cell that fails is named in its place, here as in other processes; the rest goes on, and the command says so."""

import json
import sys
from dataclasses import replace

import pytest
from full_disk import full_disk
from test_parallel import spread_here, wanted

from cutlayer.audit import matrix, scene
from cutlayer.audit.claims import run as claims
from cutlayer.audit.compare import run as compare_run
from cutlayer.audit.jobs import Failed, made_or_failed
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import Resources
from cutlayer.audit.tune import run as tune_run
from cutlayer.data.poisons import LabelFlip
from cutlayer.guards import LightSplit

QUICK = ["--data", "Digits(limit=200)", "--epochs", "1", "--threads", "1"]
AUDIT = [
    "audit",
    *QUICK,
    "--guard",
    "LightSplit(ratio=8)",
    "--attack",
    "Decoder(steps=5)",
    "--no-alone",
    "--images",
    16,
]
GUARD = "LightSplit(ratio=8)"


def failing(patch, place, name, when):
    """As it was, but for calls that `when` knows by their arguments."""
    usual = getattr(place, name)

    def either(*given, **more):
        if when(*given):
            raise KeyError("a bug")
        return usual(*given, **more)

    either.__name__ = name
    patch.setattr(place, name, either)


def of_guard(one, *rest):
    return repr(one.plan.guard) == GUARD


def test_a_plug_in_that_exits_is_the_error_of_its_cell():
    found = made_or_failed(sys.exit)
    assert isinstance(found, Failed) and "SystemExit" in str(found) and isinstance(found.error, ValueError)


def test_an_attack_that_fails_is_a_row_and_an_exit_code_and_a_resume_makes_it(command, tmp_path, monkeypatch):
    out = tmp_path / "a"
    with monkeypatch.context() as patch:
        failing(patch, matrix, "_cell", of_guard)
        code, _, err = command(*AUDIT, "--out", out)
    told = json.loads((out / "audit.json").read_text())
    assert code == 9 and "a cell of this audit failed" in err and f"cutlayer audit --resume {out}" in err
    (one,) = told["not_tried"]
    assert one["why"] == "it failed: KeyError: 'a bug'" and one["guard"] == GUARD and len(told["failed"]) == 1
    assert {row["guard"] for row in told["rows"]} == {"none"} and "A cell of this audit failed" in (
        out / "report.html"
    ).read_text()
    code, _, err = command("audit", "--resume", out)
    told = json.loads((out / "audit.json").read_text())
    assert code == 0 and told["failed"] == [] and {row["guard"] for row in told["rows"]} == {"none", GUARD}, err
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == []


@pytest.mark.parametrize("apart", [False, True], ids=["here", "as jobs"])
def test_trainings_that_fail_are_named_and_the_others_go_on(apart, monkeypatch):
    spec, loaded = wanted()
    spec = replace(spec, plan=replace(spec.plan, clients=2, poison=LabelFlip(clients=1)), attacks=spec.attacks[:1])
    trained = []

    def guarded(one, *rest):
        trained.append(one.plan.guard)
        return one.plan.guard == LightSplit(ratio=4)

    failing(monkeypatch, scene.Scene, "_trained", guarded)
    failing(monkeypatch, scene.Scene, "spoiled", lambda one, *rest: one.plan.guard != LightSplit(ratio=4))
    failing(monkeypatch, matrix.Matrix, "trained_alone", lambda own, one, seed: one.name == own.alone[0].name)
    resources = Resources()
    if apart:
        spread_here(spec, loaded, resources)
    found = audit(spec, loaded, resources)
    assert {row["guard"] for row in found.rows} == {"none"} and len(found.rows) == 1
    assert found.left_out["LightSplit(ratio=4)"] == "with seed 0 it failed: KeyError: 'a bug'"
    assert "it failed" in found.left_out[f"{spec.plan.poison} with none"]
    assert [one["why_none"] is None for one in found.alone] == [False, True]
    assert len(found.failed) == 3 and trained.count(LightSplit(ratio=4)) == 1, "once, and not for every attack"


def test_ctrl_c_and_what_ends_the_open_cut_end_everything(monkeypatch):
    spec, loaded = wanted(alone=False)

    def stopped(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(matrix, "_cell", stopped)
        with pytest.raises(KeyboardInterrupt):
            audit(spec, loaded)
    failing(monkeypatch, scene.Scene, "_trained", lambda *given: True)
    with pytest.raises(KeyError, match="a bug"):
        audit(spec, loaded)


def test_a_variant_that_fails_is_a_row(command, tmp_path, monkeypatch):
    words = ["compare", *QUICK, "--with", "batch_size=32", "--with", "batch_size=50", "--no-alone"]
    with monkeypatch.context() as patch:
        failing(patch, compare_run, "_train", lambda run, *rest: run.plan.batch_size == 32)
        code, _, err = command(*words, "--out", tmp_path / "a")
    assert code == 9 and "batch_size=32, seed 0 was lost: it failed: KeyError: 'a bug'" in err, err
    told = json.loads((tmp_path / "a" / "compare.json").read_text())
    assert [row["failed"] is None for row in told["rows"]] == [False, True]
    assert "KeyError" in (tmp_path / "a" / "report.html").read_text()
    code, _, err = command("compare", "--resume", tmp_path / "a")
    assert code == 0 and not (tmp_path / "a" / "cells").exists(), err


def test_a_full_disk_is_no_cell_s_own(command, tmp_path):
    words = ["compare", *QUICK, "--with", "batch_size=32", "--with", "batch_size=50", "--no-alone"]
    with full_disk(1, where=r"\.half"):
        code, _, err = command(*words, "--out", tmp_path / "a")
    assert code == 8 and "make room" in err and not (tmp_path / "a" / "compare.json").exists()


def test_a_job_of_a_tune_in_this_process_leaves_what_others_would():
    def broken(shared):
        raise KeyError("a bug")

    here = tune_run.Here(5)
    here.start(tune_run.Job("a", broken), ())
    here.start(tune_run.Job("b", lambda shared: shared), ())
    (lost, made) = here.finished(0)
    assert str(lost.value) == "it failed: KeyError: 'a bug'" and made.value == 5


def test_a_piece_of_an_experiment_that_fails_is_none_and_its_share_is_one_process_s(tmp_path, monkeypatch):
    made = []

    class Piece(claims.Piece):
        @property
        def file(self):
            return f"{self.what}.json"

    def pieces(run, typed, data_dir):
        def bad(folder):
            with pytest.raises(BlockingIOError, match="goes on in"):
                claims.reproduce(experiment, "quick", tmp_path, claims.Share(1, 2))
            claims.reproduce(experiment, "quick", tmp_path, claims.Share(2, 2), say=made.append)
            raise KeyError("a bug")

        return [Piece(run, "bad", "", bad), Piece(run, "good", "", lambda folder: [1])]

    class Small:
        name, after = "small", None

        def commands(self, budget):
            return {"a": "compare"}

    experiment = Small()
    monkeypatch.setattr(claims, "pieces", pieces)
    monkeypatch.setattr(claims, "read", lambda command: None)
    monkeypatch.setattr(claims, "_refuse_what_cannot_be", lambda *given: None)
    told = claims.reproduce(experiment, "quick", tmp_path, claims.Share(1, 2), say=made.append)
    assert told["failed"] == ["a, bad: it failed: KeyError: 'a bug'"] and told["unfinished"].startswith("1 of 2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.json", "small.json"]
