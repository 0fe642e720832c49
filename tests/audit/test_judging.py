"""What the judge holds: who is told what, which attacks count, and what a picture scores without any message."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys import TASK, batches, samples, tiny_parts, tiny_plan

from cutlayer.attacks import FORA, Attacker, Decoder
from cutlayer.audit import floors
from cutlayer.audit import judge as judging
from cutlayer.audit import matrix as auditing
from cutlayer.audit import victim as room
from cutlayer.audit.control import CONSTANT, CONTROL_MARGIN, why_control_failed, why_invalid
from cutlayer.audit.facts import commonest, epsilon_asked, refuse_alike
from cutlayer.audit.floors import blind_guess
from cutlayer.audit.knowledge import after_training, before_training
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.uncertainty import intervals
from cutlayer.audit.victim import Observed, Victim
from cutlayer.core.message import Kind, Message
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import C3, SEAL, Chain, Clip, Gaussian, KAnonymous, LightSplit, Quantize, Subset
from cutlayer.guards.parts.projection import Dense
from cutlayer.metrics.images import scores
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.rehearsal import Party, assets

# Guards that both sides draw from the public seed.
PUBLIC = [
    LightSplit(ratio=4),
    LightSplit(ratio=4, projection=Dense()),
    Subset(ratio=4),
    Chain(LightSplit(ratio=4), Quantize(bits=8)),
]
public_guards = pytest.mark.parametrize("guard", PUBLIC, ids=repr)
seeds = pytest.mark.parametrize("seed", [0, 7])


def untrained(**changes):
    return LocalRun(tiny_plan(batch_size=8, **changes), tiny_parts(), classes=TASK.classes)


def activations(run, count=4):
    return torch.rand(count, *cut_shapes(run.plan, run.task).shared)


def sent(guard, z):
    return guard.eval()(z, batches(1, len(z))[0]).seen


# ------------------------------------------------------------------------- what an attacker is told
@public_guards
@seeds
def test_an_attackers_copy_of_a_public_guard_sends_what_the_client_sends(guard, seed):
    """With another public seed every attack that knows the guard would fail, and the guard look strong."""
    run = untrained(guard=guard, seed=seed)
    copied = before_training(run.plan, run.task, run.parts, "cpu").guard.copy(own=1)
    z = activations(run)
    assert torch.equal(sent(copied, z), sent(run.networks[0].split.guard, z))


@public_guards
@seeds
def test_an_attacker_undoes_a_public_guard_as_the_server_does(guard, seed):
    run = untrained(guard=guard, seed=seed)
    knowledge = before_training(run.plan, run.task, run.parts, "cpu")
    seen = sent(run.networks[0].split.guard, activations(run))
    lifted = run.server.body.lift(seen)
    assert torch.equal(knowledge.undo(seen), lifted)
    assert torch.equal(knowledge.guard.undo()(seen), lifted)


@seeds
def test_a_client_that_measures_its_own_leak_undoes_its_guard_as_the_server_does(seed):
    """With another public map its readers would find nothing, and tell it that nothing leaks."""
    run = untrained(guard=LightSplit(ratio=4), seed=seed)
    seen = sent(run.networks[0].split.guard, activations(run))
    assert torch.equal(
        assets(Party(run.plan, run.task, 0, run.device), run.clients[0].own).undo(seen), run.server.body.lift(seen)
    )


@pytest.mark.parametrize("client", [0, 1])
def test_a_ceiling_is_told_the_key_of_the_client_it_attacks(client):
    """Another key would make the limit of what can be found out as low as guessing."""
    run = untrained(guard=SEAL(), clients=2, shared_client_network=False)
    ceiling = after_training(Victim(run, images=8, client=client), run.parts).guard
    z = activations(run)
    right, wrong = (run.networks[one].split.guard for one in (client, 1 - client))
    assert torch.equal(sent(ceiling.copy(ceiling.true_key), z), sent(right, z))
    assert not torch.equal(sent(ceiling.copy(ceiling.true_key), z), sent(wrong, z))


def test_before_the_training_the_key_is_that_of_the_client_who_will_be_the_victim():
    run = untrained(guard=SEAL(), clients=2)
    z = activations(run)
    for client in (0, 1):
        known = before_training(run.plan, run.task, run.parts, "cpu", client).guard
        assert torch.equal(sent(known.copy(known.true_key), z), sent(run.networks[client].split.guard, z))
    nobody = before_training(replace(run.plan, private_seed=None), run.task, run.parts, "cpu")
    assert nobody.guard.true_key is None


# ----------------------------------------------------------------------------- which attacks count
class Barred(Decoder):
    """An attack with a bar of its own on some data."""

    def bar(self, data, net):
        return ("ssim", 0.6) if data == repr("known") else None


def on_the_open_cut(**figures):
    row = {"secret": "images", "ncc": 0.9, "ssim": 0.9, "ssim_inverted": 0.0, "recon_std": 0.1}
    return {**row, **figures}


def failed(row, attack=None, data="unknown", class_mean=None):
    class_mean = class_mean or {"ncc": 0.5, "ssim": 0.3}
    return why_control_failed(attack or Decoder(), row, class_mean, SimpleNamespace(data=data, net="any"))


def test_one_picture_for_every_image_is_a_failed_attack_whatever_it_scores():
    torch.manual_seed(0)
    one = torch.rand(1, 1, 12, 12)
    same = scores(one.repeat(5, 1, 1, 1), one.repeat(5, 1, 1, 1))  # all the truth happens to be that picture
    row = {"secret": "images", **same}
    assert row["ssim"] == pytest.approx(1) and row["recon_std"] == 0
    assert "the same picture for every image" in why_invalid(row, None)
    assert "the same picture for every image" in failed(row)


def test_pictures_that_differ_no_more_than_rounding_are_one_picture():
    below, above = ({"secret": "images", "recon_std": CONSTANT * factor} for factor in (0.9, 1.1))
    assert why_invalid(below, None) is not None and failed(on_the_open_cut(**below)) is not None
    assert why_invalid(above, None) is None and failed(on_the_open_cut(**above)) is None


def test_pictures_whose_difference_hardly_shows_are_still_pictures():
    """A bar far above rounding would call weak reconstructions constant, and guards would never be beaten by them."""
    assert CONSTANT <= 1e-3


def test_who_makes_no_pictures_cannot_be_faulted_for_equal_ones():
    assert why_invalid({"secret": "labels", "recon_std": None}, None) is None


def test_a_failed_control_is_the_reason_however_good_the_pictures_are():
    assert why_invalid(on_the_open_cut(), "it was weak") == "the attack failed its control: it was weak"


def test_a_control_must_beat_the_class_mean_image_by_a_margin():
    """An attack that equals the mean image of a class has read the label and nothing else."""
    assert CONTROL_MARGIN > 0.05
    assert "below its bar of 0.600" in failed(on_the_open_cut(ncc=0.45))
    assert "below its bar of 0.600" in failed(on_the_open_cut(ncc=0.5))
    assert "below its bar of 0.600" in failed(on_the_open_cut(ncc=0.599))
    assert failed(on_the_open_cut(ncc=0.601)) is None


def test_a_control_goes_by_ncc_and_not_by_ssim():
    """SSIM rewards flat pictures of the right brightness; correlation does not."""
    assert "ncc 0.550" in failed(on_the_open_cut(ncc=0.55, ssim=0.99))
    assert failed(on_the_open_cut(ncc=0.65, ssim=0.01)) is None
    # The class mean's NCC, and not its SSIM, is what has to be beaten.
    assert failed(on_the_open_cut(ncc=0.65), class_mean={"ncc": 0.5, "ssim": 0.9}) is None
    assert failed(on_the_open_cut(ncc=0.65), class_mean={"ncc": 0.6, "ssim": 0.1}) is not None


def test_an_attacks_own_bar_goes_before_the_class_mean():
    known_setting = {"attack": Barred(), "data": "known"}
    assert "ssim 0.590, below its bar of 0.600" in failed(on_the_open_cut(ssim=0.59, ncc=0.99), **known_setting)
    assert failed(on_the_open_cut(ssim=0.61, ncc=0.0), **known_setting) is None
    assert failed(on_the_open_cut(ssim=0.61, ncc=0.0), attack=Barred()) is not None


# ---------------------------------------------------------------------- what no message would give
@pytest.mark.parametrize("best", ["blank", "mean", "class_mean"])
def test_the_floor_is_the_best_guess_without_a_message(best):
    """Against a worse guess, what a label gives away would count as a leak of the cut."""
    floors = {name: {"ssim": 0.2} for name in ("blank", "mean", "class_mean")} | {"unaligned": {"ssim": 0.9}}
    floors[best] = {"ssim": 0.4}
    assert blind_guess(floors) == 0.4


# ------------------------------------------------------------------------------- other secrets
def uploaded(count):
    return [Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(count, 1)})]


class Scored(Attacker):
    """Finds the rows' numbers in what was uploaded."""

    def infer(self, messages):
        return torch.cat([message["z"] for message in messages]).flatten()


