"""What a server learns of the lengths of texts: nothing by sizes and names with pad='fixed', all with pad='mask'."""

import pytest
import torch

from cutlayer.core.batch import PAD, Batch
from cutlayer.nets import TextEncoder
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.step import learn
from cutlayer.wire import frames

TASK = Task((9,), 2, vocabulary=12)


def crossed(pad: str, words: int):
    """All messages of a step on texts of so many words, in both directions."""
    seen = []
    plan = Plan(net=TextEncoder(width=8, vocabulary=12, pad=pad), private_seed=1)
    server = build_server(plan.public(), TASK)

    def send(message):
        answer = server.handle(message)
        seen.extend([message, answer])
        return answer

    client = build_client(plan, TASK, 0, send)
    x = torch.arange(1, 10).repeat(4, 1).masked_fill(torch.arange(9) >= words, PAD)
    learn(client, Batch(x, torch.tensor([0, 1, 0, 1])))
    return seen


def sizes(messages):
    return [(message.kind, sorted(message.tensors), len(frames.encode(message))) for message in messages]


def test_a_short_text_takes_the_messages_of_a_long_one():
    assert sizes(crossed("fixed", 2)) == sizes(crossed("fixed", 9))


@pytest.mark.parametrize("words", [2, 9])
def test_a_mask_tells_every_length(words):
    first = crossed("mask", words)[0]
    assert first["beside.mask"].sum(1).tolist() == [words] * 4


def test_texts_longer_than_the_network_reads_are_refused_with_what_to_give():
    with pytest.raises(
        ValueError, match="at most 4096 tokens, and these have 5000: give the data length=4096 or less"
    ):
        TextEncoder().check((5000,))
