"""A substitution cipher: rows that repeat are symbols, and a word is known by its neighbours."""

import pytest
import torch
from text_toys import LENGTH, VOCABULARY, TextNet, sentences, text_plan

from cutlayer.attacks import Cipher
from cutlayer.attacks.parts.cipher_key import read_symbols, symbols, words_of
from cutlayer.audit.judge import judge
from cutlayer.audit.refusal import NotTried
from cutlayer.audit.victim import Victim
from cutlayer.data.base import Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.metrics.texts import token_accuracy


def embedded(texts, seed=0, width=16):
    draw = torch.Generator().manual_seed(seed)
    words, places = torch.randn(VOCABULARY, width, generator=draw), torch.randn(texts.shape[1], width, generator=draw)
    return words[texts] + places


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_one_word_are_one_symbol_wherever_they_stand(seed):
    texts = sentences(120, seed).x
    told, centres, places = symbols(embedded(texts, seed), VOCABULARY)
    pairs = torch.stack([texts.flatten(), told.flatten()], 1).unique(dim=0)
    assert len(pairs) == len(texts.unique()) == len(told.unique()), "one word, one symbol"
    assert torch.equal(read_symbols(embedded(texts, seed), centres, places), told)


def test_rows_that_never_repeat_are_no_symbols():
    with pytest.raises(ValueError, match="more than 40 kinds, so those of one word are not alike"):
        symbols(torch.randn(60, LENGTH, 16), VOCABULARY)


@pytest.mark.parametrize("seed", range(3))
def test_a_word_is_known_by_its_neighbours_where_its_rank_misleads(seed):
    """The same language, other texts: ranks alone mistake most words."""
    draw = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    ours, theirs = sentences(400, 10 + seed).x, sentences(400, 20 + seed).x
    found = {rounds: words_of(draw[ours], theirs, VOCABULARY, VOCABULARY, rounds) for rounds in (1, 8)}
    read = {rounds: float(token_accuracy(ours, key[draw[ours]]).mean()) for rounds, key in found.items()}
    assert read[8] > 0.9 and read[8] >= read[1]


def test_an_embedding_is_read_without_the_head_and_behind_attention_it_says_why_not():
    data = Parts(sentences(240, 1), sentences(12, 2), sentences(240, 3), sentences(40, 4))
    victims = []
    for at in (0, 2):
        run = LocalRun(text_plan(net=TextNet(at=at), epochs=1), data, classes=2)
        run.train()
        victims.append(Victim(run, 32))
    row, _ = judge(Cipher(), victims[0], data, 0)
    assert row["value"] > 0.7 and not row["white_box"] and not any("head" in told for told in row["knows"])
    with pytest.raises(NotTried, match="those of one word are not alike"):
        judge(Cipher(), victims[1], data, 0)
