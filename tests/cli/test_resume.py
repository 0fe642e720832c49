"""Work is never lost: a folder goes on with the command it was begun with, and with no other."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from cutlayer import Plan
from cutlayer.audit import matrix
from cutlayer.audit.compare import run as compare_run
from cutlayer.audit.store import ResultStore
from cutlayer.cli.app import main
from cutlayer.cli.resumable import tried_again
from cutlayer.cli.train import _chosen
from cutlayer.data import Fashion
from cutlayer.engines.folder import write_plan
from cutlayer.engines.taken import FolderLock

QUICK = ["--data", "Digits(limit=200)", "--epochs", "1", "--threads", "1"]
ATTACKED = [*QUICK, "--guard", "LightSplit(ratio=8)", "--attack", "Decoder(steps=5)", "--images", "16"]
COMPARED = [*QUICK, "--with", "batch_size=32", "--with", "batch_size=50"]


def stopped(patch, words, place, name):
    """The command, with Ctrl-C at the second call of what makes a cell; its exit code."""
    made = []
    real = getattr(place, name)

    def once(*given, **more):
        if made:
            raise KeyboardInterrupt
        made.append(1)
        return real(*given, **more)

    patch.setattr(place, name, once)
    patch.setattr(sys, "argv", ["cutlayer", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    patch.undo()
    return ended.value.code


@pytest.fixture(scope="module")
def half_made(tmp_path_factory):
    """Interrupted folders, by the command that began them."""
    home = tmp_path_factory.mktemp("half")
    begun = {
        "audit": (["audit", *ATTACKED], matrix, "_cell"),
        "sweep": (["sweep", *ATTACKED], matrix, "_cell"),
        "compare": (["compare", *COMPARED], compare_run, "_train"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, (words, place, function) in begun.items():
            assert stopped(patch, [*words, "--out", home / name], place, function) == 130
    return home


@pytest.fixture
def half(half_made, tmp_path):
    """Copies that a test may spoil."""
    return Path(shutil.copytree(half_made, tmp_path / "half"))


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "again", "result"),
    [("audit", [], "audit.json"), ("sweep", ATTACKED, "sweep.csv"), ("compare", [], "compare.json")],
    ids=["audit", "sweep, all typed again", "compare"],
)
def test_the_folder_restores_the_command(half, command, name, again, result):
    told = json.loads((half / name / "command.json").read_text())
    assert told["command"] == name and told["options"]["epochs"] == 1
    code, _, err = command(name, *again, "--resume", half / name)
    assert code == 0, err
    assert (half / name / result).exists() and not (half / name / "cells").exists()
    if name != "compare":
        found = json.loads((half / name / "audit.json").read_text())
        assert {row["guard"] for row in found["rows"]} == {"none", "LightSplit(ratio=8)"}
        assert found["command"] == told["typed"] and "--out" in found["command"], "the report says how it was begun"
    # A second time there is nothing to go on with, and what is there stays.
    before = everything(half / name)
    code, _, err = command(name, "--resume", half / name)
    assert code == 1 and f"the {name} in {half / name} is finished" in err
    assert everything(half / name) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--guard", "Subset(ratio=8)"], "begun with --guard LightSplit(ratio=8), and now it is Subset(ratio=8)"),
        (["--budget", "quick"], "begun without --budget, and now it is quick"),
        (["--attack", "Decoder()"], "begun with --attack Decoder(steps=5)"),
        (["--images", "17"], "begun with --images 16, and now it is 17"),
        (["--epochs", "2"], "begun with --epochs 1, and now it is 2"),
        (["--seeds", "2"], "begun without --seeds"),
        (["--out", "elsewhere"], "leave out --out"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_option_is_refused_by_name_and_nothing_is_lost(half, command, words, said):
    before = everything(half / "audit")
    code, _, err = command("audit", *words, "--resume", half / "audit")
    assert code == 1 and said in err and "Traceback" not in err
    assert everything(half / "audit") == before


@pytest.mark.parametrize("name", ["demo", "audit", "sweep", "compare", "train"])
def test_no_folder_is_made_to_go_on_in(command, name, tmp_path):
    code, _, err = command(name, "--resume", tmp_path / "nowhere")
    assert code == 1 and f"there is no folder {tmp_path / 'nowhere'}" in err
    assert not list(tmp_path.iterdir())


def test_another_commands_folder_is_refused(half, command, tmp_path):
    code, _, err = command("sweep", "--resume", half / "audit")
    assert code == 1 and "begun by `cutlayer audit`: resume it with that" in err
    code, _, err = command("audit", "--resume", tmp_path)
    assert code == 1 and "there is no command.json in it" in err


def test_a_folder_in_which_another_process_has_only_just_begun_is_its_own(command, tmp_path):
    lock = FolderLock(tmp_path)
    code, _, err = command("audit", "--resume", tmp_path)
    lock.release()
    assert code == 1 and "another process" in err and "no command.json" not in err


def test_a_folder_imports_nothing_by_itself(half, command):
    path = half / "audit" / "command.json"
    told = json.loads(path.read_text())
    told["options"] |= {"guard": ["evil.py:Guard(a='b c')", "WCC"], "attack": ["evil.py:Attack"]}
    path.write_text(json.dumps(told))
    code, _, err = command("audit", "--resume", half / "audit")
    assert code == 1 and "a folder imports nothing by itself: type --guard and --attack again" in err
    words = shlex.split(tried_again("audit", half / "audit").partition("cutlayer ")[2])
    assert words[1:3] == ["--resume", str(half / "audit")], "the way on that is told is the whole of it"
    assert words[3:] == ["--guard", "evil.py:Guard(a='b c')", "--guard", "WCC", "--attack", "evil.py:Attack"]


def test_a_training_goes_on_with_options_that_are_those_it_was_begun_with(tmp_path):
    begun = Plan(data=Fashion(limit=60), epochs=0, private_seed=1)
    write_plan(begun, tmp_path, "")
    (tmp_path / "private.json").write_text('{"private_seed": 1}')
    assert _chosen(None, {"data": "Fashion(limit=60)"}, tmp_path) == begun
    with pytest.raises(ValueError, match=r"another plan \(epochs was 0, now 5\)"):
        _chosen(None, {"data": "Fashion(limit=60)", "epochs": 5}, tmp_path)


def test_a_demo_goes_on(command, monkeypatch, tmp_path):
    monkeypatch.setattr("cutlayer.cli.audit._audit", lambda wanted, asked, **given: asked.keep(tmp_path))
    assert command("demo", "--threads", "1")[0] == 0
    assert command("demo", "--resume", tmp_path)[0] == 0
    assert json.loads((tmp_path / "command.json").read_text())["command"] == "demo"


def test_ctrl_c_before_anything_is_finished_says_so(command, monkeypatch, tmp_path):
    def stop(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix, "floors", stop)
    monkeypatch.setattr("cutlayer.audit.scene.LocalRun.train", stop)
    code, _, err = command("audit", *ATTACKED, "--out", tmp_path / "a")
    assert code == 130 and "nothing is kept" in err and not (tmp_path / "a").exists()


def test_a_store_removes_what_its_reader_took_and_nothing_else(tmp_path):
    ResultStore(tmp_path / "cells", "x").put("another's", {})
    store = ResultStore(tmp_path / "cells", "x")
    store.put("mine", {})
    assert store.clear() == 1
    assert ResultStore(tmp_path / "cells", "x").get("another's") is not None
    assert store.get("another's") is not None and store.clear() == 0 and not (tmp_path / "cells").exists()


# ------------------------------------------------------------------------------------------- train
def test_train_goes_on_recording_and_never_over_a_result(command, tmp_path, monkeypatch):
    folder = tmp_path / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutlayer.cli.terminal.Stop.__call__", lambda self: True)
        code, _, err = command("train", *QUICK, "--record", "1", "--out", folder)
    assert code == 130 and json.loads((folder / "command.json").read_text())["options"]["record"] == 1
    code, _, err = command("train", "--resume", folder, "--record", "2")
    assert code == 1 and "begun with --record 1, and now it is 2" in err
    code, _, err = command("train", "--resume", folder, "--threads", "1")
    assert code == 0 and (folder / "transcript.bin").exists(), err
    before = everything(folder)
    code, _, err = command("train", "--resume", folder, "--threads", "1")
    assert code == 1 and "is finished, with its result in result.json" in err and everything(folder) == before


def test_a_secret_that_was_typed_is_not_for_everybody(command, tmp_path):
    assert command("train", *QUICK, "--private-seed", "7", "--out", tmp_path / "a")[0] == 0
    assert (tmp_path / "a" / "command.json").stat().st_mode & 0o077 == 0


# ------------------------------------------------------------------------------------------- data
def with_data(folder, seed):
    folder.mkdir()
    rows = np.random.default_rng(seed)
    np.savez(folder / "a.npz", x=rows.random((200, 6), dtype=np.float32), y=np.arange(200) % 2)
    return folder


NAMED = ["--data", "Npz('a.npz')", "--net", "MLP()", "--epochs", "2", "--threads", "1"]


def test_other_data_under_the_same_name_are_refused_and_moved_ones_are_not(command, tmp_path, monkeypatch):
    begun, other = with_data(tmp_path / "data", 1), with_data(tmp_path / "other", 2)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutlayer.cli.terminal.Stop.__call__", lambda self: True)
        assert command("train", *NAMED, "--data-dir", "data", "--out", "train")[0] == 130
    compared = ["compare", *NAMED, "--with", "batch_size=32", "--with", "batch_size=50", "--data-dir", "data"]
    assert stopped(monkeypatch, [*compared, "--out", "compare"], compare_run, "_train") == 130
    audited = ["audit", *NAMED, "--no-alone", "--attack", "Decoder(steps=5)", "--images", "16", "--data-dir", "data"]
    audited += ["--guard", "LightSplit(ratio=2)", "--out", "audit"]
    monkeypatch.chdir(tmp_path)
    assert stopped(monkeypatch, audited, matrix, "_cell") == 130
    monkeypatch.chdir(tmp_path)
    for name in ("train", "compare", "audit"):
        before = everything(tmp_path / name)
        code, _, err = command(name, "--resume", name, "--data-dir", other)
        assert code == 1 and "was begun with other samples" in err and "--data-dir" in err, err
        assert everything(tmp_path / name) == before
    monkeypatch.chdir("/")
    code, _, err = command("compare", "--resume", tmp_path / "compare")
    assert code == 0, f"what was typed is found from elsewhere, too: {err}"
    begun.rename(tmp_path / "moved")
    for name in ("train", "audit"):
        code, _, err = command(name, "--resume", tmp_path / name, "--data-dir", tmp_path / "moved")
        assert code == 0, err


@pytest.mark.parametrize(("then", "now", "said"), [("a", "b", "with other"), ("", "b", "without"), ("a", "", "with")])
def test_cells_scored_by_other_lpips_weights_are_refused(tmp_path, then, now, said):
    ResultStore(tmp_path / "cells", "x", inputs={"LPIPS weights": then}).put("one", {})
    ResultStore(tmp_path / "cells", "x", inputs={"LPIPS weights": then})
    with pytest.raises(ValueError, match=f"was begun {said} LPIPS weights, and new cells"):
        ResultStore(tmp_path / "cells", "x", inputs={"LPIPS weights": now})


def test_cells_without_a_word_about_them_are_not_guessed_at(tmp_path):
    ResultStore(tmp_path / "cells", "x").put("one", {})
    (tmp_path / "cells" / "about.json").write_text('"x"')  # as earlier ones of this version have it
    assert ResultStore(tmp_path / "cells", "x", inputs={"a": "b"}).get("one") is not None
    (tmp_path / "cells" / "about.json").write_text('{"identi')
    with pytest.raises(ValueError, match=r"about\.json is damaged.*put back a copy"):
        ResultStore(tmp_path / "cells", "x")


def test_a_damaged_cell_is_made_again(tmp_path, caplog):
    ResultStore(tmp_path / "cells", "x").put("one", {"a": 1})
    (path,) = (tmp_path / "cells").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-3])
    store = ResultStore(tmp_path / "cells", "x")
    assert store.get("one") is None and "this cell is made again" in caplog.text
    store.put("one", {"a": 2})
    assert ResultStore(tmp_path / "cells", "x").get("one")[0] == {"a": 2}
