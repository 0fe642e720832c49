"""Segmentation: the figure against another implementation, what fits labels of pixels, and runs from end to end."""

import json

import numpy as np
import pytest
import torch

from cutlayer.attacks import Decoder, LabelClustering, Membership, TailEnumeration
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.core.compressor import Compression
from cutlayer.data import Npz, Scenes
from cutlayer.data.base import parts
from cutlayer.data.partitions import IID, Dirichlet, Labels
from cutlayer.data.poisons import BadNets, LabelFlip
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.predict import Inputs, predict
from cutlayer.guards import LFQ, WCC, Chain, KAnonymous, LightSplit, NoGuard, Quantize
from cutlayer.nets import LeNet, Segmenter
from cutlayer.training.evaluation import confusion, mean_iou, mean_iou_of_each
from cutlayer.training.labels import label_shape, refuse_unfit_labels
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

torch.set_num_threads(1)

SCENE = Task((3, 16, 16), 3)


def small(tmp_path, count=48, side=16):
    """Bright squares (1) and bright discs (2) on nearly black, as a file of one's own."""
    draw = np.random.default_rng(0)
    x, y = np.zeros((count, side, side, 3), np.uint8), np.zeros((count, side, side), np.int64)
    x[:] = draw.integers(0, 20, x.shape)
    rows, columns = np.mgrid[:side, :side]
    for number in range(count):
        top, left, kind = draw.integers(0, side - 8), draw.integers(0, side - 8), 1 + number % 2
        inside = (rows >= top) & (rows < top + 8) & (columns >= left) & (columns < left + 8)
        if kind == 2:
            inside &= (rows - top - 3.5) ** 2 + (columns - left - 3.5) ** 2 < 16
        x[number][inside] = (250, 120, 60) if kind == 1 else (60, 120, 250)
        y[number][inside] = kind
    path = tmp_path / "maps.npz"
    np.savez(path, x=x, y=y, classes=np.array(["nothing", "square", "disc"]))
    return Npz(str(path))


def plan_for(data, **changes):
    fast = Adam(lr=0.003)
    fields = {"epochs": 1, "batch_size": 8, "private_seed": 1, "client_optimizer": fast, "server_optimizer": fast}
    return Plan(net=Segmenter(), data=data, **{**fields, **changes})


# ------------------------------------------------------------------------------ the figure
def test_mean_iou_by_hand():
    truth = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 2]])
    found = torch.tensor([[0, 0, 1, 0], [0, 0, 1, 1]])
    # class 0: 4 of 5; class 1: 2 of 4; class 2: 0 of 1; class 3 is nowhere and has no say
    assert mean_iou(confusion(found, truth, 4)) == pytest.approx((4 / 5 + 2 / 4 + 0) / 3)
    assert mean_iou(confusion(truth, truth, 4)) == 1.0
    assert confusion(found, truth, 4)[1].tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_mean_iou_is_that_of_torchmetrics(seed):
    jaccard = pytest.importorskip("torchmetrics.functional.classification").multiclass_jaccard_index
    draw = torch.Generator().manual_seed(seed)
    truth = torch.randint(5, (6, 9, 7), generator=draw)
    found = torch.where(
        torch.rand(truth.shape, generator=draw) < 0.6, truth, torch.randint(5, truth.shape, generator=draw)
    )
    assert mean_iou(confusion(found, truth, 8)) == pytest.approx(
        float(jaccard(found, truth, num_classes=8, average="macro")), abs=1e-6
    )
    each = mean_iou_of_each(found, truth, 8)
    for one, a, b in zip(each, found, truth, strict=True):
        assert float(one) == pytest.approx(float(jaccard(a[None], b[None], num_classes=8, average="macro")), abs=1e-6)


# -------------------------------------------------------------------------------- what fits
def test_the_network_says_what_its_labels_are():
    assert label_shape(Plan(net=Segmenter()), SCENE) == (16, 16)
    assert label_shape(Plan(net=LeNet()), Task((1, 28, 28), 10)) == ()


