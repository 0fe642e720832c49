"""A plan that starts from a whole network's weights: each side takes its own parts, and both agree on the file."""

import pytest
import torch
from toys import TASK, TinyNet, tiny_plan

from cutlayer.core.seeds import seeded
from cutlayer.nets.weights import whole_state
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan_text import change
from cutlayer.training.plan.pretrained import Pretrained, read_start
from cutlayer.training.protocols import Federated, UShaped, Vanilla


@pytest.fixture
def file(tmp_path):
    net = TinyNet()
    with seeded(99):
        parts = {"head": net.head(TASK.shape), "body": net.body(TASK.shape), "tail": net.tail(TASK.shape, 3)}
    torch.save(whole_state(net, **parts), tmp_path / "w.pt")
    return tmp_path / "w.pt"


def tails(plan):
    """The classifier's weights, whoever has it."""
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    return (client.split.tail if plan.protocol.labels_stay_home else server.body.tail).weight


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Federated()], ids=repr)
def test_skip_tail_leaves_the_classifier_alone_and_takes_the_rest(protocol, file):
    plain = tiny_plan(protocol=protocol)
    whole, but_tail = (tiny_plan(protocol=protocol, start=Pretrained(str(file), skip_tail=s)) for s in (False, True))
    assert torch.equal(tails(but_tail), tails(plain)) and not torch.equal(tails(whole), tails(plain))
    heads = [build_client(plan, TASK, 0, lambda message: message).split.head for plan in (whole, but_tail, plain)]
    first, same, other = (next(head.parameters()) for head in heads)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_both_sides_agree_on_what_is_in_the_file_not_on_where_it_lies(file, tmp_path):
    (tmp_path / "other.pt").write_bytes(file.read_bytes())
    here, there = (tiny_plan(start=Pretrained(str(tmp_path / name))) for name in ("w.pt", "other.pt"))
    assert here.fingerprint() == there.fingerprint() != tiny_plan().fingerprint()
    assert here.fingerprint() != tiny_plan(start=Pretrained(str(file), skip_tail=True)).fingerprint()
    (tmp_path / "other.pt").write_bytes(file.read_bytes() + b"\0")
    assert here.fingerprint() != there.fingerprint()


def test_it_is_typed_as_a_file_as_a_spec_or_as_none():
    assert read_start("a b (1).safetensors") == Pretrained("a b (1).safetensors")
    assert read_start("Pretrained('w.pt', skip_tail=True)") == Pretrained("w.pt", skip_tail=True)
    assert change(tiny_plan(start=Pretrained("w.pt")), {"start": "none"}).start is None
    with pytest.raises(ValueError, match=r"there is no 'Pretraind' among the starts; did you mean Pretrained"):
        read_start("Pretraind('w.pt')")
    with pytest.raises(ValueError, match="path names a file"):
        Pretrained("")