def test_an_attack_on_another_secret_must_beat_chance_by_a_margin():
    labels = SimpleNamespace(secret="labels")
    row = {"secret": "labels", "metric": "accuracy", "chance": 0.5}
    for value, passes in ((0.47, False), (0.5, False), (0.549, False), (0.551, True)):
        assert (why_control_failed(labels, {**row, "value": value}, {}, None) is None) == passes


def test_chance_is_always_naming_the_commonest_value():
    """Were it one over the number of classes, whoever names the commonest would seem to read labels."""
    truth = torch.tensor([0, 0, 0, 1])
    victim = SimpleNamespace(y=truth, messages=uploaded(4), rows=[None], units=None)
    attack = SimpleNamespace(secret="labels", clusters=False)
    figures, pictures = judging._values(attack, Scored(), victim, None)
    assert (figures["chance"], figures["value"], figures["metric"]) == (0.75, 0.75, "accuracy") and pictures is None


def side(*found):
    return Observed([Message(Kind.FORWARD, 0, 0, {"z": torch.tensor(found)[:, None]})], [None])


@pytest.mark.parametrize(
    ("members", "strangers", "area"),
    [((2.0, 3.0), (0.0, 1.0), 1.0), ((0.0, 1.0), (2.0, 3.0), 0.0), ((1.0, 1.0), (1.0, 1.0), 0.5),
     ((1.0, 2.0), (1.0, 0.0), 0.875)],
)  # fmt: skip
def test_membership_is_the_area_under_the_curve_and_equal_scores_count_half(members, strangers, area):
    own = side(*members)
    victim = SimpleNamespace(messages=own.messages, rows=own.rows, units=None, strangers=lambda: side(*strangers))
    figures, _ = judging._membership(None, Scored(), victim, None)
    assert figures["value"] == area and figures["chance"] == 0.5
    low, high = intervals({**figures, "seed": 0, "guard": "g", "attack": "A"})["value"]
    assert low <= area <= high