@pytest.mark.parametrize(
    ("plan", "task", "y", "words"),
    [
        (Plan(net=LeNet()), Task((1, 28, 28), 10), torch.zeros(2, 28, 28).long(), "take a Segmenter"),
        (Plan(net=Segmenter()), SCENE, torch.zeros(2).long(), "labels are one a sample: try --data Scenes"),
        (Plan(net=Segmenter()), SCENE, torch.zeros(2, 8, 8).long(), r"the labels have \(8, 8\)"),
        (Plan(net=Segmenter(), guard=WCC(weight=0.1)), SCENE, torch.zeros(2, 16, 16).long(), "WCC.*class of a"),
        (
            Plan(net=Segmenter(), guard=Chain(Quantize(bits=8), KAnonymous(grouping="class"))),
            SCENE, torch.zeros(2, 16, 16).long(), "choose another guard",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_at_once(plan, task, y, words):
    with pytest.raises(ValueError, match=words):
        refuse_unfit_labels(plan, task, y)


def test_a_guard_that_ignores_classes_fits():
    refuse_unfit_labels(Plan(net=Segmenter(), guard=KAnonymous()), SCENE, torch.zeros(2, 16, 16).long())


def test_partitions_by_class_are_refused_and_an_even_deal_is_not(tmp_path):
    samples = small(tmp_path).load().train
    assert [len(share) for share in IID().assign(samples, 4, 0)] in (
        [11, 11, 11, 10],
        [10, 11, 11, 11],
        [11] * 3 + [10],
    )
    for partition in (Dirichlet(alpha=1.0), Labels(m=1)):
        with pytest.raises(ValueError, match=r"every pixel has its own: use IID\(\)"):
            partition.assign(samples, 2, 0)


# ---------------------------------------------------------------------------- from end to end
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_training_finds_the_maps(protocol, tmp_path):
    result = start.train(plan_for(small(tmp_path), protocol=protocol, epochs=6, val_share=0.0), tmp_path / "run")
    assert result["mean_iou"] > 0.6 and result["accuracy"] > 0.9
    assert json.loads((tmp_path / "run" / "result.json").read_text())["mean_iou"] == result["mean_iou"]


def test_the_result_is_what_prediction_finds(tmp_path):
    data = small(tmp_path)
    result = start.train(plan_for(data, val_share=0.0), tmp_path / "run")
    told = predict(tmp_path / "run", Inputs(size=2)).summary()
    assert told["mean_iou"] == pytest.approx(result["mean_iou"], abs=1e-4)
    assert told["accuracy"] == pytest.approx(result["accuracy"], abs=1e-4)


@pytest.mark.parametrize(
    "guard",
    [
        LFQ(bits=4),
        Quantize(bits=4),
        LightSplit(ratio=4),
        Chain(LightSplit(ratio=4), Quantize(bits=4)),
        KAnonymous(k=2),
    ],
    ids=repr,
)
def test_guards_run_with_maps(guard, tmp_path):
    loaded = small(tmp_path).load()
    squeezed = Compression(Quantize(bits=4), Quantize(bits=4, rounding="stochastic"))
    plan = plan_for(Scenes(), guard=guard, compression=squeezed, val_share=0.0)
    run = LocalRun(plan, parts(loaded, aux=0, val=0.0, seed=0), classes=3)
    run.train()
    assert run.progress.step >= 5 and 0 <= run.evaluate(run.parts.test)[0] <= 1


def test_labels_on_the_way_are_counted_for_every_pixel(tmp_path):
    result = start.train(plan_for(small(tmp_path), protocol=Vanilla(), val_share=0.0), tmp_path / "run")
    ratio = result["rates"]["uplink ratio"]
    raw = 4 * 32 * 8 * 8 + 8 * 16 * 16
    assert ratio == pytest.approx(raw / result["bytes_up"])


def test_an_audit_of_maps_has_a_row_for_each_guard_and_no_class_mean(tmp_path):
    loaded = small(tmp_path).load()
    plan = plan_for(Scenes(), aux_samples=16, val_share=0.0)
    attacks = [Decoder(steps=5, readers=("conv",))]
    found = audit(AuditSpec(plan, [LightSplit(ratio=4)], attacks, [WCC(weight=0.1)], images=8), loaded)
    assert {row["guard"] for row in found.rows} == {"none", "LightSplit(ratio=4)"}
    assert "class of a sample" in found.left_out["WCC(weight=0.1)"]
    assert set(found.floors) == {"blank", "mean", "unaligned"}
    for row in found.rows:
        assert 0 <= row["mean_iou"] <= 1 and row["within_over_total"] is None


@pytest.mark.parametrize("attack", [Membership(), LabelClustering(), TailEnumeration()], ids=repr)
def test_attacks_on_classes_are_refused_before_any_training(attack, tmp_path):
    loaded, plan = small(tmp_path).load(), plan_for(Scenes(), aux_samples=16, val_share=0.0)
    with pytest.raises(ValueError, match="goes by the class of a sample, and here every pixel has its own"):
        audit(AuditSpec(plan, [NoGuard()], [attack], images=8), loaded)


def test_a_guard_of_classes_is_refused_as_one_also_where_the_smallest_batch_is_tried(tmp_path):
    guard = Chain(WCC(weight=0.1), KAnonymous(k=2, grouping="random"))
    plan = plan_for(small(tmp_path), guard=guard, compression=Compression(answers=Quantize(bits=4)))
    with pytest.raises(ValueError, match="goes by the class of a sample, and here every pixel has its own"):
        LocalRun(plan, parts(small(tmp_path).load(), aux=0, val=0.0, seed=0), classes=3)


@pytest.mark.parametrize("poison", [LabelFlip(clients=1), BadNets(clients=1)], ids=repr)
def test_poisons_of_classes_are_refused_before_any_training(poison, tmp_path):
    with pytest.raises(ValueError, match="goes by the class of a sample, and here every pixel has its own"):
        LocalRun(
            plan_for(small(tmp_path), poison=poison, clients=2),
            parts(small(tmp_path).load(), aux=0, val=0.0, seed=0),
            classes=3,
        )


# ------------------------------------------------------------------------------ the commands
def test_train_and_predict_write_maps(command, tmp_path):
    text = f"Plan(net=Segmenter(), data={small(tmp_path)!r}, batch_size=8, epochs=1, val_share=0.0)"
    code, _, err = command("train", text, "--threads", 1, "--out", tmp_path / "a")
    assert code == 0 and "test mIoU" in err and "pixel accuracy" in err
    code, out, err = command(
        "predict",
        tmp_path / "a",
        "--threads",
        1,
        "--json",
        "--out",
        tmp_path / "a.csv",
        "--masks",
        tmp_path / "masks",
    )
    assert code == 0, err
    told, lines = json.loads(out), (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "sample,mean_iou,accuracy,confidence,row" and len(lines) == 1 + told["samples"]
    code, _, err = command("predict", tmp_path / "a", "--threads", 1, "--masks", tmp_path / "maps2.npz")
    assert code == 0 and "label maps in" in err and "mIoU" in err

    from PIL import Image

    kept = np.load(tmp_path / "maps2.npz")
    pictures = sorted((tmp_path / "masks").glob("*.png"))
    assert len(pictures) == told["samples"] == len(kept["predicted"]) and kept["classes"].tolist()[1] == "square"
    for path, expected in zip(pictures, kept["predicted"], strict=True):
        assert np.array_equal(np.array(Image.open(path)), expected)
    ious = mean_iou_of_each(torch.tensor(kept["predicted"]).long(), torch.tensor(kept["label"]).long(), 3)
    assert [line.split(",")[1] for line in lines[1:]] == [f"{value:.4f}" for value in ious]


def test_masks_of_one_class_a_sample_are_refused(command, tmp_path):
    assert (
        command("train", "--data", "Digits(limit=100)", "--epochs", 1, "--threads", 1, "--out", tmp_path / "a")[0]
        == 0
    )
    code, _, err = command("predict", tmp_path / "a", "--threads", 1, "--masks", tmp_path / "m")
    assert code == 1 and "gives one class a sample" in err and not (tmp_path / "m").exists()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x").touch()
    code, _, err = command("predict", tmp_path / "a", "--threads", 1, "--masks", tmp_path / "m")
    assert code == 1 and "give --masks a new folder" in err


def test_a_network_for_classes_meets_maps_with_one_sentence(command, tmp_path):
    code, _, err = command("train", "--data", "Scenes(limit=50)", "--threads", 1, "--out", tmp_path / "a")
    assert code == 1 and err.count("\n") == 1 and "Segmenter" in err and not (tmp_path / "a").exists()
