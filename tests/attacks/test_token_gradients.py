"""What a gradient names, which threat this is, and BiSR's two sides."""

from dataclasses import replace

import pytest
import torch
from text_toys import LENGTH, VOCABULARY, next_word_parts, text_plan
from torch import nn
from torch.nn.functional import cross_entropy

from cutlayer.attacks import BiSR, TokenGradients
from cutlayer.attacks.parts.label_gradient import named_by_gradient
from cutlayer.audit.judge import judge
from cutlayer.audit.knowledge import after_training, why_pointless
from cutlayer.audit.victim import Victim
from cutlayer.core.batch import NO_LABEL, Task
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Noise
from cutlayer.nets import TextDecoder
from cutlayer.nets.weights import whole_state
from cutlayer.training.plan.pretrained import Pretrained


class Deep(nn.Module):
    """A tail with a bend in it, places kept apart."""

    def __init__(self, classes, pooled):
        super().__init__()
        self.layers, self.pooled = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, classes)), pooled

    def forward(self, u):
        return self.layers(u.mean(1)) if self.pooled else self.layers(u).transpose(1, 2)


@pytest.mark.parametrize("pooled", [False, True], ids=["next words", "one class"])
@pytest.mark.parametrize("seed", range(3))
def test_a_known_tail_names_the_labels_of_a_gradient(seed, pooled):
    torch.manual_seed(seed)
    tail, u = Deep(9, pooled), torch.randn(5, 4, 6, requires_grad=True)
    y = torch.randint(9, (5,) if pooled else (5, 4))
    loss = cross_entropy(tail(u), y)
    (du,) = torch.autograd.grad(loss, u)
    found = named_by_gradient(tail, u.detach(), du)
    assert torch.equal(found.labels, y) and found.match.min() > 0.999


def test_a_place_without_a_label_matches_nothing():
    torch.manual_seed(0)
    tail, u = Deep(9, False), torch.randn(2, 4, 6, requires_grad=True)
    y = torch.tensor([[1, 2, 3, NO_LABEL], [4, NO_LABEL, NO_LABEL, NO_LABEL]])
    (du,) = torch.autograd.grad(cross_entropy(tail(u), y), u)
    match = named_by_gradient(tail, u.detach(), du).match
    assert torch.equal(match > 0.5, y != NO_LABEL) and (match[y == NO_LABEL] == 0).all()


def test_it_says_where_there_is_nothing_to_read():
    words = Task((LENGTH,), VOCABULARY, {}, VOCABULARY)
    assert TokenGradients().why_not(words, True) is None
    assert "here the server computes the loss" in TokenGradients().why_not(words, False)
    assert "one of 2 classes" in TokenGradients().why_not(Task((LENGTH,), 2, {}, VOCABULARY), True)
    assert "for texts" in TokenGradients().why_not(Task((9,), 2), True)


def test_published_weights_are_those_of_the_file_and_need_one(tmp_path):
    net = TextDecoder(width=16, at=1, vocabulary=VOCABULARY)
    torch.manual_seed(5)
    parts = {"head": net.head((LENGTH,)), "body": net.body((LENGTH,)), "tail": net.tail((LENGTH,), VOCABULARY)}
    torch.save(whole_state(net, **parts), tmp_path / "w.pt")
    plan = text_plan(net=net, epochs=1, start=Pretrained(str(tmp_path / "w.pt")))
    run = LocalRun(plan, next_word_parts(), classes=VOCABULARY)
    run.train()
    victim, attack = Victim(run, 16), BiSR(steps=4, input_steps=4, readers=("ridge",), weights="published")
    known = after_training(victim, run.parts).only(attack.needs)
    assert known.encode is None and known.tail is None, "it is not told the client's own"
    assert torch.equal(known.published.tail.linear.weight, parts["tail"].linear.weight)
    assert not torch.equal(known.published.tail.linear.weight, run.networks[0].split.tail.linear.weight)
    row, _ = judge(attack, victim, run.parts, 0)
    assert row["value"] > 0.8 and not row["white_box"], "what was learnt since hardly hides the next words"
    why = why_pointless(attack, replace(plan, start=None), run.task, run.parts, 16)
    assert "began with weights of its own drawing" in why


@pytest.fixture(scope="module")
def noisy():
    """A language model whose z drowns in noise."""
    plan = text_plan(net=TextDecoder(width=16, at=1, vocabulary=VOCABULARY), guard=Noise(scale=20.0), epochs=1)
    run = LocalRun(plan, next_word_parts(), classes=VOCABULARY)
    run.train()
    return Victim(run, 16)


def test_what_hides_z_hides_no_next_word(noisy):
    forward = BiSR(steps=4, input_steps=0, readers=("ridge",))
    values = {type(one): judge(one, noisy, noisy.run.parts, 0)[0]["value"] for one in (forward, TokenGradients())}
    assert values[TokenGradients] > 0.8 and values[BiSR] > 0.8, "one of BiSR's sides is enough"
    blind = noisy.messages
    noisy.messages = [message for message in blind if "du" not in message.tensors]
    try:
        assert judge(forward, noisy, noisy.run.parts, 0)[0]["value"] < 0.5
    finally:
        noisy.messages = blind