# --------------------------------------------------------------------- what is scored, and against what
def test_images_that_are_given_away_are_none_of_those_that_are_scored():
    victim = Victim(untrained(), images=40)
    given, labels = victim.given_away(share=0.9)
    assert len(given) == len(labels) == 8, "as many as are not scored"
    assert not any(torch.equal(one, scored) for one in given for scored in victim.truth)


def test_a_victim_is_heard_as_it_sends_while_it_trains_and_learns_nothing_by_it():
    """In evaluation mode BatchNorm would send other numbers than any server ever sees."""
    run = untrained()
    head = run.networks[0].split.head
    before = copy.deepcopy(head.state_dict())
    victim = Victim(run, images=8)
    assert torch.equal(victim.seen, copy.deepcopy(head).train()(victim.truth))
    assert not torch.allclose(victim.seen, copy.deepcopy(head).eval()(victim.truth), atol=0.01)
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())


def test_strangers_were_not_trained_on(monkeypatch):
    heard = []
    run = untrained()
    victim = Victim(run, images=8)
    monkeypatch.setattr(room, "replay", lambda *args: heard.append(args))
    victim.strangers()
    ((_, client, pick, _, pool, _),) = heard
    assert client == 0 and len(pick) == len(victim.truth) and pool is run.parts.test


def test_the_class_mean_image_is_the_mean_of_auxiliary_images_of_that_class():
    aux = torch.tensor([0.0, 0.2, 0.6, 0.8]).reshape(4, 1, 1, 1)
    victim = SimpleNamespace(y=torch.tensor([1, 0, 2]), run=SimpleNamespace(task=TASK))
    means = floors._class_means(aux, torch.tensor([0, 0, 1, 1]), victim)
    # Of class 2 there is no image: then it is the mean of all.
    assert means.flatten().tolist() == pytest.approx([0.7, 0.1, 0.4])


