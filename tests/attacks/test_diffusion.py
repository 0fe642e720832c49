"""The search with a diffusion prior: it finds what explains a message, and its prior knows what images look like."""

import pytest
import torch
from torch.nn.functional import avg_pool2d
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import DiffusionPrior, Retrieval, diffusion, suite
from cutlayer.attacks.diffusion import Encoded, StandIn, has_gradient
from cutlayer.attacks.parts import kept as keeping
from cutlayer.attacks.parts.denoiser import Denoiser, learn_to_denoise
from cutlayer.audit.judge import judge
from cutlayer.audit.knowledge import after_training
from cutlayer.audit.victim import Victim, WhiteBox
from cutlayer.core.batch import Batch
from cutlayer.core.seeds import seeded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import KAnonymous, LightSplit, NoGuard, Noise, Quantize
from cutlayer.metrics.images import ncc

SMALL = {"prior_steps": 60, "width": 8, "batch": 16, "most_images": 16}


def trained(guard=None):
    run = LocalRun(tiny_plan(guard=guard or NoGuard(), epochs=1, batch_size=16), tiny_parts(), classes=TASK.classes)
    run.train()
    return run


@pytest.fixture(scope="module")
def open_cut():
    return trained()


@pytest.fixture
def nothing_kept(monkeypatch):
    monkeypatch.setattr(keeping, "_KEPT", {})
    monkeypatch.delenv("CUTLAYER_CACHE", raising=False)


# ------------------------------------------------------------------------------------------ the prior
def test_a_denoiser_takes_noise_out_of_images_it_has_never_seen():
    images, others = samples(120, 1).images(), 2 * samples(40, 2).images() - 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        denoiser = learn_to_denoise(images, 8, 100, 16)
        noisy, level = others + 0.5 * torch.randn(others.shape), torch.full((40,), 0.5)
    with torch.no_grad():
        # As far as pixels by themselves tell, this much is known without a network.
        shrunk = others.mean() + (noisy - others.mean()) * others.var() / (others.var() + 0.25)
        left = [float((guess - others).square().mean()) for guess in (denoiser(noisy, level), shrunk)]
    assert left[0] < 0.9 * left[1]


@pytest.mark.parametrize("image", [(1, 12, 12), (3, 13, 15), (1, 28, 28)])
def test_images_of_any_size_keep_it(image):
    noisy = torch.rand(2, *image)
    assert Denoiser(image, 8)(noisy, torch.tensor([0.1, 3.0])).shape == noisy.shape


def test_next_to_no_noise_leaves_an_image_as_it_is():
    noisy = torch.rand(2, 1, 12, 12)
    assert torch.allclose(Denoiser((1, 12, 12), 8)(noisy, torch.full((2,), 1e-4)), noisy, atol=1e-3)


# -------------------------------------------------------------------------------------- trained once
def network(images, steps=3):
    """A network and how often it was trained for that."""
    times = []

    def train():
        times.append(1)
        return learn_to_denoise(images, 8, steps, 4)

    return keeping.kept(images, f"steps {steps}", train, lambda: Denoiser((1, 12, 12), 8)), len(times)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_network_is_trained_once_for_the_same_images_and_settings(nothing_kept):
    images = samples(20, 1).images()
    state = torch.get_rng_state()
    (first, once), (again, never) = network(images), network(images.clone())
    assert (once, never) == (1, 0) and same(first, again)
    assert torch.equal(state, torch.get_rng_state()), "nobody's random numbers hang on whether it was there"
    assert network(images, steps=4)[1] == 1
    other = images.clone()
    other[3, 0, 5, 5] += 0.01
    assert network(other)[1] == 1


def test_a_folder_keeps_it_for_other_processes(nothing_kept, tmp_path, monkeypatch):
    images = samples(20, 1).images()
    first, _ = network(images)
    monkeypatch.setattr(keeping, "_KEPT", {})
    monkeypatch.setenv("CUTLAYER_CACHE", str(tmp_path / "cache"))
    assert network(images)[1] == 1
    monkeypatch.setattr(keeping, "_KEPT", {})
    found, times = network(images)
    assert times == 0 and same(first, found), "and whether it is kept changes nothing"
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    monkeypatch.setattr(keeping, "_KEPT", {})
    mended, times = network(images)
    assert times == 1 and same(first, mended), "half a file is none"


def test_writers_do_not_meet_and_nothing_has_the_name_before_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLAYER_CACHE", str(tmp_path))
    renamed = []
    monkeypatch.setattr(keeping.os, "replace", lambda beside, path: renamed.append(beside))
    for process in (7, 8):
        monkeypatch.setattr(keeping.os, "getpid", lambda process=process: process)
        keeping._write("name", {"weight": torch.rand(3)})
    assert keeping._read("name") is None and len(set(renamed)) == 2


# --------------------------------------------------------------------------------------- the search
def rows(run, *changes):
    """What the judge writes of searches that differ in this."""
    return [
        judge(DiffusionPrior(**{**SMALL, "weights": (0.01,), **one}), Victim(run, 16), run.parts, 0)[0]
        for one in changes
    ]


