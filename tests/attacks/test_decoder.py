"""The white-box decoder: it reads what is there, cannot read what is not, and is chosen on its own data."""

import pytest
import torch
from torch import nn
from toys import samples

from cutlayer.attacks import Decoder, Knowledge
from cutlayer.attacks.readers import ConvReader, MLPReader, ridge
from cutlayer.message import Kind, Message
from cutlayer.metrics import ncc

torch.manual_seed(3)
MIX = torch.linalg.qr(torch.randn(144, 144)).Q


def encoders():
    convolution = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).requires_grad_(False)
    return {
        "a convolution": lambda x, y: convolution(x),
        "a projection": lambda x, y: x.flatten(1) @ MIX[:, :72],
    }


def attack(encode, spec, aux=200):
    public, private = samples(aux, 1), samples(40, 2)
    known = Knowledge(aux=public.x, aux_labels=public.y, encode=encode)
    attacker = spec.attacker(known.only(spec.needs), seed=0)
    seen = encode(private.x, private.y)
    guess = attacker.reconstruct(
        [Message(Kind.FORWARD, 0, 0, {"z": seen[:20]}), Message(Kind.FORWARD, 0, 1, {"z": seen[20:]})]
    )
    mean = public.x.mean(0).expand_as(private.x)
    return ncc(private.x, guess).mean().item(), ncc(private.x, mean).mean().item(), attacker


@pytest.mark.parametrize("name", encoders())
@pytest.mark.parametrize("reader", ["ridge", "conv", "mlp"])
def test_every_reader_beats_the_mean_image_where_it_applies(name, reader):
    spec = Decoder(readers=(reader,), steps=150, width=16, hidden=128)
    if reader == "conv" and name == "a projection":
        with pytest.raises(ValueError, match="no reader"):
            attack(encoders()[name], spec)
        return
    got, floor, _ = attack(encoders()[name], spec)
    assert got > floor + 0.1


def test_the_best_reader_is_chosen_on_auxiliary_data():
    _, _, attacker = attack(encoders()["a projection"], Decoder(steps=20, hidden=64))
    scores = attacker.remarks()["readers"]
    assert set(scores) == {"ridge", "mlp"} and attacker.remarks()["reader"] == max(scores, key=scores.get)


def test_what_is_not_in_the_message_cannot_be_read():
    got, floor, _ = attack(lambda x, y: torch.randn(len(x), 72), Decoder(steps=100, hidden=64))
    assert got < floor + 0.05


def test_ridge_in_both_forms_is_the_same_map():
    draw = torch.Generator().manual_seed(0)
    seen, images = torch.randn(60, 40, generator=draw), torch.rand(60, 1, 4, 4, generator=draw)
    held = torch.randn(9, 40, generator=draw), torch.rand(9, 1, 4, 4, generator=draw)
    primal = ridge(seen, images, *held)(held[0])
    wide = torch.cat([seen, torch.zeros(60, 40)], 1)  # more columns than rows: the dual system
    dual = ridge(wide, images, torch.cat([held[0], torch.zeros(9, 40)], 1), held[1])(
        torch.cat([held[0], torch.zeros(9, 40)], 1)
    )
    torch.testing.assert_close(primal, dual, atol=1e-4, rtol=0)


@pytest.mark.parametrize("cut", [(6, 12, 12), (64, 8, 8), (5, 4, 4), (3, 32, 32), (2, 9, 9), (7, 1, 1)])
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32)])
def test_readers_give_images_from_any_cut(cut, image):
    assert ConvReader(cut, image, 16)(torch.randn(2, *cut)).shape == (2, *image)
    assert MLPReader(cut, image, 16)(torch.randn(2, *cut)).shape == (2, *image)


def test_missing_knowledge_is_named():
    with pytest.raises(ValueError, match=r"needs auxiliary images.*and the client's head and guard"):
        Knowledge(aux_labels=torch.zeros(1)).only(Decoder.needs)


def test_an_attack_is_handed_only_what_it_names():
    told = Knowledge(aux=torch.zeros(1), aux_labels=torch.zeros(1)).only(["aux"])
    assert told.aux is not None and told.aux_labels is None


def test_unknown_readers_are_refused():
    with pytest.raises(ValueError, match="readers are among ridge, conv, mlp"):
        Decoder(readers=("tea",))
