"""The command line as a user meets it: results as files and JSON, errors as one sentence, Ctrl-C without loss."""

import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cutlayer.bench import run as bench
from cutlayer.bench.measurement import met
from cutlayer.cli.app import app
from cutlayer.cli.panels import PANELS
from cutlayer.core.spec import HOMES
from cutlayer.training.faster import Faster

ROOT = Path(__file__).parents[2]
QUICK = ["--data", "Digits(limit=200)", "--epochs", "1", "--threads", "1"]


def test_train_writes_files_and_prints_json(command, tmp_path):
    code, out, err = command("train", *QUICK, "--guard", "LightSplit(ratio=8)", "--out", tmp_path / "a", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["out"] == str(tmp_path / "a") and 0 < result["accuracy"] <= 1
    assert "LightSplit(ratio=8)" in json.loads((tmp_path / "a" / "plan.json").read_text())["plan"]
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `runs/train-…`"))
    assert {file.name for file in (tmp_path / "a").iterdir()} <= set(re.findall(r"`([\w.]+)`", row)), (
        "README says which"
    )


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (["--precision", "bf16"], {"precision": "bf16"}),
        (["--channels-last"], {"channels_last": True}),
        (["--im2col"], {"im2col": True}),
        (["--compile"], {"compiled": True}),
    ],
)
def test_a_faster_way_is_taken_as_it_was_asked_for(command, tmp_path, monkeypatch, option, wanted):
    taken = []

    def begun(*_, faster, **__):
        taken.append(faster)
        raise ValueError("that is all")

    monkeypatch.setattr("cutlayer.engines.local.start.train_in", begun)
    code, _, err = command("train", *QUICK, *option, "--out", tmp_path / "a")
    assert code == 1 and "that is all" in err and taken == [Faster(**wanted)]


def test_a_training_that_goes_on_does_so_in_the_way_it_was_begun(command, tmp_path, monkeypatch):
    asked = ["--im2col", "--channels-last", "--precision", "bf16"]
    code, _, err = command("train", "--data", "Digits(limit=60)", "--epochs", "0", *asked, "--out", tmp_path / "a")
    assert code == 0, err
    taken = []

    def begun(*_, faster, **__):
        taken.append(faster)
        raise ValueError("that is all")

    monkeypatch.setattr("cutlayer.engines.local.start.train_in", begun)
    command("train", "--resume", tmp_path / "a")
    assert taken == [Faster(precision="bf16", channels_last=True, im2col=True)]


def test_train_in_words_shows_both_sides(command, tmp_path):
    code, out, err = command(
        "train",
        *QUICK,
        "--clients",
        "2",
        "--own-client-network",
        "--partition",
        "Dirichlet(alpha=1)",
        "--out",
        tmp_path / "a",
    )
    assert code == 0 and out == ""
    assert "test accuracy" in err and "bytes a sample" in err and "client: 5,650 parameters" in err


def test_audit_writes_a_report(command, tmp_path):
    code, out, err = command(
        "audit", *QUICK, "--guard", "LightSplit(ratio=8)", "--attack", "Decoder(steps=2, width=4, hidden=8)",
        "--images", "16", "--out", tmp_path / "a", "--json",
    )  # fmt: skip
    assert code == 0, err
    data = json.loads(out)
    assert data["schema"] == 2 and [row["guard"] for row in data["rows"]] == ["none", "LightSplit(ratio=8)"]
    saved = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert saved["rows"] == data["rows"] and saved["command"].startswith("cutlayer audit --data")
    assert (tmp_path / "a" / "report.html").stat().st_size > 20_000
    cells = re.findall(r"^(\d) of 6  (.*)  \(\d+\.\d s.*\)$", err, re.MULTILINE)
    assert [what.partition(" ")[0] for _, what in cells] == ["training", "Decoder(steps=2,"] * 2 + ["client"] * 2
    assert re.search(
        r"about \d+ s here, estimated from its first steps; 2 trainings and 2 attacks and 2 baselines to make", err
    )


def test_every_command_is_under_one_heading_of_the_help(command):
    _, out, _ = command("--help")
    there = [*app.registered_commands, *app.registered_groups]
    names = [name for names in PANELS.values() for name in names]
    assert len(names) == len(set(names)) == len(there)
    places = [out.index(f"\u2502 {name} ") for name in names]
    assert places == sorted(places), "commands stand in the order of the table"


def test_a_link_is_foretold_of_nothing_where_nothing_is_trained(command, tmp_path):
    words = ["--data", "Fashion(limit=60)", "--epochs", "0", "--link", "20mbit,40ms", "--json"]
    code, out, err = command("train", *words, "--out", tmp_path / "run")
    assert code == 0 and json.loads(out)["link"] is None, err


def test_a_batch_larger_than_the_data_is_counted_as_large_as_it_is(command, tmp_path):
    sizes = []
    for size in ("54", "100000000000"):  # of sixty, six are for validation
        words = ["--data", "Fashion(limit=60)", "--epochs", "1", "--batch-size", size, "--json"]
        code, out, err = command("train", *words, "--out", tmp_path / size)
        assert code == 0, err
        sizes.append(json.loads(out)["client_memory"]["active"])
    assert sizes[0] == sizes[1]


