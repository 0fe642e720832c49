"""TopK and RandTopK: which values leave, where gradients go, and what the wire makes of the zeros."""

import pytest
import torch
from toys import TASK, batches, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.guards import RandTopK, TopK
from cutlayer.training.build import build_client, build_server
from cutlayer.training.step import learn
from cutlayer.wire import frames

Z = torch.randn(5, 2, 6, 6, generator=generator(1))


def sent(guard, z=Z, seed=0, train=True):
    module = guard.build(tuple(z.shape[1:]), 0, 9)
    return module.train(train)(z, Batch(z, torch.zeros(len(z)), seed=seed)).seen


def test_the_largest_values_leave_and_no_others():
    seen = sent(TopK(share=0.25)).flatten(1)
    for row, kept in zip(Z.flatten(1), seen, strict=True):
        order = row.abs().sort(descending=True).indices
        assert torch.equal(kept.nonzero().flatten().sort().values, order[:18].sort().values)
        assert torch.equal(kept[order[:18]], row[order[:18]])


def test_gradients_exist_on_what_was_sent_alone_both_ways():
    plan = tiny_plan(guard=TopK(share=0.2))
    server = build_server(plan.public(), TASK)
    heard = []

    def send(message):
        heard.append((message, server.handle(message)))
        return heard[-1][1]

    learn(build_client(plan, TASK, 0, send), batches(1)[0])
    z, dz = heard[0][0]["z"], heard[1][1]["dz"]
    assert ((z == 0) <= (dz == 0)).all() and dz.count_nonzero() > 0
    # So message 4 shrinks as message 1 does.
    assert frames.size(heard[1][1]) < 0.5 * frames.size(Message(Kind.BACKWARD, 0, 0, {"dz": torch.ones_like(dz)}))


def test_bytes_at_4096():
    z = torch.randn(1, 4096, generator=generator(2))
    seen, packed = TopK(share=128 / 4096).compress(z)
    assert packed is None and int(seen.count_nonzero()) == 128
    frame = frames.encode(Message(Kind.FORWARD, 0, 0, {"z": seen}))
    assert 704 <= len(frame) <= 704 + 64  # 128 floats and 12-bit places, and the frame around them


def test_random_places_come_from_outside_as_often_as_alpha_says():
    z = torch.randn(400, 100, generator=generator(3))
    for alpha in (0.0, 0.3, 1.0):
        guard = RandTopK(share=0.2, alpha=alpha)
        mask = guard.mask(z, generator(4))
        assert (mask.sum(1) == 20).all()
        outside = (mask & ~TopK(share=0.2).mask(z)).sum() / mask.sum()
        assert float(outside) == pytest.approx(alpha, abs=0.03)


def test_at_inference_the_largest_leave():
    guard = RandTopK(share=0.2, alpha=0.5)
    assert torch.equal(sent(guard, train=False), sent(TopK(share=0.2)))
    assert not torch.equal(sent(guard), sent(TopK(share=0.2)))
    assert torch.equal(sent(guard, seed=1), sent(guard, seed=1)) and not torch.equal(
        sent(guard, seed=1), sent(guard, seed=2)
    )


@pytest.mark.parametrize(("made", "words"), [
    (lambda: TopK(share=0), "share of a row"),
    (lambda: TopK(share=1.5), "share of a row"),
    (lambda: RandTopK(share=0.1, alpha=2), "alpha is a share"),
])  # fmt: skip
def test_settings_that_make_no_sense(made, words):
    with pytest.raises(ValueError, match=words):
        made()