def test_the_unaligned_decoder_learns_from_a_head_that_is_not_the_victims(monkeypatch):
    given = []

    class Listening(Decoder):
        def attacker(self, knowledge, seed):
            given.append(knowledge)
            return SimpleNamespace(reconstruct=lambda messages: None)

    run = untrained(guard=LightSplit(ratio=4))
    victim = Victim(run, images=8)
    monkeypatch.setattr(floors, "Decoder", Listening)
    floors._unaligned(victim, run.parts, seed=0)
    (knowledge,) = given
    images = run.parts.aux.images()[:8]
    theirs, own = (encode(images, run.parts.aux.y[:8]) for encode in (knowledge.encode, victim.box))
    assert knowledge.undo is None and theirs.shape == own.shape and not torch.allclose(theirs, own, atol=0.1)


def test_in_an_audit_the_control_is_held_against_the_class_mean(monkeypatch):
    row = {**on_the_open_cut(ncc=0.45), "tries": 1}
    monkeypatch.setattr(auditing, "judge", lambda *args: (row, None))
    plan = SimpleNamespace(guard=Quantize(bits=4), data="unknown", net="any", seed=0)
    scene = SimpleNamespace(victim=None, shared=SimpleNamespace(data=None), facts={}, plan=plan)
    marks = {"blank": {"ncc": 0.0}, "mean": {"ncc": 0.2}, "class_mean": {"ncc": 0.4}}
    made, _ = auditing._cell(scene, Decoder(), marks, None, None, 1)
    assert not made["valid"] and "below its bar of 0.500" in made["why_control_failed"]
    del marks["class_mean"]  # where images have no class
    assert auditing._cell(scene, Decoder(), marks, None, None, 1)[0]["valid"]


def test_floors_of_several_seeds_are_averaged():
    per_seed = [{"mean": {"ssim": 0.1, "lpips": None}}, {"mean": {"ssim": 0.3, "lpips": None}}]
    assert auditing._average(per_seed) == {"mean": {"ssim": pytest.approx(0.2), "lpips": None}}


# ------------------------------------------------------------------------- what an image gave away
def reading(pictures, truth, units=None, gallery=None):
    """What the judge writes of an attacker that answers with these pictures."""
    forward = [Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(len(truth), 1)})]
    victim = SimpleNamespace(
        truth=truth, messages=forward, rows=[None], units=units, y=samples(len(truth)).y,
        gallery=truth if gallery is None else gallery,
        run=SimpleNamespace(parts=SimpleNamespace(test=samples(200, 5))),
    )  # fmt: skip
    attacker = Attacker()
    attacker.reconstruct = lambda messages: pictures
    return judging._images(Decoder(), attacker, victim, None)[0]


def private_images(count=40):
    return samples(count).images()


def test_a_negative_gives_away_what_the_picture_would():
    truth = private_images()
    exact, negative = reading(truth, truth), reading(1 - truth, truth)
    assert negative["ssim"] < 0.5 and negative["value"] == pytest.approx(1) == exact["value"]
    assert negative["ssim_p90"] == pytest.approx(1) and negative["above_half"] == 1
    # Image by image: half of them negatives is no less.
    half = torch.cat([truth[:20], 1 - truth[20:]])
    assert reading(half, truth)["value"] == pytest.approx(1)