def test_the_help_of_list_names_every_kind(command):
    _, out, _ = command("list", "--help")
    assert all(re.search(rf"\b{kind}\b", out) for kind in [*HOMES, "bench"])


@pytest.mark.parametrize("kind", [*HOMES, "bench"])
def test_list_as_json(command, kind):
    code, out, _ = command("list", kind, "--json")
    rows = json.loads(out)
    assert code == 0 and rows and all(row["summary"] for row in rows)
    assert all(set(row) == {"name", "summary", "arguments"} for row in rows)
    told = [row["summary"] for row in rows]
    assert len(set(told)) == len(told), "a line tells its entry from the others"
    assert [line for line in told if re.match("The same (with|where|as)", line)] == [], "the same as what?"


def test_bench_writes_ratios(command, tmp_path, monkeypatch):
    measure = bench._projections
    smaller = lambda width, kept, **more: measure(width // 16, kept // 16, **more)  # noqa: E731
    monkeypatch.setattr(bench, "_projections", smaller)
    code, out, err = command("bench", "project.fast", "--quick", "--out", tmp_path / "a", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["name"] for row in rows] == ["project.fast", "project.fast.wide"]
    assert rows == json.loads((tmp_path / "a" / "bench.json").read_text())
    for row in rows:
        assert row.keys() >= {"name", "value", "unit", "ratio", "baseline", "machine"} and row["ratio"] > 0
        assert row["met"] is met(row["value"], row["ratio"], row["goal"]) is not None
    earlier = ("--against", tmp_path / "a" / "bench.json")
    code, out, err = command("bench", "project.fast.wide", "--quick", "--out", tmp_path / "b", *earlier)
    assert code == 0 and "->" in out + err
    assert f"goal {rows[1]['goal']}: m" in out + err  # met, or missed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_benchmark_of_a_gpu_without_one_is_answered_with_one_sentence(command, tmp_path):
    code, out, err = command("bench", "--device", "cuda", "--out", tmp_path / "a")
    assert code == 1 and out == "" and "torch sees no GPU here" in err and len(err.splitlines()) == 1
    code, out, err = command("bench", "gpu", "--out", tmp_path / "b")
    assert code == 0 and "left out" in out + err and "gpu.resnet18" in out + err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--guard", "LightSplitt(ratio=8)"], "did you mean LightSplit"),
        (["train", "--guard", "LightSplit(ratio=1e9)"], "1 to 2880 here"),
        (["train", "--guard", "LightSplit(ratio=0)"], "a number from 1 up; got 0"),
        (["train", "--net", "SimpleCNN(depth=9)"], "depth"),
        (["train", "--data", "MNIST", "--data-dir", "/nowhere"], "/nowhere"),
        (["train", "--clients", "5000"], "clients"),
        (["train", "--partition", "Labels(m=1)", "--clients", "2"], "label"),
        (["train", "--start", "gone.pt"], "the weights gone.pt cannot be read"),
        (["train", "--device", "tpu"], "--device is cpu or cuda"),
        (["train", "nothing.py:plan"], "there is no recipe nothing.py"),
        (["train", "--resume", "/nowhere"], "there is no folder /nowhere"),
        (["train", "--frozen-parts", "neck"], "head, body, tail"),
        (["audit", "--attack", "Decodr"], "did you mean Decoder"),
        (["audit", "--guard", "Bottleneck1x1(ratio=-1)"], "ratio"),
        (["audit", "--images", "0"], "--images at least 2"),
        (["list", "zebras"], "there is no list of 'zebras'"),
        (["bench", "zebra"], "no benchmark is called zebra"),
        (["bench", "--device", "gpu"], "--device is cpu or cuda"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_with_one_sentence(command, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments)
    assert code == 1 and out == ""
    assert err.startswith("error: ") and words in err and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing is written for a run that never began"


def test_an_existing_out_folder_is_not_overwritten(command, tmp_path):
    (tmp_path / "mine").write_text("precious")
    code, _, err = command("train", *QUICK, "--out", tmp_path)
    assert code == 1 and "choose another --out" in err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_recipe_is_a_function_that_returns_a_plan(command, tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from cutlayer.training.plan.plan import Plan\nfrom cutlayer.data import Digits\n"
        "def small():\n    return Plan(data=Digits(limit=200), epochs=1)\n"
        "def wrong():\n    return 3\n"
    )
    code, out, err = command("train", f"{recipe}:small", "--batch-size", "50", "--out", tmp_path / "a", "--json")
    assert code == 0, err
    assert json.loads(out)["plan"] == "Plan(data=Digits(limit=200), epochs=1, batch_size=50)"
    for function, words in (("tall", "mine.py:small, "), ("wrong", "a recipe returns a Plan")):
        code, _, err = command("train", f"{recipe}:{function}")
        assert code == 1 and words in err


# The command, which presses Ctrl-C itself the moment the file of its first epoch is begun: no race with a clock.
AND_CTRL_C = """
import signal, sys
from cutlayer.cli.app import main
pressed = []
def press(event, given):
    if event == "open" and "history.jsonl" in str(given[0]) and not pressed:
        pressed.append(signal.raise_signal(signal.SIGINT))
sys.addaudithook(press)
main()
"""


def test_ctrl_c_keeps_the_state_and_resume_ends_like_an_undisturbed_run(command, tmp_path):
    words = [
        "--net",
        "LeNet",
        "--epochs",
        "4",
        "--batch-size",
        "20",
        "--private-seed",
        "3",
        "--threads",
        "1",
        "--json",
        "--data",
    ]
    plan = ["train", *words, "Digits(limit=200)", "--out"]
    child = [sys.executable, "-c", AND_CTRL_C, *plan, str(tmp_path / "b")]
    broken = subprocess.run(child, capture_output=True, text=True)
    assert broken.returncode == 130 and "--resume" in broken.stderr and "Traceback" not in broken.stderr
    assert len((tmp_path / "b" / "history.jsonl").read_text().splitlines()) < 4
    assert not (tmp_path / "b" / "result.json").exists()
    assert not list((tmp_path / "b").glob("*.writing"))
    done = command("train", "--resume", tmp_path / "b", "--threads", "1", "--json")
    whole = command(*plan, tmp_path / "w")
    assert done[0] == whole[0] == 0, done[2] + whole[2]
    ours, theirs = json.loads(done[1]), json.loads(whole[1])
    for name in ("accuracy", "accuracy_last", "best_epoch", "steps", "ledger"):
        assert ours[name] == theirs[name], name
    from safetensors.torch import load_file

    one, other = load_file(tmp_path / "b" / "last.safetensors"), load_file(tmp_path / "w" / "last.safetensors")
    assert [name for name in other if not (one[name] == other[name]).all()] == []


def test_data_check_reports_every_set_and_fails_for_damage(command, tmp_path):
    code, out, _ = command("data", "check", tmp_path, "--json")
    assert code == 0 and not any(row["found"] for row in json.loads(out))
    (tmp_path / "mine.npz").write_bytes(b"not a zip")
    code, out, _ = command("data", "check", tmp_path)
    assert code == 1 and "DAMAGED" in out and "absent" in out
    code, _, err = command("data", "check", tmp_path / "nowhere")
    assert code == 1 and err.startswith("error: there is no folder")


def test_training_starts_from_given_weights(command, tmp_path):
    import torch
    from safetensors.torch import load_file

    from cutlayer.nets import SimpleCNN, whole_state

    net, image = SimpleCNN(), (1, 28, 28)
    parts = {"head": net.head(image), "body": net.body(image), "tail": net.tail(image, 10)}
    torch.save(whole_state(net, **parts), tmp_path / "w.pt")
    code, _, err = command("train", *QUICK, "--epochs", "0", "--start", tmp_path / "w.pt", "--out", tmp_path / "a")
    assert code == 0, err
    saved = load_file(tmp_path / "a" / "last.safetensors")
    assert torch.equal(saved["server/net.body.0.weight"], parts["body"][0].weight)
    assert torch.equal(saved["client0/net.head.0.weight"], parts["head"][0].weight)
    assert torch.equal(saved["client0/net.tail.weight"], parts["tail"].weight)
    code, _, err = command(
        "train", *QUICK, "--net", "MnistNet", "--start", f"Pretrained('{tmp_path}/w.pt')", "--out", tmp_path / "b"
    )
    assert code == 1 and "does not fit MnistNet" in err and not (tmp_path / "b").exists()


def test_list_data_says_shape_files_and_licence(command):
    _, out, _ = command("list", "data")
    assert "3x32x32, 10 classes, 50,000 train, 10,000 test. Licence: " in out and "on disk: cifar10/" in out


def test_what_serve_puts_up_with_by_default_is_what_the_limits_say():
    pytest.importorskip("grpc")
    from cutlayer.cli.deploy import serve
    from cutlayer.engines.grpc.limits import Limits
    from cutlayer.engines.grpc.service import CONNECTIONS

    usual = {name: one.default for name, one in inspect.signature(serve).parameters.items()}
    limits = Limits()
    assert (usual["deadline"], usual["every"], usual["visitors"]) == (limits.deadline, limits.every, limits.visitors)
    assert usual["max_message"] << 20 == limits.message and usual["connections"] == CONNECTIONS[0]


def test_a_command_is_told_as_a_person_would_type_it(monkeypatch):
    from cutlayer.cli.terminal import as_typed

    words = ["audit", "--net", "Own('p.py:N', at='a')", "--guard", "LightSplit(ratio=8)", "--data", "Npz('$a.npz')"]
    monkeypatch.setattr(sys, "argv", ["cutlayer", *words])
    told = as_typed()
    assert told.startswith("""cutlayer audit --net "Own('p.py:N', at='a')" --guard 'LightSplit(ratio=8)' --data """)
    assert shlex.split(told)[1:] == words
