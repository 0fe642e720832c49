"""The white-box decoder: it reads what is there, cannot read what is not, and is chosen on its own data."""

import pytest
import torch
from torch import nn
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder, Knowledge, KnownGuard
from cutlayer.attacks.decoder import LEAST_FRESH, ROUNDS
from cutlayer.attacks.parts.keyed import made
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import SEAL, Chain, LightSplit
from cutlayer.metrics.images import ncc
from cutlayer.metrics.readers import ConvReader, MLPReader, ridge

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
    assert set(scores) == {"ridge", "mlp", "augmented"} and attacker.remarks()["reader"] == max(
        scores, key=scores.get
    )


def test_a_reader_goes_on_from_the_better_network_with_images_of_its_own_making():
    sizes, convolution = [], encoders()["a convolution"]

    def encode(x, y):
        sizes.append(len(x))
        return convolution(x, y)

    spec = Decoder(readers=("augmented", "ridge", "conv"), steps=32, width=8)
    _, _, attacker = attack(encode, spec)
    assert list(attacker.remarks()["readers"]) == ["ridge", "conv", "augmented"], "it comes last, whatever was typed"
    # The auxiliary set once; in every round some of it, as it is and augmented; in the end 40 private images.
    assert sizes == [200, *[LEAST_FRESH] * ROUNDS, 40]
    assert attacker.remarks()["readers"]["augmented"] > attacker.remarks()["readers"]["conv"]
    with pytest.raises(ValueError, match="name 'conv' or 'mlp' as well"):
        Decoder(readers=("ridge", "augmented"))


def test_every_budget_has_it_and_who_leaves_it_out_works_below_the_default():
    assert all("augmented" in Decoder.sized(budget).readers for budget in ("quick", "standard", "paper"))
    assert (
        Decoder(readers=("ridge", "conv", "mlp")).below_default() == ["readers 3 of 4"]
        and not Decoder().below_default()
    )


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
        Knowledge(aux_labels=torch.zeros(1)).only(Decoder().needs)


def test_an_attack_is_handed_only_what_it_names():
    told = Knowledge(aux=torch.zeros(1), aux_labels=torch.zeros(1)).only(["aux"])
    assert told.aux is not None and told.aux_labels is None


def test_unknown_readers_are_refused():
    with pytest.raises(ValueError, match="readers are among ridge, conv, mlp"):
        Decoder(readers=("tea",))


def against_seal(guard, **changes):
    run = LocalRun(tiny_plan(guard=guard, epochs=2, batch_size=8), tiny_parts(96), classes=TASK.classes)
    run.train()
    victim = Victim(run, 64)
    forms = Decoder(steps=200, width=16, hidden=128, **changes).against(guard, (4, 5, 5))
    return {form.keys: judge(form, victim, run.parts, seed=0)[0] for form in forms}


@pytest.mark.parametrize("gram", ["row", "column"])
def test_a_secret_key_hides_from_who_guesses_it_but_not_from_who_reads_it_off(gram):
    rows = against_seal(SEAL(energy=0.5, gram=gram), readers=("ridge",))
    assert list(rows) == ["own", "mixture", "recovered", "true"]
    assert rows["own"]["ncc"] < rows["true"]["ncc"] - 0.01
    assert rows["recovered"]["ncc"] == pytest.approx(rows["true"]["ncc"], abs=0.01)
    assert rows["recovered"]["key_empty"] > 0.2
    assert [row["ceiling"] for row in rows.values()] == [False, False, False, True]
    for key, row in rows.items():
        knows = " ".join(row["knows"])
        assert ("without the guard and its key" in knows) is (key != "true") is not ("and its guard" in knows)


def test_only_the_form_with_the_true_key_is_handed_the_guarded_head():
    assert "encode" in Decoder().needs and "head" not in Decoder().needs
    for key in ("own", "mixture", "recovered"):
        assert "encode" not in Decoder(keys=key).needs and "head" in Decoder(keys=key).needs
        assert Decoder(keys=key).base() == Decoder() and not Decoder(keys=key).ceiling(SEAL())


def test_forms_are_those_that_differ():
    shape = (4, 5, 5)
    assert Decoder().against(LightSplit(ratio=4), shape) == [Decoder()]
    assert Decoder(keys="mixture").against(SEAL(wave="triangle"), shape) == [Decoder()]
    assert [form.keys for form in Decoder().against(Chain(SEAL(), LightSplit(ratio=4)), shape)] == [
        "own",
        "mixture",
        "true",
    ]
    assert Decoder().ceiling(SEAL()) and not Decoder().ceiling(LightSplit(ratio=4))


def test_an_attacker_with_a_wrong_key_is_another_than_the_client():
    guard = KnownGuard(SEAL(), (2, 6, 6), 0, TASK)
    aux = samples(80, 1)
    head = nn.Conv2d(1, 2, 7).requires_grad_(False)
    known = Knowledge(aux=aux.x, aux_labels=aux.y, head=lambda x, y: head(x), guard=guard, observed=[])
    one, two, mixed = (made(key, known, seed) for key, seed in (("own", 0), ("own", 1), ("mixture", 0)))
    assert len(one.seen) == 72 and len(one.held) == 8 and not torch.allclose(one.seen, two.seen)
    assert torch.equal(one.rows, torch.arange(8, 80)) and torch.equal(one.held_rows, torch.arange(8))
    # Few images: each passes many keys, and what it becomes differs from key to key.
    assert len(mixed.seen) == len(mixed.rows) == 64 * 72
    first = mixed.seen[mixed.rows == 8]
    assert len(first) == 64 and len(first.flatten(1).unique(dim=0)) > 32
