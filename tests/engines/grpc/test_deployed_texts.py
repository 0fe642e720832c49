"""Texts between machines: a language model, and an encoder whose mask crosses, as in one process."""

import pytest
import torch
from rehearsal import refuse_other_counts, refuse_other_weights, rehearse, undisturbed
from toys import tiny_plan

from cutlayer.core.batch import NO_LABEL, PAD
from cutlayer.data import Texts
from cutlayer.data.base import Parts, Samples
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.deploy import join
from cutlayer.nets import TextDecoder, TextEncoder
from cutlayer.training.evaluation import figures

WORDS = 3  # as many as the rehearsal's classes, so that a language model names one of them


def texts(count: int, next_token: bool, seed: int) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (count, 7), generator=draw)
    ids[::2, 5:] = PAD
    y = ids[:, 1:].masked_fill(ids[:, 1:] == PAD, NO_LABEL) if next_token else torch.arange(count) % 3
    return Samples(ids[:, :6].contiguous(), y, vocabulary=WORDS)


@pytest.mark.parametrize(
    "net", [TextDecoder(width=8, vocabulary=WORDS), TextEncoder(width=8, vocabulary=WORDS, pad="mask")], ids=repr
)
def test_texts_are_learnt_as_in_one_process(net, tmp_path):
    after = isinstance(net, TextDecoder)
    plan = tiny_plan(net=net, epochs=1, batch_size=6, clients=3)
    parts = Parts(texts(30, after, 0), texts(6, after, 1), texts(0, after, 2), texts(9, after, 3))
    local, deployed = undisturbed(plan, parts), rehearse(plan, tmp_path, parts=parts)
    refuse_other_weights(local, deployed)
    refuse_other_counts(local, deployed)
    if after:  # the server is told accuracies alone; who has the text knows its perplexity
        ours = local.evaluate(parts.test) and figures([local.clients[0].scored])["perplexity"]
        assert ours in [told.get("perplexity") for told in deployed.results.values()]


def test_clients_with_texts_of_their_own_share_one_list_of_words(tmp_path):
    plan = tiny_plan(net=TextEncoder(vocabulary=50), clients=3)
    with pytest.raises(ValueError, match=r"each client's differ: give all of them the same list, words='words\.txt'"):
        join(plan, "a", tmp_path / "a", address=Address("127.0.0.1:1", None), data=Texts("a.jsonl", vocabulary=50))
