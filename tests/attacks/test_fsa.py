"""Feature sniffing: translators go there and back, the guard sits behind the way to the client, pictures come out."""

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import FeatureSniffer, Knowledge, KnownGuard
from cutlayer.attacks.fsa import Standard, Translator, _ToClient
from cutlayer.attacks.parts.autoencoder import Autoencoder, Encoder, Inverse
from cutlayer.attacks.parts.view import View
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind, Message
from cutlayer.data import Digits
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import SEAL, KAnonymous, LightSplit, NoGuard, Noise

SMALL = FeatureSniffer(steps=6, width=4, hidden=16, warm=10, batch=8)
CUT = (4, 5, 5)


@pytest.mark.parametrize(
    "guard", [NoGuard(), LightSplit(ratio=4), SEAL(), Noise(scale=0.1), KAnonymous(k=2)], ids=repr
)
def test_it_works_in_every_form_against_every_kind_of_guard(guard):
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    run.train()
    for form in SMALL.against(guard, CUT):
        _, pictures = judge(form, Victim(run, 16), run.parts, seed=0)
        assert pictures.shape == (16, *TASK.shape) and pictures.min() >= 0 and pictures.max() <= 1


def test_float64(double):
    run = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    assert judge(SMALL, Victim(run, 16), run.parts, seed=0)[0]["n"] == 16


def test_how_right_a_translation_is_can_be_told():
    """Where the client's head is the attacker's own encoder and a translation changes nothing, there is no error."""
    run = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    run.train()
    victim = Victim(run, 16)
    row, _ = judge(SMALL, victim, run.parts, seed=0)
    assert row["feature_mse"] > 0 and -1 <= row["feature_cosine"] < 1
    known = Knowledge(
        task=TASK, aux=samples(40, 3).x, guard=KnownGuard(NoGuard(), CUT, 5, TASK), observed=victim.messages
    )
    attacker, images = SMALL.attacker(known.only(SMALL.needs), 7), samples(9, 5).x
    attacker.translate, attacker.x = torch.nn.Identity(), attacker.y
    sent = [Message(Kind.FORWARD, 0, 0, {"z": attacker.auto.encoder(images).detach()})]
    torch.testing.assert_close(attacker.read(sent), attacker.features(images))


def to_client(guard, form):
    known = Knowledge(task=TASK, aux=samples(8).x, guard=KnownGuard(guard, CUT, 5, TASK))
    view = View(form, "own", known, 7)
    theirs = torch.randn(40, *view.shape) * 3 + 1
    return _ToClient(Standard(theirs), SMALL, view, theirs), view, theirs


def test_what_a_matched_attacker_sends_went_through_the_guard():
    guard = LightSplit(ratio=4)
    there, _, theirs = to_client(guard, "matched+lift")
    y, images = torch.randn(6, *CUT), samples(6).x
    got = there(y, images, 3)
    # By hand: R Rᵀ of what F makes, in the units of what was observed.
    module = guard.build(CUT, 5, 0, TASK)
    made = float(theirs.std()) * there.translate(y)
    by_hand = guard.undo(CUT, 5)(module.projection.down(made.flatten(1)))
    mean, std = theirs.mean((0, 2, 3), keepdim=True), theirs.std((0, 2, 3), keepdim=True)
    torch.testing.assert_close(got, (by_hand - mean) / std)


def test_without_a_copy_of_the_guard_it_is_the_translator_alone():
    there, _, _ = to_client(NoGuard(), "oblivious")
    y = torch.randn(6, *CUT)
    assert torch.equal(there(y, samples(6).x, 0), there.translate(y))


def test_the_guards_copy_and_public_map_do_not_learn():
    there, _, _ = to_client(SEAL(), "matched")
    trainable = {name.split(".")[0] for name, p in there.named_parameters() if p.requires_grad}
    assert trainable == {"translate"}


