"""JPEG and HEVC: inputs as picture files, at a cut where there are pictures."""

import io
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from toys import TASK, TinyNet, batches, split_and_whole, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind
from cutlayer.core.spec import spec
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import HEVC, JPEG, Chain, NoGuard, Noise
from cutlayer.nets import Whole
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import UShaped, Vanilla
from cutlayer.training.step import learn, predict

BOTH = [JPEG(quality=60), HEVC(quality=40)]
both = pytest.mark.parametrize("guard", BOTH, ids=repr)
WHOLE = Whole(net=TinyNet())


def built(guard, shape=(1, 12, 12)):
    return guard.build(shape, public=1, private=2, task=TASK)


@both
def test_its_text_is_itself(guard):
    assert spec(repr(guard), "guards") == guard and hash(spec(repr(guard))) == hash(guard)


@both
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_leaves_is_what_a_picture_library_reads_from_the_files(guard, mode):
    batch = batches(1)[0]
    module = getattr(built(guard), mode)()
    seen = module(batch.x, batch).seen
    assert seen.shape == batch.x.shape and not torch.equal(seen, batch.x)
    if isinstance(guard, HEVC):
        import pillow_heif

        read = [np.asarray(pillow_heif.open_heif(io.BytesIO(file)).to_pillow()) for file in module.packed.files]
    else:
        read = [np.asarray(Image.open(io.BytesIO(file))) for file in module.packed.files]
    assert torch.equal(seen[:, 0], torch.from_numpy(np.stack(read)).to(seen) / 255)
    assert module.packed.size() < batch.x.numel() * 4
    assert guard.lift((1, 12, 12), 1)(seen) is seen and not module.state_dict()
    assert torch.equal(built(guard)(batch.x, batch).seen, seen)


@pytest.mark.parametrize("kind", [JPEG, HEVC])
def test_better_quality_is_nearer_and_larger(kind):
    x = batches(1)[0].x
    found = [kind(quality=quality).compress(x) for quality in (5, 50, 95)]
    sizes = [packed.size() for _, packed in found]
    errors = [float((seen - x).square().mean()) for seen, _ in found]
    assert sizes == sorted(sizes) and errors == sorted(errors, reverse=True)
    assert sizes[0] < sizes[2] and errors[2] < errors[0] / 5


def test_colours_survive():
    x = torch.zeros(2, 3, 16, 16)
    x[:, 0], x[1, 2] = 0.9, 0.4
    for guard in (JPEG(quality=95), HEVC(quality=95)):
        assert (guard.compress(x)[0] - x).abs().max() < 0.05


@both
def test_gradients_pass_straight_through(guard):
    batch = batches(1)[0]
    x = batch.x.clone().requires_grad_()
    (built(guard)(x, batch).seen * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@both
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_a_server_learns_from_the_files_and_every_byte_is_counted(guard, protocol):
    plan = tiny_plan(net=WHOLE, guard=guard, protocol=protocol, batch_size=16, epochs=1)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    before = {name: t.clone() for name, t in run.server.body.state_dict().items()}
    run.train()
    assert any(not torch.equal(t, before[name]) for name, t in run.server.body.state_dict().items())
    kind = Kind.FORWARD if protocol == UShaped() else Kind.LOSS
    plain = LocalRun(
        tiny_plan(net=WHOLE, guard=NoGuard(), protocol=protocol, batch_size=16, epochs=1), tiny_parts(), classes=3
    )
    plain.train()
    assert 0 < run.ledger.bytes[kind.name, "up"] < plain.ledger.bytes[kind.name, "up"]


@pytest.mark.usefixtures("double")
def test_float64():
    client, *_ = split_and_whole(tiny_plan(net=WHOLE, guard=JPEG()))
    for batch in batches(2):
        learn(client, batch)
    assert predict(client, batches(1)).dtype == torch.float64


@both
def test_other_cuts_are_refused_and_the_error_names_the_network_to_take(guard):
    for shape in ((4, 5, 5), (2, 8, 8), (10,), (3, 70_000, 2)):
        with pytest.raises(ValueError, match=r"1 or 3 channels.*Whole\(net="):
            guard.out_shape(shape)
    with pytest.raises(ValueError, match="Whole"):
        cut_shapes(tiny_plan(guard=guard, net=TinyNet()), TASK)
    assert cut_shapes(tiny_plan(guard=guard, net=WHOLE), TASK).sent == TASK.shape


@dataclass(frozen=True, repr=False)
class _SameShape(TinyNet):
    """A head whose maps have the shape of a picture, and are none."""

    def head(self, shape):
        return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Sigmoid())

    def body(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 7))


@both
def test_maps_that_look_like_a_picture_are_refused_before_training(guard):
    with pytest.raises(ValueError, match=r"what leaves .* here are none.*Whole"):
        cut_shapes(tiny_plan(guard=guard, net=_SameShape()), TASK)


@both
@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_values_that_no_picture_has_are_refused(guard, value):
    batch = batches(1)[0]
    x = batch.x.clamp(0, 1)
    x[2, 0, 3, 4] = value
    with pytest.raises(ValueError, match=r"values from 0 to 1.*Whole"):
        built(guard)(x, batch)


def test_no_noise_in_front():
    with pytest.raises(ValueError, match=r"Noise\(scale=1.0\) changes them before: put JPEG\(quality=75\) first"):
        Chain(Noise(scale=1.0), JPEG())


@pytest.mark.parametrize("kind", [JPEG, HEVC])
@pytest.mark.parametrize("quality", [0, 101, 50.0, "good", True])
def test_settings_that_make_no_sense(kind, quality):
    with pytest.raises(ValueError, match=f"{kind.__name__}'s quality is a (whole )?number"):
        kind(quality=quality)


def test_whoever_lacks_the_hevc_coder_is_told_which_extra_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ValueError, match=r"pip install 'cutlayer\[hevc\]'"):
        cut_shapes(tiny_plan(guard=HEVC(), net=WHOLE), TASK)
    assert JPEG().out_shape((1, 12, 12)) == (1, 12, 12)


def test_an_empty_batch_stays_empty():
    x = torch.zeros(0, 1, 12, 12)
    assert built(JPEG())(x, Batch(x, torch.zeros(0))).seen.shape == x.shape
