"""A client that a detector stops: in one process, on disk, and at the command line."""

import json
from dataclasses import replace

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan
from typer.testing import CliRunner

from cutlayer.attacks import FSHA
from cutlayer.audit.matrix import audit
from cutlayer.audit.report.detectors import watchdogs
from cutlayer.audit.spec import AuditSpec
from cutlayer.cli import app as cli
from cutlayer.core.errors import Halt
from cutlayer.core.message import Kind
from cutlayer.data import Digits
from cutlayer.data.base import Loaded
from cutlayer.detectors import GradientScrutinizer, OutlierGradients, SplitGuard
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.training import checkpoint

# On a network of a few hundred weights: warm within a dozen steps.
OUTLIERS = OutlierGradients(rehearsal=20, window=3)


class Hijacker:
    """Answers one client with gradients of its own liking; to the others it is honest."""

    def __init__(self, client=0, first=0):
        self.client, self.first, self.z, self.heard = client, first, None, []

    def __call__(self, message, handle):
        self.heard.append(message)
        answer = handle(message)
        if message.client != self.client or message.step < self.first:
            return answer
        if "z" in message.tensors:
            self.z = message["z"]
        return message.reply(dz=30 * self.z) if message.kind is Kind.BACKWARD else answer


def watched(**changes):
    return tiny_plan(**{"epochs": 4, "batch_size": 6, "client_detectors": (OUTLIERS,), **changes})


def test_it_stops_before_anything_more_is_sent():
    """Neither a step, nor an evaluation, nor its weights: the last message is that of the step that raised it."""
    for changes in ({}, {"clients": 2}, {"local_steps": 0}):
        evil = Hijacker(first=4)
        run = LocalRun(watched(**changes), tiny_parts(), classes=TASK.classes, at_server=[evil])
        with pytest.raises(Halt, match=r"client 0 has stopped: OutlierGradients: after step \d+, .*Nothing more"):
            run.train()
        last = evil.heard[-1]
        assert (last.kind, last.client) == (Kind.BACKWARD, 0) and last.step == run.clients[0].network.steps - 1
        count = len(evil.heard)
        for order in (run.coordinator.order(run.timetable.rounds(0)[0][0]),):
            with pytest.raises(Halt):  # and it stays stopped, whatever it is told
                run.clients[0].handle(replace(order, step=run.clients[0].steps))
        assert len(evil.heard) == count


def test_without_an_attacker_it_goes_on():
    assert LocalRun(watched(), tiny_parts(), classes=TASK.classes).train()


def test_a_run_on_disk_says_where_it_stood_and_why(tmp_path, monkeypatch):
    evil = Hijacker(first=10)
    monkeypatch.setattr(
        start,
        "ready",
        lambda plan, *rest, **more: LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=[evil]),
    )
    with pytest.raises(Halt, match=r"halted\.json"):
        start.train(watched(), tmp_path)
    why = json.loads((tmp_path / "halted.json").read_text())
    assert "OutlierGradients" in why["why"] and why["step"] > 10
    (scores,) = why["detectors"]
    assert scores["client"] == 0 and scores["scores"][-1][1] == scores["score"] < 0.5 and scores["alarm"]
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert rows[0]["OutlierGradients"] == 1.0 and rows[-1]["halted"] == why["why"]
    state, facts = checkpoint.load(tmp_path / "halted.safetensors")
    assert facts["step"] == why["step"] and any(name.startswith("client0/net.") for name in state)
    assert checkpoint.load(tmp_path / "last.safetensors")[1]["epoch"] == 1  # the last whole epoch
    assert not (tmp_path / "result.json").exists() and not list(tmp_path.glob("*.writing"))
    # It does not go on by itself; a person may say that it should.
    with pytest.raises(Halt, match=r"delete .*halted\.json"):
        start.train(load_plan(tmp_path, watched()), tmp_path, resume=True)
    (tmp_path / "halted.json").unlink()
    monkeypatch.setattr(
        start, "ready", lambda plan, *rest, **more: LocalRun(plan, tiny_parts(), classes=TASK.classes)
    )
    result = start.train(load_plan(tmp_path, watched()), tmp_path, resume=True)
    assert result["detectors"][0]["lowest"] == 1.0 and result["steps"] == 32