def test_standard_rows_have_mean_0_and_deviation_1_and_come_back():
    for shape in ((30, 4, 5, 5), (30, 7)):
        rows = torch.randn(shape, dtype=torch.float64) * 5 + 2
        standard = Standard(rows)
        over = (0, 2, 3) if len(shape) == 4 else (0,)
        torch.testing.assert_close(standard(rows).mean(over), torch.zeros(shape[1]).double(), atol=1e-12, rtol=0)
        torch.testing.assert_close(standard(rows).std(over), torch.ones(shape[1]).double())
        torch.testing.assert_close(standard.back(standard(rows)), rows)


@pytest.mark.parametrize(
    ("source", "target"), [((4, 5, 5), (6, 5, 5)), ((4, 5, 5), (9,)), ((9,), (4, 5, 5)), ((4, 5, 5), (4, 3, 3))]
)
def test_translators_go_from_any_shape_to_any_other(source, target):
    assert Translator(source, target, 8, 16)(torch.randn(2, *source)).shape == (2, *target)


@pytest.mark.parametrize("cut", [(8, 12, 12), (16, 8, 8), (64, 16, 16), (4, 5, 5), (3, 32, 32), (7, 1, 1), (9, 7)])
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (1, 32, 28)])
def test_encoder_and_inverse_fit_any_cut(cut, image):
    rows = Encoder(image, cut, 8, positive=True)(torch.rand(2, *image))
    assert rows.shape == (2, *cut) and rows.min() >= 0
    if len(cut) == 3:
        assert Inverse(cut, image, 16)(rows).shape == (2, *image)


def test_a_border_that_was_cut_off_is_put_back_where_it_was():
    """Pixels must not move: a spot stays where it is on the way to 12 places a side of 14, and back."""
    encoder, inverse = Encoder((1, 28, 28), (8, 12, 12), 4, positive=False), Inverse((8, 12, 12), (1, 28, 28), 4)
    blank, spot = torch.zeros(1, 1, 28, 28), torch.zeros(1, 1, 28, 28)
    spot[0, 0, 8, 20] = 1.0
    change = (encoder(spot) - encoder(blank)).abs().sum((0, 1))
    rows, columns = change.nonzero().double().mean(0).tolist()
    assert abs(2 * rows + 2.5 - 8) <= 1.5 and abs(2 * columns + 2.5 - 20) <= 1.5
    place = torch.zeros(1, 8, 12, 12)
    place[0, :, 3, 9] = 1.0
    change = (inverse(place) - inverse(torch.zeros_like(place))).abs().sum((0, 1))
    rows, columns = (change > 0).nonzero().double().mean(0).tolist()
    assert abs(rows - 8.5) <= 1 and abs(columns - 20.5) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_the_autoencoder_does_not_fall_into_black(seed):
    """From half grey two of three starts ended in a black picture here, with the error of one."""
    images = torch.nn.functional.avg_pool2d(Digits(limit=300).load().train.images(), 2)
    torch.manual_seed(seed)
    auto = Autoencoder((1, 14, 14), (4, 7, 7), 16, 32, "auto", positive=True)
    auto.learn(images, 120, 3e-3, 32)
    assert auto.error < 0.5 * float((images - images.mean(0)).square().mean())
    assert not any(p.requires_grad for p in auto.parameters())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "whole numbers from 1 up"),
        ({"cycle": -1.0}, "weights from 0 up"),
        ({"inverse": "ridge"}, "inverse is one of auto, conv, mlp"),
        ({"knows": "all"}, "knows one of oblivious"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        FeatureSniffer(**changes)


def test_budgets():
    paper = FeatureSniffer.sized("paper")
    assert (paper.penalty, paper.cycle, paper.rate, paper.batch) == (50.0, 10.0, 1e-4, 256)
    assert FeatureSniffer.sized("quick").steps < FeatureSniffer().steps < FeatureSniffer.sized("standard").steps


def test_its_bar_is_for_the_setting_that_was_measured():
    assert FeatureSniffer().bar("Digits()", "MnistNet()") == ("ssim", 0.75)
    assert FeatureSniffer().bar("Digits()", "MnistNet(cut=4)") is None
