"""Retrieval: it finds the image behind a message that it knows, and its failing earns nobody a good grade."""

import pytest
import torch
from toys import TASK, samples
from verdict_rows import FLOORS, pictured

from cutlayer.attacks import BUDGETS, Knowledge, Retrieval, suite
from cutlayer.attacks.retrieval import nearest
from cutlayer.audit.strength import doubts
from cutlayer.core.message import Kind, Message

MIX = torch.linalg.qr(torch.randn(144, 144, generator=torch.Generator().manual_seed(3))).Q


def encode(x, y):
    return x.flatten(1) @ MIX[:, :36]


def test_a_message_of_an_auxiliary_image_brings_that_image_back():
    aux = samples(90, 1)
    attacker = Retrieval().attacker(Knowledge(aux=aux.x, aux_labels=aux.y, encode=encode), seed=0)
    # Also those that other white boxes hold out: nothing is trained here that they would have to judge.
    pick = torch.randperm(90)
    nearby = encode(aux.x, aux.y)[pick] + 1e-3
    assert torch.equal(attacker.reconstruct([Message(Kind.FORWARD, 0, 0, {"z": nearby})]), aux.x[pick])


def test_what_is_no_number_is_near_to_nothing():
    among = torch.tensor([[torch.nan, 0.0], [5.0, 5.0]])
    assert nearest(torch.zeros(300, 2), among).tolist() == [1] * 300


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_budget_has_it(budget):
    assert sum(isinstance(attack, Retrieval) for attack in suite(budget, TASK, True)) == 1


def test_it_is_told_the_head_and_yet_earns_no_good_grade():
    assert "encode" in Retrieval().needs and not Retrieval().white_box
    own, unguarded = (
        [pictured(guard, value, attack="Retrieval()", white_box=Retrieval().white_box)]
        for guard, value in (("Quantize(bits=1)", 0.3), ("none", 0.9))
    )
    assert any("no white-box attacker" in why for why in doubts(own, unguarded, FLOORS))