def test_the_judge_keeps_what_each_image_gave_away():
    truth = private_images()
    guess = torch.full_like(truth, 0.5)
    guess[[7, 21, 33, 39]] = truth[[7, 21, 33, 39]]
    row = reading(guess, truth, [n // 2 for n in range(40)])
    assert row["ssim_p90"] == pytest.approx(1) and row["above_half"] == pytest.approx(0.1)
    assert sorted(number for number, _ in row["worst"][:4]) == [7, 21, 33, 39] and len(row["worst"]) == 10
    assert row["sampled"]["units"][:4] == [0, 0, 1, 1] and len(row["sampled"]["scores"]) == 40
    assert sum(row["sampled"]["scores"]) / 40 == pytest.approx(row["value"], abs=1e-5)


def test_a_bad_picture_may_still_tell_which_image_it_is_of():
    truth = private_images()
    pale = 0.5 - 0.05 * (truth - truth.mean((2, 3), keepdim=True))  # and a negative
    row = reading(pale, truth)
    assert row["value"] < 0.3 and row["identified"] == 1 and row["class_named"] == row["class_originals"]
    assert row["class_originals"] > row["class_chance"] + 0.2, "the eye has learnt what a class looks like"
    grey = reading(torch.full_like(truth, 0.5), truth)
    assert grey["identified"] == pytest.approx(1 / 40) == grey["identified_chance"]
    # Each in the place of another: found, and nobody's own.
    assert reading(truth.roll(1, 0), truth)["identified"] == 0


def test_whoever_is_judged_on_few_images_has_to_find_them_among_as_many():
    truth = private_images()
    noisy = truth + 0.6 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    few = reading(noisy[:8], truth[:8], gallery=truth)
    assert few["identified_chance"] == 1 / 40
    assert few["identified_each"]["scores"] == reading(noisy, truth)["identified_each"]["scores"][:8]
    victim = Victim(untrained(), images=20)
    assert len(victim.fewer(5).truth) == 5 and torch.equal(victim.fewer(5).gallery, victim.truth)


def test_pictures_with_nan_are_counted_and_end_no_audit():
    truth = private_images()
    guess = truth.clone()
    guess[3, 0, 0, 0], guess[5, 0, 2, 2] = torch.nan, torch.inf
    row = reading(guess, truth)
    assert row["broken"] == 2 and row["value"] < 1
    control = why_control_failed(Decoder(), {**on_the_open_cut(), "broken": 2, "n": 40}, {"ncc": 0.0}, None)
    assert "NaN or infinity for 2 of 40" in control


def test_scores_of_membership_that_are_nan_are_counted():
    own = side(1.0, float("nan"))
    victim = SimpleNamespace(messages=own.messages, rows=own.rows, units=None, strangers=lambda: side(0.0, 0.5))
    assert judging._membership(None, Scored(), victim, None)[0]["broken"] == 1


def test_one_picture_alone_is_a_failed_attack():
    """It has no spread, and NaN is not less than anything."""
    row = on_the_open_cut(recon_std=float("nan"))
    assert "the same picture" in why_invalid(row, None) and "the same picture" in failed(row)


@pytest.mark.parametrize(
    ("guard", "units"),
    [(KAnonymous(k=4, grouping="random"), 4), (C3(ratio=2), 8), (Chain(LightSplit(ratio=4), C3(ratio=2)), 8)],
    ids=repr,
)
def test_images_that_leave_in_one_row_are_one_unit(guard, units):
    victim = Victim(untrained(guard=guard), images=16)
    assert len(victim.units) == 16 and len(set(victim.units)) == units
    assert victim.fewer(5).units == victim.units[:5]
    assert Victim(untrained(guard=LightSplit(ratio=4)), images=16).units is None


# ------------------------------------------------------------------------------- what is refused
def test_images_that_are_all_alike_are_refused():
    parts = tiny_parts()
    alike = replace(parts.private, x=parts.private.x[:1].expand_as(parts.private.x) + 1e-5)
    with pytest.raises(ValueError, match="all alike"):
        refuse_alike(replace(parts, private=alike))
    refuse_alike(parts)


def test_without_auxiliary_images_there_is_nothing_to_compare_with():
    parts = tiny_parts()
    none = replace(parts, aux=parts.aux[torch.arange(0)])
    with pytest.raises(ValueError, match="no auxiliary images"):
        floors.floors(SimpleNamespace(truth=private_images()), none, 0)


def test_an_audit_of_one_image_is_refused():
    loaded = Loaded(samples(60, 1), samples(30, 2), ("a", "b", "c"))
    with pytest.raises(ValueError, match="several images"):
        auditing.audit(AuditSpec(tiny_plan(epochs=1), images=1), loaded)


def test_what_guessing_and_the_guard_say_is_written_down():
    assert commonest(torch.tensor([0, 0, 0, 1])) == 0.75
    assert epsilon_asked(Chain(Clip(norm=1.0), Gaussian(epsilon=8.0))) == 8.0 and epsilon_asked(SEAL()) is None


def test_attacks_know_whether_they_are_strong():
    assert Decoder().white_box and Decoder(keys="recovered").white_box and not Decoder(keys="own").white_box
    assert not FORA().white_box and Decoder().below_default() == [] == Decoder(steps=4000).below_default()
    assert Decoder(steps=5, readers=("ridge",)).below_default() == ["steps 5 of 400", "readers 1 of 4"]
