"""Labels that are the text itself: what fits them, what would show them, and how they are scored."""

from dataclasses import replace
from math import log

import pytest
import torch

from cutlayer.core.batch import NO_LABEL, Batch
from cutlayer.data.base import Parts, Samples
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import C3, DPSGD, SEAL, Chain, Gaussian, KAnonymous, LightSplit, NoGuard, NoPeek, Quantize, TopK
from cutlayer.nets import MLP, TextDecoder, TextEncoder
from cutlayer.training.evaluation import Score, figures, perplexity, surprise_of_each
from cutlayer.training.labels import why_unfit_labels
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Alone, Bypass, Federated, UShaped, Vanilla

WORDS = 12
TASK = Task((6,), WORDS, vocabulary=WORDS)
Y = torch.ones(4, 6, dtype=torch.int64)
APART = [NoGuard(), Gaussian(scale=0.1), Quantize(bits=4), TopK(), KAnonymous(k=2), NoPeek(), DPSGD(), SEAL(dims=1)]
MIXING = [SEAL(), LightSplit(ratio=2), C3(ratio=2), Chain(Quantize(bits=8), LightSplit(ratio=2))]


def plan(**changes):
    return Plan(**{"net": TextDecoder(width=8, vocabulary=WORDS), "private_seed": 1, **changes})


def test_a_network_that_knows_nothing_is_as_perplexed_as_there_are_words():
    y = torch.tensor([[3, 4, NO_LABEL], [5, NO_LABEL, NO_LABEL]])
    each = surprise_of_each(torch.zeros(2, WORDS, 3), y)
    assert each.tolist() == pytest.approx([2 * log(WORDS), log(WORDS)])
    assert perplexity(float(each.sum()), 3) == pytest.approx(WORDS)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(1e9, 1) < float("inf")


def test_perplexity_is_that_of_all_tokens_together():
    both = figures([Score(0, 1, surprise=log(2)), None, Score(0, 3, surprise=3 * log(8))])
    assert both["perplexity"] == pytest.approx((2 * 8**3) ** 0.25)


def test_places_without_a_label_are_neither_right_nor_wrong_nor_learnt_from():
    x = torch.randint(1, WORDS, (6, 6))
    y = torch.full((6, 6), NO_LABEL)
    y[:, 0] = 2
    samples = Samples(x, y, vocabulary=WORDS)
    run = LocalRun(
        plan(epochs=1, batch_size=4, val_share=0.0), Parts(samples, samples[:0], samples[:0], samples), classes=WORDS
    )
    run.train()
    assert run.evaluate(samples)[0] in (0.0, *(place / 6 for place in range(1, 7)))
    assert run.clients[0].scored.samples == 6


@pytest.mark.parametrize("guard", APART, ids=repr)
def test_guards_that_leave_places_apart_fit(guard):
    assert why_unfit_labels(plan(guard=guard), TASK, Y) is None


@pytest.mark.parametrize("guard", MIXING, ids=repr)
def test_guards_that_mix_places_are_refused(guard):
    assert "would know the token it has to name" in why_unfit_labels(plan(guard=guard), TASK, Y)


def test_a_guard_that_mixes_places_would_let_the_network_look_ahead():
    """Why they are refused: with a later token another, an earlier place of what the server reads is another."""
    shape = cut_shapes(plan(), TASK).shared
    z = torch.rand(1, *shape)
    later = z.clone()
    later[:, -1] += 1
    for guard, moves in ((LightSplit(ratio=2), True), (Quantize(bits=16), False)):
        module, lift = guard.build(shape, 1, 2, TASK), guard.lift(shape, 1)
        before, after = (lift(module(one, Batch(Y[:1], Y[:1])).seen)[:, 0] for one in (z, later))
        assert bool((after - before).abs().max() > 1e-3) == moves


@pytest.mark.parametrize(
    ("protocol", "why"),
    [
        (UShaped(), None),
        (Federated(), None),
        (Vanilla(), "the labels of next tokens are the text itself"),
        (Bypass(), "mixes the places of a text"),
    ],
    ids=repr,
)
def test_protocols_that_would_show_the_label_are_refused(protocol, why):
    told = why_unfit_labels(plan(protocol=protocol), TASK, Y)
    assert told is None if why is None else why in told


def test_a_client_alone_would_look_ahead_too():
    assert "mixes the places" in why_unfit_labels(plan(protocol=Alone()), TASK, Y)


def test_labels_and_network_have_to_fit():
    assert "next_token=True" in why_unfit_labels(plan(), TASK, Y[:, 0])
    classifier = plan(net=TextEncoder(width=8, vocabulary=WORDS))
    assert "take TextDecoder" in why_unfit_labels(classifier, TASK, Y)
    assert why_unfit_labels(classifier, replace_classes(2), Y[:, 0]) is None


def replace_classes(classes):
    return TASK._replace(classes=classes)


@pytest.mark.parametrize(
    ("net", "task", "why"),
    [
        (
            TextEncoder(vocabulary=9),
            TASK,
            "knows 9 token ids and the tokenizer of the data has 12",
        ),
        (TextDecoder(vocabulary=99), TASK, r"TextDecoder\(vocabulary=12\)"),
        (TextEncoder(), Task((6,), 2), "these data are amounts"),
        (MLP(), TASK, r"token ids, which are names of words: take TextEncoder\(vocabulary=12\)"),
        (TextEncoder(vocabulary=WORDS), Task((1, 6, 6), 2, vocabulary=WORDS), "the token ids of a text"),
    ],
)
def test_a_tokenizer_that_disagrees_with_the_network_is_refused(net, task, why):
    with pytest.raises(ValueError, match=why):
        cut_shapes(replace(plan(), net=net), task)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"heads": 3}, "no multiple of 3"),
        ({"at": 2}, "0 .the embedding cut. to 1"),
        ({"layers": 0}, "layers is a whole"),
        ({"pad": "left"}, "pad is 'fixed' or 'mask'"),
    ],
)
def test_settings_that_make_no_network(settings, why):
    with pytest.raises(ValueError, match=why):
        TextEncoder(**settings)


def test_ids_that_a_network_has_no_word_for_are_refused():
    head = TextEncoder(width=8, vocabulary=WORDS).head((6,))
    with pytest.raises(ValueError, match="knows the token ids 0 to 11; the data have 1 to 12"):
        head(torch.tensor([[1, 12]]))


def test_a_mask_makes_the_length_of_the_padding_no_matter():
    """With pad='mask' a text says the same however far it is padded; with pad='fixed' it need not."""
    torch.manual_seed(0)
    for pad, same in (("mask", True), ("fixed", False)):
        net = TextEncoder(width=8, vocabulary=WORDS, pad=pad)
        head, body, tail = net.head((9,)), net.body((9,)), net.tail((9,), 2)
        text = torch.tensor([[3, 4, 5]])
        found = []
        for length in (5, 9):
            z = head(torch.nn.functional.pad(text, (0, length - 3)))
            z, beside = z if pad == "mask" else (z, {})
            found.append(tail(body(z, **beside), **beside))
        assert torch.allclose(*found, atol=1e-6) == same
