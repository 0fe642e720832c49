"""Private images that lie on disk: how an audit looks for copies of them without decoding them all."""

from dataclasses import replace

import pytest
import torch
from toys import samples, tiny_parts, tiny_plan

import cutlayer.audit.facts as room
from cutlayer.attacks import Decoder
from cutlayer.audit.facts import left_uncompared, refuse_alike, refuse_overlap, refuse_scored_copies
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.data.auxiliary import Auxiliary
from cutlayer.data.base import Loaded
from cutlayer.data.rows import Rows, Store, as_tensor
from cutlayer.engines.local.run import LocalRun


class Counting(Store):
    """Rows of a tensor, and how many were read."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.reads = x, tuple(x.shape[1:]), x.dtype, 0

    def __len__(self):
        return len(self.x)

    def task(self, which):
        self.reads += len(which)
        return lambda: self.x[which]


def on_disk(some):
    return replace(some, x=as_tensor(Rows(Counting(some.x))))


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(room, "MOST_COMPARED", 8)
    return tiny_parts()


def test_a_draw_of_them_is_compared_and_the_rest_stays_unread(data, monkeypatch):
    private = on_disk(data.private)
    refuse_overlap(replace(data, private=private))
    assert private.x.store.reads == 8
    with pytest.raises(ValueError, match="8 of the attacker's auxiliary images are also private"):
        refuse_overlap(replace(data, private=private, aux=data.private))
    monkeypatch.setattr(room, "CHUNK", 8)
    refuse_alike(replace(data, private=private))
    assert private.x.store.reads == 3 * 8


def test_what_lies_in_memory_is_compared_whole(data):
    last = replace(data, aux=data.private[torch.tensor([len(data.private) - 1])])
    with pytest.raises(ValueError, match="also private"):
        refuse_overlap(last)
    assert left_uncompared(last) == {}


def test_what_was_not_compared_is_said(data):
    ((what, why),) = left_uncompared(replace(data, private=on_disk(data.private))).items()
    assert what == "40 private images" and "8 others and all that are scored were" in why


def test_what_is_scored_is_compared_whole_whatever_was_drawn(data):
    one = data.private[torch.tensor([5])]
    stolen = replace(data, private=on_disk(data.private), aux=one)
    refuse_scored_copies(stolen, data.private[torch.tensor([4, 6])])
    with pytest.raises(ValueError, match="also private"):
        refuse_scored_copies(stolen, data.private[torch.tensor([4, 5])])


def test_a_scored_copy_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(room, "MOST_COMPARED", 0)
    monkeypatch.setattr(LocalRun, "train", lambda *given, **named: pytest.fail("it trained"))
    train = samples(160, 1)
    loaded = Loaded(on_disk(train), samples(60, 2), ("a", "b", "c"))
    stolen = Auxiliary(other=replace(loaded, train=train))
    spec = AuditSpec(
        tiny_plan(epochs=1, batch_size=16), guards=[], attacks=[Decoder(readers=("ridge",))], images=30, alone=False,
        auxiliary=stolen,
    )  # fmt: skip
    with pytest.raises(ValueError, match="also private"):
        audit(spec, loaded)