def test_it_explains_the_message_better_than_the_image_it_started_from(open_cut):
    begun, found = rows(open_cut, {"steps": 1}, {"steps": 60})
    assert found["match"] < 0.5 * begun["match"] and found["ncc"] > begun["ncc"] + 0.02
    assert found["reader"] == "search by the guard's own gradient"


def test_a_prior_that_is_all_that_counts_leaves_the_message_unexplained(open_cut):
    """Then the weight does pull, and to where images are."""
    weak, strong = rows(open_cut, {"steps": 30}, {"steps": 30, "weights": (1000.0,)})
    assert strong["match"] > 2 * weak["match"]


def test_the_weight_is_chosen_on_auxiliary_images(open_cut):
    (row,) = rows(open_cut, {"steps": 15, "weights": (0.01, 1000.0)})
    tried = row["readers"]
    assert set(tried) == {"no search", "weight 0.01", "weight 1000"} and max(tried, key=tried.get) == "weight 0.01"


@pytest.mark.parametrize("guard", [NoGuard(), LightSplit(ratio=4), Noise(scale=0.1), Quantize(bits=4)], ids=repr)
def test_guards_that_clients_train_through_have_a_gradient(guard):
    run = LocalRun(tiny_plan(guard=guard, batch_size=16), tiny_parts(), classes=TASK.classes)
    assert has_gradient(Encoded(Victim(run, 4).box, ()), samples(4, 3).images())


@pytest.mark.parametrize(
    "send",
    [
        lambda x, draw: (4 * x).round(),
        lambda x, draw: (4 * x.detach()).round(),
        lambda x, draw: (x - x.detach()).sqrt(),  # infinite
    ],
)
def test_rounding_has_none(send):
    assert not has_gradient(send, samples(4, 3).images())


def searched_through(run):
    spec, victim = DiffusionPrior(**{**SMALL, "steps": 1, "weights": (0.1,)}), Victim(run, 16)
    with seeded(0):
        return spec.attacker(after_training(victim, run.parts).only(spec.needs), 0).gradient


def test_what_has_no_gradient_is_searched_through_a_stand_in(open_cut, monkeypatch):
    plain = WhiteBox.send
    assert searched_through(open_cut) == "the guard's own gradient"
    monkeypatch.setattr(WhiteBox, "send", lambda box, batch: (2 * plain(box, batch)).round() / 2)
    assert searched_through(open_cut) == "a stand-in's gradient"


def test_a_guard_that_mixes_samples_is_searched_through_a_stand_in():
    """Rows of a group stand for all of it: whoever puts guesses into groups of his own compares other groups."""
    assert searched_through(trained(KAnonymous(k=2))) == "a stand-in's gradient"


def test_a_search_that_leads_away_is_not_made(open_cut, monkeypatch):
    """Through a stand-in that learnt nothing."""
    monkeypatch.setattr(diffusion, "has_gradient", lambda send, images: False)
    (row,) = rows(open_cut, {"steps": 20, "prior_steps": 1})
    (start,) = [judge(Retrieval(), Victim(open_cut, 16), open_cut.parts, 0)[0]]
    assert row["reader"] == "no search" and row["ncc"] > start["ncc"] - 0.1


def test_a_stand_in_sends_what_the_client_would():
    aux, other = samples(200, 1).images(), samples(40, 2).images()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = StandIn(aux, avg_pool2d(aux, 2) - 5, DiffusionPrior(**{**SMALL, "prior_steps": 150}))
    with torch.no_grad():
        assert ncc(own(other, 0), avg_pool2d(other, 2) - 5).mean() > 0.8


# ------------------------------------------------------------------------------------- the white box
def test_each_draw_of_a_guard_has_its_own_noise_and_the_first_is_as_ever():
    box = Victim(trained(Noise(scale=0.5)), 4).box
    images, y = samples(40, 3).images(), samples(40, 3).y
    first, again, other = box(images, y), box(images, y, 0), box(images, y, 1)
    assert torch.equal(first, again) and not torch.allclose(first, other, atol=0.1)
    assert torch.equal(box(images, y, 1), other)
    chunks = torch.arange(40).tensor_split(2)
    twin = torch.cat([box.send(Batch(images[i], y[i], seed=n)) for n, i in enumerate(chunks)])
    assert torch.equal(first, twin)


def test_only_images_that_want_a_gradient_keep_one(open_cut):
    box, images = Victim(open_cut, 4).box, samples(8, 3).images()
    y = torch.zeros(8, dtype=torch.long)
    assert not box(images, y).requires_grad and box(images.requires_grad_(), y).requires_grad
    with torch.no_grad():
        assert not box(images, y).requires_grad


# ----------------------------------------------------------------------------------------- its spec
def test_budgets_and_refusals():
    assert not any(isinstance(attack, DiffusionPrior) for attack in suite("quick", TASK, True))
    assert DiffusionPrior() in suite("standard", TASK, True)
    assert DiffusionPrior.sized("quick").below_default()[:2] == ["steps 60 of 120", "prior_steps 300 of 1500"]
    assert DiffusionPrior().white_box and "guard" in DiffusionPrior().needs
    for wrong in ({"steps": 0}, {"width": 12}, {"weights": ()}, {"weights": (-1.0,)}):
        with pytest.raises(ValueError, match="DiffusionPrior"):
            DiffusionPrior(**wrong)