def test_the_command_ends_with_5_and_one_sentence(tmp_path, capfd, monkeypatch):
    """An honest server and a threshold that nobody meets."""
    out = tmp_path / "run"
    words = [
        "cutlayer", "train", "--net", "MnistNet()", "--data", "Digits()", "--epochs", "1",
        "--aux-samples", "3000", "--threads", "1", "--out", str(out),
        "--client-detectors", "GradientScrutinizer(threshold=0.999, warm=4, every=2)", 
        "--client-detectors", "SplitGuard()", "--json",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capfd.readouterr()
    assert ended.value.code == 5
    *estimate, sentence = said.err.splitlines()
    assert sentence.startswith("error: client 0 has stopped: GradientScrutinizer") and len(estimate) <= 1
    told = json.loads(said.out)
    assert told["out"] == str(out) and "GradientScrutinizer" in told["halted"]
    assert json.loads((out / "halted.json").read_text())["step"] == 4
    monkeypatch.setattr("sys.argv", ["cutlayer", "train", "--resume", str(out)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 5 and "delete" in capfd.readouterr().err
    # A person trusts the server all the same, and another detector more.
    (out / "halted.json").unlink()
    monkeypatch.setattr(
        "sys.argv", ["cutlayer", "train", "--resume", str(out), "--client-detectors", "SplitGuard()", "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert [one["detector"] for one in json.loads(capfd.readouterr().out)["detectors"]] == ["SplitGuard()"]
    assert load_plan(out).client_detectors == (SplitGuard(),)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--client-detectors", "GradientScrutinizer", "--batch-size", "4"], "a batch of 5"),
        (["--client-detectors", "Nothing"], "Nothing"),
        (["--client-detectors", "SplitGuard(vote=0)"], "vote at least 1"),
    ],
)
def test_what_cannot_be_watched_is_refused_and_leaves_nothing(words, match, tmp_path):
    found = CliRunner().invoke(cli.app, ["train", "--out", str(tmp_path / "run"), *words])
    assert isinstance(found.exception, ValueError) and match in str(found.exception)
    assert not (tmp_path / "run").exists()


def test_an_audit_says_what_detectors_notice_and_when(monkeypatch):
    marks = dict.fromkeys(("ssim", "ncc"), 0.1)
    monkeypatch.setattr(
        "cutlayer.audit.matrix.floors", lambda *given: {"mean": marks, "class_mean": marks}
    )  # takes long
    monkeypatch.setattr("cutlayer.audit.matrix.CONTROL_TRIES", 1)
    loaded = Loaded(tiny_parts(120).private, tiny_parts().test, ("a", "b", "c"))
    plan = tiny_plan(epochs=2, batch_size=6, aux_samples=40, client_detectors=(OUTLIERS, SplitGuard(warm=2, vote=2)))
    attack = FSHA(steps=20, width=4, hidden=8, warm=10, scale=30.0)
    found = audit(AuditSpec(plan, attacks=[attack], images=12), loaded)
    row = found.rows[0]
    honest, evil = row["detectors_honest"], row["detectors_attacked"]
    assert (
        [one["detector"] for one in honest]
        == [one["detector"] for one in evil]
        == [repr(o) for o in plan.client_detectors]
    )
    assert all(one["steps"] > 20 and one["false_alarms"] >= 0 for one in honest)
    assert evil[0]["detected"] and evil[0]["delay"] >= OUTLIERS.window and 0 <= abs(evil[0]["ssim"]) <= 1
    assert torch.isfinite(torch.tensor(evil[0]["ncc"]))
    shown = watchdogs([row])
    assert [one["delay"] for one in shown] == [one["delay"] for one in evil]
    passive = {name: value for name, value in row.items() if name != "detectors_attacked"} | {"attack": "Decoder()"}
    assert watchdogs([passive, row]) == shown  # a passive attack adds nothing
    assert [one["attack"] for one in watchdogs([passive])] == [None, None]


def test_a_slice_of_the_campaign():
    """MNIST-5000: the defaults are silent in honest training, and all of them call within 120 steps of FSHA."""
    from cutlayer.audit.detector_trial import DetectorTrial
    from cutlayer.audit.hijack import Training, hijack
    from cutlayer.data.base import parts
    from cutlayer.nets import MnistNet
    from cutlayer.training.batches import task_of
    from cutlayer.training.plan.plan import Plan

    watch = (GradientScrutinizer(), SplitGuard(), OutlierGradients())
    plan = Plan(
        net=MnistNet(), data=Digits(), epochs=1, aux_samples=2000, seed=3, private_seed=3, client_detectors=watch
    )
    data = parts(plan.data.load(), aux=plan.aux_samples, val=plan.val_share, seed=3)
    run = LocalRun(plan, data, classes=10)
    trial = DetectorTrial(run)
    run.train(on_step=lambda progress: trial())
    assert [row["false_alarms"] for row in trial.honest()] == [0, 0, 0]
    training = Training(plan, data, task_of(data.private, 10))

    def noticed(trial):
        return all(row["detected"] for row in trial.attacked())

    found = hijack(FSHA(steps=120, warm=50), training, images=32, stop=noticed)
    assert all(row["detected"] and row["delay"] <= 120 for row in found.trial.attacked())
