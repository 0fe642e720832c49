"""Attacking a recording: the truth is found again behind the messages, and nothing is judged that cannot be."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit import recording
from cutlayer.audit.recording import Recorded, attack_recording
from cutlayer.audit.report.files import write_attack
from cutlayer.core.message import Kind, Message
from cutlayer.data import Digits
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import KAnonymous, LightSplit
from cutlayer.training.plan.plan import Plan
from cutlayer.wire.transcript import Recorder, read

PLAN = Plan(data=Digits(limit=500), epochs=1, aux_samples=150, guard=LightSplit(ratio=8), private_seed=5)


def test_the_truth_behind_each_recorded_row_is_found_again(tmp_path):
    """A head that does not learn sends the same for the same sample, whenever it was recorded."""
    recorder = Recorder()
    plan = tiny_plan(epochs=2, batch_size=7, frozen_parts=("head",), clients=2)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=[recorder])
    run.train()
    recorder.save(tmp_path / "t")
    victim = Recorded(run, read(tmp_path / "t"), images=15, client=1)
    assert len(victim.truth) >= 15 and victim.seen.shape[0] == len(victim.truth) == len(victim.y)
    sizes = [len(m["z"]) for m in victim.messages if m.kind is Kind.FORWARD]
    again = torch.cat([victim.box.split.train().head(part) for part in victim.truth.split(sizes)])
    torch.testing.assert_close(victim.seen, again)
    assert {m.client for m in victim.observed} == {1} and len(victim.observed) > len(victim.messages)


def test_a_recorded_run_is_attacked_from_its_folder(tmp_path):
    start.train(PLAN, tmp_path / "run", follow=start.Following(record=1 << 20))
    found, victim, pictures = attack_recording(tmp_path / "run", [Decoder(readers=("ridge",))], images=40)
    (row,) = found["rows"]
    assert row["ncc"] > found["floors"]["class_mean"]["ncc"] and row["n"] == len(victim.truth) >= 40
    write_attack(found, victim.truth, victim.y, pictures, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "attack.json").read_text()) == json.loads(json.dumps(found))
    assert (tmp_path / "out" / "reconstructions.png").stat().st_size > 1000


def test_what_cannot_be_attacked_is_refused(tmp_path):
    plan = Plan(data=Digits(limit=300), epochs=1, private_seed=5)
    start.train(plan, tmp_path / "plain", follow=start.Following(record=1 << 20))
    with pytest.raises(ValueError, match="--aux-samples N"):
        attack_recording(tmp_path / "plain", [Decoder(steps=5)])
    (tmp_path / "plain" / "transcript.bin").unlink()
    with pytest.raises(FileNotFoundError, match="--record"):
        attack_recording(tmp_path / "plain", [Decoder(steps=5)])
    run = LocalRun(tiny_plan(guard=KAnonymous(k=2)), tiny_parts(), classes=TASK.classes)
    with pytest.raises(ValueError, match="judge it with an audit"):
        Recorded(run, [], images=4)
    run = LocalRun(tiny_plan(), tiny_parts(), classes=TASK.classes)
    with pytest.raises(ValueError, match="no training messages of client 0"):
        Recorded(run, [Message(Kind.PREDICT, 0, 0, {"z": torch.zeros(1, 4, 5, 5)})], images=4)


@dataclass(frozen=True, repr=False)
class Copies(Digits):
    """Every image is there twice, so some are private and the attacker's at once."""

    def load(self, folder=None, known=None):
        loaded = super().load(folder, known)
        return replace(loaded, train=loaded.train[torch.arange(len(loaded.train)).repeat(2)])


def test_images_that_are_private_and_the_attackers_are_refused_as_in_an_audit(tmp_path, monkeypatch):
    start.train(PLAN, tmp_path / "run", follow=start.Following(record=1 << 20))
    monkeypatch.setattr(recording, "load_plan", lambda folder: replace(load_plan(folder), data=Copies(limit=250)))
    with pytest.raises(ValueError, match="auxiliary images are also private: the score would be memory"):
        attack_recording(tmp_path / "run", [Decoder(steps=5)])
