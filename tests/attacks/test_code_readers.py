"""Readers built for codes: each level, a prior by class, a search through the encoder; and who meets them."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.attacks.decoder import READERS
from cutlayer.attacks.parts.code_readers import (
    CODES,
    ByClass,
    Levels,
    Searched,
    code_reader,
    levels_reader,
    prior_reader,
)
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.batch import Batch
from cutlayer.core.seeds import generator, seeded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, WCC, Chain, Gate, LightSplit, NoGuard, Quantize
from cutlayer.metrics.images import ssim
from cutlayer.metrics.row_readers import Pairs

CUT = (4, 5, 5)
SIZE = Decoder(steps=60, hidden=16)


@pytest.mark.parametrize(
    ("guard", "more"),
    [
        (Gate(numbers=8), CODES),
        (Chain(Gate(numbers=8), WCC(weight=0.1)), CODES),
        (NoGuard(), ()),
        (LightSplit(ratio=4), ()),
        (LFQ(bits=3), ()),
        (Quantize(bits=2), ()),
    ],
    ids=repr,
)
def test_a_decoder_brings_them_where_a_code_leaves(guard, more):
    (met,) = Decoder().against(guard, CUT)
    assert met.readers == (*READERS, *more) and met.base() == Decoder() and not met.below_default()


def test_who_names_readers_gets_those():
    (met,) = Decoder(readers=("ridge",)).against(Gate(numbers=8), CUT)
    assert met.readers == ("ridge",)


def test_every_level_is_a_feature_and_many_levels_stay_numbers():
    seen = torch.tensor([[-1.5, 0.5], [1.5, -1.5]])
    assert Levels(seen)(seen).tolist() == [[1, 0, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0]]
    many = torch.randn(40, 2, generator=generator(0))
    assert Levels(many)(many).equal(many)


@pytest.fixture(scope="module")
def coded():
    """Codes that say which class a picture is of, in two of their four bits."""
    pool = samples(240, 5)
    with seeded(3):
        noise = torch.randint(2, (240, 2)) * 2.0 - 1
    seen = torch.cat([torch.stack([(pool.y == 1) * 2.0 - 1, (pool.y == 2) * 2.0 - 1], 1), noise], 1)
    pairs, labels = Pairs(seen[40:], pool.x[40:], seen[:40], pool.x[:40]), pool.y[40:]
    return pairs, labels, prior_reader(pairs, labels, SIZE)


def test_levels_and_prior_find_the_class_that_a_code_tells(coded):
    pairs, labels, by_class = coded
    of_class = torch.stack([pairs.truth[labels == one].mean(0) for one in range(3)])
    y = (pairs.held_seen[:, 0] > 0) + 2 * (pairs.held_seen[:, 1] > 0)
    limit = float(ssim(of_class[y.long()], pairs.held_truth).mean())
    nothing = float(ssim(pairs.truth.mean(0).expand_as(pairs.held_truth), pairs.held_truth).mean())
    for read in (levels_reader(pairs, SIZE), by_class):
        found = float(ssim(read(pairs.held_seen), pairs.held_truth).mean())
        assert found > nothing + 0.5 * (limit - nothing)


def test_series_behind_a_code_are_read_as_pictures_are():
    """Two bits say which wave it is; the search then finds the rest of what the encoder sees."""
    draw = generator(2)
    bits = torch.randint(2, (240, 2), generator=draw) * 2.0 - 1
    lines = torch.linspace(-1, 1, 8).expand(2, 8)
    truth = bits[:, :, None] * lines + 0.1 * torch.randn(240, 2, 8, generator=draw)
    pairs, labels = Pairs(bits[40:], truth[40:], bits[:40], truth[:40]), (bits[40:, 0] > 0).long()

    def encode(series, labels):
        return (series * lines).mean(2) * 3

    best, longer = None, replace(SIZE, steps=300)
    with seeded(3):
        for name in CODES:
            best = code_reader(name, longer, pairs, labels, encode, best)
            missed = (best(pairs.held_seen) - pairs.held_truth).square().mean() / truth.var()
            assert missed < 0.3, name
    assert code_reader("search", SIZE, pairs, labels, encode, None) is None


def test_texts_are_no_codes_of_pictures():
    pairs = Pairs(torch.zeros(4, 2), torch.zeros(4, 6).long(), torch.zeros(1, 2), torch.zeros(1, 6).long())
    assert code_reader("levels", SIZE, pairs, torch.zeros(4).long(), lambda x, y: x, None) is None


def test_a_prior_knows_which_classes_are_likely(coded):
    pairs, _, reader = coded
    inner = reader.reader.network
    assert isinstance(inner, ByClass)
    features = (reader.step(pairs.held_seen) - reader.reader.mean) / reader.reader.std
    y = (pairs.held_seen[:, 0] > 0) + 2 * (pairs.held_seen[:, 1] > 0)
    assert inner.classify(features).argmax(1).equal(y.long())


def test_a_search_comes_nearer_to_the_code_and_stays_where_it_is_pulled():
    module = Gate(numbers=8, budget=0).build((1, 12, 12), 1, 2, TASK).eval()
    module.requires_grad_(False)

    def encode(images, labels):
        return module(images, Batch(images, labels)).seen

    pool = samples(12, 3).x
    grey = torch.full_like(pool, 0.5)
    seen = encode(pool * 3 - 1, None).detach()
    free, held = (Searched(lambda z: grey, encode, pull)(seen) for pull in (0.001, 100.0))
    assert (encode(free, None) - seen).square().mean() < 0.5 * (encode(grey, None) - seen).square().mean()
    assert (held - grey).abs().mean() < 0.3 * (free - grey).abs().mean()


def test_all_of_them_read_a_gate_and_the_best_counts():
    run = LocalRun(
        tiny_plan(guard=Gate(numbers=8, bits=1), batch_size=8, epochs=1), tiny_parts(), classes=TASK.classes
    )
    run.train()
    (attack,) = Decoder(steps=3, hidden=8).against(run.plan.guard, CUT)
    row, _ = judge(attack, Victim(run, 16), run.parts, 0)
    assert set(row["readers"]) == {"ridge", "mlp", "augmented", *CODES}
    assert row["readers"][row["reader"]] == max(row["readers"].values())
    assert row["plain"] == repr(Decoder(steps=3, hidden=8))
