"""Pixels without a label, 255 in the masks of most data sets: neither learnt from nor judged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from cutlayer.audit.facts import commonest
from cutlayer.cli.predict import write_masks
from cutlayer.core.batch import NO_LABEL, Task
from cutlayer.core.message import Kind, Message
from cutlayer.data import Npz
from cutlayer.data.base import parts
from cutlayer.data.room import MEMORY
from cutlayer.data.rows import Rows
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.predict import Predictions
from cutlayer.nets import Segmenter
from cutlayer.training.evaluation import confusion, mean_iou, mean_iou_of_each
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import UShaped, Vanilla

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Images with three classes and a rim without any."""
    folder, draw = tmp_path_factory.mktemp("maps"), np.random.default_rng(0)
    y = draw.integers(0, 3, (24, 8, 8)).astype(np.uint8)
    y[:, :2] = 255
    np.save(folder / "x.npy", draw.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8))
    np.save(folder / "y.npy", y)
    return folder


def plan_of(path, protocol):
    data = Npz(str(path), ignore=255)
    return Plan(net=Segmenter(), data=data, protocol=protocol, epochs=1, batch_size=6, private_seed=1, val_share=0.2)


def trained(plan):
    loaded = plan.data.load()
    run = LocalRun(plan, parts(loaded, aux=2, val=plan.val_share, seed=0), classes=3)
    assert run.train()
    (accuracy,) = run.evaluate(run.parts.test)
    return run, accuracy


@pytest.mark.parametrize("protocol", [UShaped(), pytest.param(Vanilla(), marks=pytest.mark.campaign)], ids=repr)
def test_maps_with_a_rim_are_learnt_and_judged_within_it_from_memory_and_from_disk(path, protocol, monkeypatch):
    plan = plan_of(path, protocol)
    run, accuracy = trained(plan)
    scored = run.clients[0].scored
    assert scored.samples == scored.confusion.sum() == len(run.parts.test) * 6 * 8
    assert accuracy == scored.right / scored.samples
    assert all(tensor.isfinite().all() for tensor in run.tensors().values())
    monkeypatch.setenv(MEMORY, "100")
    disk, also = trained(plan)
    assert isinstance(disk.parts.private.y, Rows) and also == accuracy
    ours, theirs = run.tensors(), disk.tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_lies_under_them_changes_nothing():
    y = torch.randint(0, 3, (4, 8, 8)).masked_fill(torch.rand(4, 8, 8) < 0.3, NO_LABEL)
    scores = torch.randn(4, 3, 8, 8)
    judged = y != NO_LABEL
    alone = cross_entropy(scores.movedim(1, -1)[judged], y[judged])
    torch.testing.assert_close(cross_entropy(scores, y), alone)
    other = torch.where(judged[:, None], scores, torch.randn_like(scores))
    assert torch.equal(confusion(scores.argmax(1), y, 3), confusion(other.argmax(1), y, 3))


def test_figures_leave_them_out():
    truth = torch.tensor([[[0, 0, 1, NO_LABEL]], [[NO_LABEL] * 4]])
    found = torch.tensor([[[0, 1, 1, 2]], [[0, 1, 2, 0]]])
    assert mean_iou(confusion(found, truth, 3)) == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert mean_iou_of_each(found, truth, 3).tolist() == [0.5, 0.0]
    assert commonest(truth) == pytest.approx(2 / 3)
    told = Predictions(tuple("abc"), found.short(), torch.ones(2), truth.short(), [1.0], [1], [1])
    assert told.right.tolist() == pytest.approx([2 / 3, 0.0])
    assert told.summary()["mean_iou"] == pytest.approx(0.5)


def test_they_are_255_again_in_a_file_of_masks(tmp_path):
    truth = torch.tensor([[[0, NO_LABEL]]]).short()
    write_masks(tmp_path / "m.npz", Predictions(("a", "b"), truth * 0, torch.ones(1), truth, [1.0], [1], [1]))
    assert np.load(tmp_path / "m.npz")["label"].tolist() == [[[0, 255]]]


def test_the_commonest_label_is_the_same_from_disk(path, monkeypatch):
    whole = Npz(str(path), ignore=255).load().train.y
    monkeypatch.setenv(MEMORY, "100")
    disk = Npz(str(path), ignore=255).load().train.y
    assert isinstance(disk, Rows) and commonest(disk) == commonest(whole)


def test_other_labels_out_of_range_are_still_refused(path):
    plan = plan_of(path, UShaped())
    with pytest.raises(ValueError, match="255 is there"):
        replace(plan, data=Npz(str(path))).data.load()


def test_a_server_lets_them_in_with_labels_that_travel_but_not_maps_of_nothing_else(path):
    validator = MessageValidator(plan_of(path, Vanilla()), Task((3, 8, 8), 3))
    validator.open(Message(Kind.TURN, 0, 0, {"turn": torch.tensor([0, 0, 1, 0])}))
    y = torch.zeros(6, 8, 8, dtype=torch.int64)
    y[:, :2] = NO_LABEL
    z = torch.zeros(6, 32, 4, 4)
    validator._labels(Message(Kind.LOSS, 0, 0, {"z": z, "y": y}))
    for wrong in (torch.full_like(y, NO_LABEL), y + 3, y - 1):
        with pytest.raises(Refused, match="y holds classes from 0 to 2"):
            validator._labels(Message(Kind.LOSS, 0, 0, {"z": z, "y": wrong}))
