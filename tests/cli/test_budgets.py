"""A leak budget that was not kept is said in so many words, and no command ends as if it had been."""

import json
from types import SimpleNamespace

import pytest

from cutlayer.cli import audit as room
from cutlayer.cli.terminal import end_if_not_kept, warn
from cutlayer.engines.grpc import deploy

PASSED = {"detector": "LeakMeter(budget='ssim<=0.6')", "exceeded": True, "leak": [{}], "leak_so_far": {"ssim": 0.92}}
KEPT = {**PASSED, "exceeded": False}
SAID = "the budget of LeakMeter(budget='ssim<=0.6') was passed: a reader of what was sent saw ssim 0.920"
SHORT = ["--data", "Digits(limit=300)", "--epochs", "1", "--threads", "1"]


@pytest.mark.parametrize("policy", ["warn", "stop"])
def test_a_training_too_short_to_be_looked_at_is_looked_at_in_the_end(command, tmp_path, policy):
    meter = f"LeakMeter(budget='ncc<=0.8', policy={policy!r}, steps=10)"
    code, out, err = command("train", *SHORT, "--client-detectors", meter, "--out", tmp_path / "a", "--json")
    assert code == 6 and "was passed: a reader of what was sent saw" in err
    (told,) = json.loads(out)["detectors"]
    assert told["exceeded"] and len(told["leak"]) == 1 and (tmp_path / "a" / "result.json").exists()


def test_an_early_look_stops_a_training(command, tmp_path):
    meter = "LeakMeter(budget='ncc<=0.8', policy='stop', samples=64, steps=10)"
    code, _, err = command("train", *SHORT, "--client-detectors", meter, "--out", tmp_path / "a")
    assert code == 5 and "after step 0 a reader" in err and "Nothing more was sent" in err


def test_a_client_that_joined(command, monkeypatch, tmp_path):
    result = {"name": "a", "accuracy": None, "steps": 3, "bytes_up": 1.0, "bytes_down": 1.0, "detectors": [PASSED]}
    joined = SimpleNamespace(batches=1, run=lambda on_step: result, stop=lambda: None)
    monkeypatch.setattr(deploy, "join", lambda *given, **more: joined)
    words = ("join", "Plan()", "127.0.0.1:1", "--as", "a", "--insecure", "--out", tmp_path / "a", "--threads", "1")
    code, _, err = command(*words, "--json")
    assert code == 6 and SAID in err
    result["detectors"] = [KEPT]
    assert command(*words, "--json")[0] == 0


def test_an_audit_of_guards_that_do_not_keep_it(capsys):
    rows = [
        {"guard": "none", "detectors_honest": [PASSED]},
        {"guard": "A()", "detectors_honest": [KEPT]},
        {"guard": "B()", "detectors_honest": [KEPT], "detectors_attacked": [PASSED]},
    ]
    end_if_not_kept(room._metered(rows[:2]))  # that the open cut leaks is why there are guards
    for some, guard in ((rows, "B()"), (rows[:1], "none")):
        with pytest.raises(SystemExit, match="6"):
            end_if_not_kept(room._metered(some))
        assert f"with {guard} was passed" in capsys.readouterr().err


def test_red_is_for_terminals(capsys, monkeypatch):
    warn("x")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    warn("y")
    monkeypatch.setenv("NO_COLOR", "1")
    warn("z")
    assert capsys.readouterr().err == "x\n\x1b[31my\x1b[0m\nz\n"
