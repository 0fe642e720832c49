"""Audits of texts: what is read of an open embedding, what needs no message, and what the report shows."""

import copy
import itertools
import json

import pytest
import torch
from test_schema import strays
from text_toys import LENGTH, VOCABULARY, TextNet, audited, sentences, text_plan

from cutlayer.attacks import Decoder, Dictionary, Membership, TokenGradients, UnSplit, suite, usual
from cutlayer.audit.floors import blind_guess
from cutlayer.audit.kinds import TEXTS, of_floors
from cutlayer.audit.report import files
from cutlayer.audit.rows import picture_key
from cutlayer.audit.text_floors import commonest, commonest_of_class, likeliest, nearest
from cutlayer.audit.uncertainty import intervals
from cutlayer.audit.verdicts import verdict
from cutlayer.core.batch import Task
from cutlayer.detectors import ClientContext, LeakMeter
from cutlayer.guards import Gaussian

READ = Decoder(steps=40, width=16, hidden=32, readers=("ridge", "conv"))


@pytest.fixture(scope="module")
def done():
    return audited(text_plan(epochs=2), guards=[Gaussian(scale=3.0)], attacks=[READ, Dictionary(), Membership()])


def test_the_open_embedding_cut_is_a_lookup(done):
    values = {row["attack"]: row["value"] for row in done.rows if row["guard"] == "none"}
    assert values[repr(READ)] >= 0.95 and values["Dictionary()"] >= 0.95
    assert "rebuilds private texts at token accuracy" in done.verdicts()[0].sentence


def test_noise_takes_words_away_and_floors_stay_what_they_are(done):
    open_cut, noisy = (
        max(row["value"] for row in done.rows if row["guard"] == guard and row["secret"] == "texts")
        for guard in ("none", "Gaussian(scale=3.0)")
    )
    assert noisy < open_cut - 0.2
    assert of_floors(done.floors) is TEXTS
    assert 0.05 < blind_guess(done.floors, "token_accuracy") < 0.6
    assert {"mean", "class_mean", "prior", "nearest", "unaligned"} == done.floors.keys()


def test_names_that_come_back_decide_where_they_are_read_best(done):
    rows = [copy.deepcopy(row) for row in done.rows if row["secret"] == "texts"]
    for row in rows:
        if row["guard"] != "none":
            row |= {"token_accuracy": 0.1, "value": 0.1, "token_p90": 0.1, "names_found": 0.9}
            row["sampled"]["scores"] = [0.1] * row["n"]
            row["names_each"]["scores"] = [0.9] * len(row["names_each"]["scores"])
            row["interval"] = intervals(row)
    found = verdict(rows, done.floors, "Gaussian(scale=3.0)").secrets[0]
    assert found.statistic == "names" and found.grade == "does not protect"
    assert "Of names and numbers 0.90 (0.90 to 0.90) are read; unguarded 1.00" in found.sentence
    floors = {name: {**marks, "names_found": 1.0} for name, marks in done.floors.items()}
    blind = verdict(rows, floors, "Gaussian(scale=3.0)").secrets[0]
    assert blind.statistic != "names" and blind.leak < 0.5, "what a blind guess names, too, was not read"


def test_every_figure_is_in_the_schema(done):
    assert not strays(files.as_data(done, "cutlayer audit"))


def test_the_report_shows_texts_word_by_word_and_escapes_them(done):
    done.words = ("<pad>", *(f"<b>word{number}</b>" for number in range(1, VOCABULARY)))
    html = files.html(done, files.rebuilt_pictures(done) | {"tradeoff.png": b""}, "cutlayer audit")
    number = int(done.truth[0][0])
    assert f"<mark>&lt;b&gt;word{number}&lt;/b&gt;</mark>" in html and "<b>word" not in html
    assert "Recovered texts" in html and "100 % of the tokens" in html
    rows = [row for row in done.rows if row["secret"] == "texts"]
    assert all(done.pictures[picture_key(row)].shape == done.truth.shape for row in rows)
    json.dumps(files.as_data(done, ""))


def test_an_attack_that_reads_no_texts_is_named_with_its_reason():
    task = Task((LENGTH,), 2, {}, VOCABULARY)
    fit = {type(one) for one in suite("standard", task, True) if one.why_not(task, True) is None}
    assert {Decoder, Dictionary, Membership} <= fit and UnSplit not in fit
    assert "is for images, and the inputs here are texts" in UnSplit().why_not(task, True)
    assert Dictionary().why_not(Task((1, 28, 28), 2), True).startswith("Dictionary() is for texts")


def test_an_audit_that_asks_for_no_attack_takes_those_that_have_something_to_find():
    one_class, next_word = (Task((LENGTH,), classes, {}, VOCABULARY) for classes in (2, VOCABULARY))
    assert usual([Gaussian(scale=1.0)], one_class) == [Decoder(), Dictionary()]
    assert usual([], next_word) == [Decoder(), Dictionary(), TokenGradients()]


def test_what_takes_ids_for_amounts_says_so_before_training():
    task = Task((LENGTH,), 2, {"long": 2}, VOCABULARY)
    with pytest.raises(ValueError, match="the inputs of this task are texts, of which ssim says nothing"):
        LeakMeter(budget="ssim<=0.5").refuse_unfit(ClientContext(task, 16, 0, lambda steps: iter(())))


# ----------------------------------------------------------------------------- what needs no message
def test_the_commonest_word_of_a_place_is_never_padding():
    texts = torch.tensor([[5, 7, 0], [5, 8, 0], [6, 8, 0]])
    assert commonest(texts).tolist() == [5, 8, 5], "where all texts have ended, the commonest word of all"
    by_class = commonest_of_class(texts, torch.tensor([0, 1, 1]), 3, torch.tensor([1, 0, 2]))
    assert by_class.tolist() == [[5, 8, 8], [5, 7, 5], [5, 8, 5]], "the third class has no text, and takes all"


def test_the_prior_follows_the_pairs_of_words_that_are_likely():
    round_and_round = torch.tensor([[1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 1, 2, 0, 0]] * 9)
    assert likeliest(round_and_round).tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_the_prior_writes_no_likelier_text_than_it_could():
    """Against every text of four words, by the same counts."""
    texts = sentences(60, 5, vocabulary=5, length=4).x
    first, follows = torch.ones(5, dtype=torch.float64), torch.ones(5, 5, dtype=torch.float64)
    for row in texts.tolist():
        first[row[0]] += 1
        for one, two in itertools.pairwise(row):
            if one and two:
                follows[one, two] += 1
    first, follows = (counts[..., 1:].log() for counts in (first, follows))
    follows = follows[1:] - follows[1:].exp().sum(1, keepdim=True).log()

    def worth(text):
        return float(first[text[0]] + sum(follows[one, two] for one, two in itertools.pairwise(text)))

    every = torch.cartesian_prod(*[torch.arange(4)] * 4).tolist()
    assert worth((likeliest(texts) - 1).tolist()) == pytest.approx(max(map(worth, every)))


def test_the_nearest_auxiliary_text_shares_most_words():
    aux = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [0, 0, 0, 0]])
    assert nearest(torch.tensor([[4, 2, 3, 9], [4, 5, 9, 0]]), aux).tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]


def test_a_deeper_cut_is_read_by_trying_words_in_their_text():
    """A word's row hangs on the words around it there; the first lookup has strange ones around."""
    found = {
        rounds: audited(text_plan(net=TextNet(at=2), epochs=1), images=12, attacks=[Dictionary(rounds=rounds)]).rows[
            0
        ]["value"]
        for rounds in (0, 2)
    }
    assert found[2] > 0.9 and found[2] >= found[0]
