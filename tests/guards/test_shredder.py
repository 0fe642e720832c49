"""Noise that is learnt for a frozen network, grows to its target and is drawn again when a step is replayed."""

import pytest
import torch
from scipy import stats
from toys import TASK, batches, states, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Chain, Disco, LightSplit, Shredder
from cutlayer.guards.base import Bound, Release
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.step import export

CUT = (4, 5, 5)
ALL = ("head", "body", "tail")


def built(guard, private=2):
    return guard.build(CUT, 1, private, TASK).train()


def test_it_starts_as_laplace_noise_of_its_scale():
    noise = Shredder(tensors=40, scale=0.3).build((20, 12, 12), 1, 2).noise.detach().flatten().double()
    assert stats.kstest(noise[:5000].numpy(), stats.laplace(scale=0.3).cdf).pvalue > 0.01
    assert float(noise.abs().mean()) == pytest.approx(0.3, rel=0.02)  # of |x| the mean is the scale
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("training", [True, False])
def test_each_sample_gets_one_of_the_tensors(training):
    module = built(Shredder(tensors=3)).train(training)
    z = torch.randn(60, *CUT)
    added = module(z, Batch(z, torch.zeros(60).long(), seed=5)).seen - z
    gaps = (added[:, None] - module.noise).flatten(2).abs().amax(2)
    nearest = gaps.min(1)
    assert nearest.values.max() < 1e-5
    assert nearest.indices.bincount(minlength=3).min() > 8, "all of them are used"


def test_a_replayed_step_draws_the_same_and_nobody_else_does():
    z, y = torch.randn(40, *CUT), torch.zeros(40).long()
    module, other = built(Shredder()), built(Shredder(), private=3)
    other.load_state_dict(module.state_dict())

    def drawn(module, seed):
        return module(z, Batch(z, y, seed=seed)).seen

    assert torch.equal(drawn(module, 1), drawn(built(Shredder()), 1))
    assert torch.equal(drawn(module, 1), drawn(module.eval(), 1))
    assert not torch.equal(drawn(module, 1), drawn(module, 2))
    assert not torch.equal(drawn(module, 1), drawn(other, 1)), "the same tensors, other draws"


@pytest.mark.usefixtures("double")
def test_the_loss_is_the_papers_until_the_target_is_reached():
    """CE - weight · Σ|noise| over the samples, without the tensors that are loud enough."""
    guard = Shredder(tensors=3, weight=0.25, target=0.5)
    module = built(guard)
    z, batch = torch.randn(6, *CUT), batches(1)[0]
    with torch.no_grad():
        module.noise[1] *= 100
    seen, penalty, *_ = module(z, batch)
    drawn = (seen - z)[:, None].sub(module.noise).flatten(2).abs().amax(2).argmin(1)
    assert set(drawn.tolist()) >= {1} and len(set(drawn.tolist())) > 1
    expected = -0.25 * sum(module.noise[k].abs().sum() for k in drawn.tolist() if k != 1) / 6
    torch.testing.assert_close(penalty["Shredder"], expected)
    (grad,) = torch.autograd.grad(penalty["Shredder"], module.noise)
    share = drawn.bincount(minlength=3) / 6
    for k in (0, 2):
        torch.testing.assert_close(grad[k], -0.25 * share[k] * module.noise[k].detach().sign())
    assert not grad[1].any()
    ratios = [float(noise.var(correction=0) / z.square().mean()) for noise in module.noise.detach()]
    assert float(module.notes["noise_to_signal"]) == pytest.approx(sum(ratios) / 3)


def finished(**changes):
    plan = tiny_plan(frozen_parts=ALL, batch_size=16, client_optimizer=Adam(lr=0.02), **changes)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    before = {name: t.clone() for name, t in states(run.networks[0], run.server).items()}
    assert run.train()
    return run, before


def test_a_frozen_network_stays_bit_for_bit_and_only_the_noise_learns():
    run, before = finished(guard=Shredder(tensors=3), epochs=4)
    after = states(run.networks[0], run.server)
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["client.guard.noise"]
    assert run.server.optimizer is None
    (group,) = run.networks[0].optimizer.param_groups
    assert [weight.shape for weight in group["params"]] == [(3, *CUT)]


def test_the_noise_grows_to_its_target_and_stays_there():
    run, _ = finished(guard=Shredder(tensors=2, weight=0.1, target=2.0), epochs=120)
    ratios = [row["noise_to_signal"] for row in run.progress.history]
    assert ratios[0] < 0.5
    # Adam's momentum carries it a little beyond; without an end it would be far beyond by then.
    assert all(1.9 < ratio < 3.0 for ratio in ratios[-40:]), ratios
    assert max(ratios[-40:]) - min(ratios[-40:]) < 0.1
    endless, _ = finished(guard=Shredder(tensors=2, weight=0.1, target=1e9), epochs=120)
    assert endless.progress.history[-1]["noise_to_signal"] > 10


def test_a_target_of_0_learns_noise_for_the_task_alone():
    run, _ = finished(guard=Shredder(tensors=2, target=0.0), epochs=30)
    assert all(row["Shredder"] == 0 for row in run.progress.history)
    assert run.progress.history[-1]["task"] < run.progress.history[0]["task"]


def test_the_noise_is_handed_on_and_the_seed_is_not():
    run, _ = finished(guard=Shredder(tensors=3), epochs=1)
    client = run.networks[0]
    assert torch.equal(export(client)["net.guard.noise"], client.split.guard.noise)
    assert [name for name in client.split.state_dict() if name.startswith("guard.")] == ["guard.noise"]


def test_it_bounds_nothing_and_ends_what_a_clip_had_bounded():
    assert Shredder.post_hoc and Chain(LightSplit(ratio=4), Shredder()).post_hoc
    loose = Shredder().bound(Bound(norm=1.0, moves=2.0))
    assert (loose.norm, loose.moves) == (None, None) and "nothing is known" in loose.why
    released = Bound(norm=1.0, moves=2.0, release=Release("gaussian", 1.0))
    assert Shredder().bound(released) == released
    assert Shredder().claim(CUT) == "none: empirical"
    with pytest.raises(ValueError, match="the zeros are gone"):
        Chain(Disco(), Shredder())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensors": 0}, "so many noise tensors"),
        ({"tensors": 2.0}, "so many noise tensors"),
        ({"weight": -1}, "Shredder's weight is the pull"),
        ({"target": float("inf")}, "Shredder's target is noise over signal"),
        ({"scale": 0}, "Shredder's scale is that of the first noise"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Shredder(**settings)
