"""Out of memory: the batch that would fit is named."""

import pytest
import torch
from toys import TASK, TinyNet, tiny_plan

from cutlayer.data.digits import Digits
from cutlayer.engines.local import room, start

PLAN = tiny_plan(batch_size=48)


def small(most):
    """A step on a device with room for so many samples."""
    learn = room.learn

    def step(client, batch, **more):
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return learn(client, batch, **more)

    return step


@pytest.mark.parametrize(("most", "fits"), [(47, 24), (13, 12), (3, 3), (1, None)])
def test_it_is_tried(most, fits, monkeypatch):
    monkeypatch.setattr(room, "learn", small(most))
    assert room.largest_batch(PLAN, TASK, torch.device("cpu")) == fits


def test_the_command_names_it(monkeypatch, tmp_path):
    def full(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(start.loop, "train", full)
    monkeypatch.setattr(room, "learn", small(13))
    plan = tiny_plan(batch_size=48, data=Digits(limit=100), net=TinyNet())
    with pytest.raises(MemoryError, match="--batch-size 48; 12 fits"):
        start.train(plan, tmp_path / "run")
    monkeypatch.setattr(room, "learn", small(1))
    with pytest.raises(MemoryError, match="at any batch size"):
        start.train(plan, tmp_path / "other")
