"""Faster ways that somebody has to ask for: other bits, within the band that is stated."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.engines.local.run import LocalRun
from cutlayer.training.faster import BANDS, Faster
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.wire.ledger import UP


def trained(faster, **changes):
    run = LocalRun(tiny_plan(**{"epochs": 1, **changes}), tiny_parts(), classes=TASK.classes, faster=faster)
    before = weights(run)
    assert run.train()
    return before, weights(run), run


def weights(run):
    parts = (run.networks[0].split, run.server.body)
    return torch.cat([p.detach().flatten() for part in parts for p in part.parameters()]).clone()


WAYS = {
    "bf16": (Faster(precision="bf16"), "bf16"),
    "channels-last": (Faster(channels_last=True), "channels_last"),
    "im2col": (Faster(im2col=True), "im2col"),
    "both": (Faster(precision="bf16", channels_last=True), "bf16"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("changes", [{}, {"rounds": SplitFed(), "clients": 2}], ids=["relay", "a body a client"])
def test_weights_stay_within_the_band(way, changes):
    (before, plain, open_run), (_, ours, run) = (trained(one, **changes) for one in (Faster(), WAYS[way][0]))
    apart, moved = (ours - plain).norm(), (plain - before).norm()
    assert apart <= BANDS[WAYS[way][1]] * moved
    assert ours.dtype is torch.float32
    assert run.ledger.messages == open_run.ledger.messages
    if "bf16" in str(WAYS[way][0]):
        assert apart > 0, "nothing was computed otherwise"
        assert run.ledger.per_sample(UP) < 0.8 * open_run.ledger.per_sample(UP), "z takes two bytes a number"


@pytest.mark.campaign
def test_compiled_parts_stay_within_the_band():
    (before, plain, _), (_, ours, _) = (trained(one) for one in (Faster(), Faster(compiled=True)))
    assert (ours - plain).norm() <= BANDS["compile"] * (plain - before).norm()


def test_names_stay_as_they_are():
    _, _, plain = trained(Faster())
    _, _, ours = trained(Faster(precision="bf16", channels_last=True))
    assert ours.tensors().keys() == plain.tensors().keys()


def test_a_step_that_fails_leaves_nothing_behind():
    part = torch.nn.Linear(2, 2)
    Faster(precision="bf16").prepare(part)
    with pytest.raises(RuntimeError):
        part(torch.ones(1, 3))
    assert not torch.is_autocast_enabled("cpu")
    assert part(torch.ones(1, 2)).dtype is torch.float32


def test_what_cannot_be_asked_for():
    with pytest.raises(ValueError, match="float32, tf32, bf16"):
        Faster(precision="fp8")
    with pytest.raises(ValueError, match="--device cuda"):
        LocalRun(tiny_plan(), tiny_parts(), classes=TASK.classes, faster=Faster(precision="tf32"))
