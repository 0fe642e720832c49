"""A recording holds what came in, bit for bit, within its bounds, and damage is said and not read over."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import KAnonymous, LightSplit
from cutlayer.wire import transcript
from cutlayer.wire.transcript import Recorder, read


def recorded(tmp_path, **changes):
    recorder, heard = Recorder(), []
    run = LocalRun(
        tiny_plan(epochs=1, batch_size=8, **changes),
        tiny_parts(),
        classes=TASK.classes,
        at_server=[lambda message, handle: (heard.append(message), handle(message))[1], recorder],
    )
    run.train()
    recorder.save(tmp_path / "transcript.bin")
    return heard, read(tmp_path / "transcript.bin")


@pytest.mark.parametrize("guard", [LightSplit(ratio=4), KAnonymous(k=3)], ids=repr)
def test_it_holds_exactly_what_came_in(tmp_path, guard):
    heard, kept = recorded(tmp_path, guard=guard)
    assert len(heard) == len(kept) > 6
    for one, other in zip(heard, kept, strict=True):
        assert (one.kind, one.client, one.step) == (other.kind, other.client, other.step)
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.tensors.items())


def test_recording_changes_nothing(tmp_path):
    plain = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    watched = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes, at_server=[Recorder()])
    plain.train()
    watched.train()
    ours, theirs = plain.tensors(), watched.tensors()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_newest_stay_within_the_limit(tmp_path):
    recorder = Recorder(limit=2000)
    for step in range(20):
        recorder(Message(Kind.FORWARD, 0, step, {"z": torch.rand(10, 10)}), lambda message: message)
        assert recorder.bytes <= 2000
    recorder.save(tmp_path / "t")
    assert [message.step for message in read(tmp_path / "t")] == [16, 17, 18, 19]
    again = Recorder(limit=2000)
    again.load(tmp_path / "t")
    assert again.bytes == recorder.bytes


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b[:6], lambda b: b"no" + b, lambda b: b[:60] + b"x" * 40]
)
def test_damage_is_refused(tmp_path, damage):
    recorder = Recorder()
    recorder(Message(Kind.FORWARD, 0, 1, {"z": torch.rand(4, 4)}), lambda message: message)
    recorder.save(tmp_path / "t")
    (tmp_path / "t").write_bytes(damage((tmp_path / "t").read_bytes()))
    with pytest.raises(ValueError, match=r"damaged|not a recording"):
        read(tmp_path / "t")


def test_what_is_not_there_is_said():
    with pytest.raises(FileNotFoundError, match="--record"):
        read(transcript.Path("nowhere"))
    with pytest.raises(ValueError, match="at least one byte"):
        Recorder(limit=0)
