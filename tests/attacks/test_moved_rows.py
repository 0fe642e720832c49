"""Rows of an embedding that moved are the words of a turn, whatever the optimizer remembers; noise hides them."""

import pytest
import torch
from text_toys import VOCABULARY, text_parts, text_plan

from cutlayer.attacks.parts.moved_rows import commonest_words, moved_rows, told
from cutlayer.audit.words_told import WordsTold, in_words
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, Gaussian
from cutlayer.nets import LoRA, TextEncoder
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.schedule import SplitFed

NET = TextEncoder(layers=2, width=8, heads=2, vocabulary=VOCABULARY, pad="mask")
FEW = {"net": NET, "clients": 4, "batch_size": 4, "epochs": 2, "local_steps": 1, "aux_samples": 0}


def words_of(**changes):
    run = LocalRun(text_plan(**FEW | changes), text_parts(private=32, aux=60), classes=2)
    heard = WordsTold(run)
    run.train()
    return heard.facts()


@pytest.mark.parametrize(
    "changes",
    [
        {"client_optimizer": SGD(lr=0.1, momentum=0.9)},
        {"client_optimizer": Adam()},
        {"client_optimizer": SGD(lr=0.1, momentum=0.0), "rounds": SplitFed(), "guard": Gaussian(scale=5.0)},
    ],
    ids=["relay, momentum", "relay, Adam", "SplitFed behind noise at the cut"],
)
def test_a_turn_tells_its_words_and_no_others(changes):
    found = words_of(**changes)
    assert found["turns"] >= 3 and found["recall"] == found["precision"] == 1.0
    assert found["named"] == found["words"] < VOCABULARY - 2
    assert found["floor_recall"] < 0.95 and found["floor_precision"] < 0.95


def test_noise_on_gradients_and_tables_that_stay_tell_nothing():
    noisy = words_of(guard=DPSGD(clip=0.5, noise=0.5))
    assert noisy["named"] == VOCABULARY - 2 and noisy["precision"] == noisy["floor_precision"] < 0.95
    assert words_of(adapters=LoRA(rank=2)) is None
    assert words_of(shared_client_network=False, local_steps=0) is None


def test_momentum_that_is_not_handed_on_blurs_it():
    """Rows of earlier turns go on moving, and nobody sees why."""
    found = words_of(client_optimizer=Adam(), rounds=SplitFed(version=2))
    assert found["recall"] == 1.0 > found["precision"] >= found["floor_precision"] - 0.05


def test_what_only_fades_was_not_looked_up():
    was = torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.0, 0.0], [5.0, 1.0]])
    now = 0.81 * was
    now[1, 0] += 0.01
    now[2, 1] -= 0.01
    state = {"net.t": was, "optimizer.0.exp_avg": was}, {"net.t": was + 1, "optimizer.0.exp_avg": now}
    assert moved_rows(*state, "net.t").tolist() == [1, 2]
    assert moved_rows({"net.t": was}, {"net.t": now}, "net.t").tolist() == [0, 1, 2, 3]
    assert moved_rows({}, {"net.t": now}, "net.t") is None


def test_the_floor_names_as_many_of_the_commonest():
    texts = torch.tensor([[5, 5, 3, 0], [5, 3, 2, 1]])
    assert commonest_words(texts, 2, ignored=torch.tensor([0, 1])).tolist() == [5, 3]
    assert commonest_words(texts, 2, ignored=torch.tensor([0, 5])).tolist() == [3, 1], "an unknown word of any id"
    assert told(torch.tensor([5, 4]), torch.tensor([5, 3, 2])) == {"precision": 0.5, "recall": 1 / 3}
    names = ("recall", "precision", "floor_recall", "floor_precision")
    assert "name 50% of the 8 words of a turn" in in_words({"words": 8.0, **dict.fromkeys(names, 0.5)})
