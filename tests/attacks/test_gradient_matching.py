"""Weights that change hands after a batch give its texts away, and no guard of what crosses is in the way."""

from dataclasses import replace

import pytest
import torch
from text_toys import VOCABULARY, text_parts, text_plan
from torch.nn.functional import cosine_similarity

from cutlayer.attacks import Dictionary, GradientMatching
from cutlayer.attacks.parts.moved_rows import gradients_told
from cutlayer.audit.judge import judge
from cutlayer.audit.knowledge import why_pointless
from cutlayer.audit.refusal import NotTried
from cutlayer.audit.turns import turns_of
from cutlayer.audit.victim import Victim, uploads
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, KAnonymous, LightSplit, Noise
from cutlayer.nets import TextEncoder
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.protocols import Vanilla

NET = TextEncoder(layers=2, width=16, heads=2, at=0, vocabulary=VOCABULARY)
FEW = {"net": NET, "clients": 4, "batch_size": 4, "epochs": 1, "aux_samples": 0}
MERGED = {"rounds": SplitFed(), "client_optimizer": SGD(lr=0.1, momentum=0.0)}
ATTACK = GradientMatching(steps=200)


def victim_of(**changes):
    run = LocalRun(text_plan(**FEW | changes), text_parts(private=64, aux=60), classes=2)
    run.train()
    return Victim(run, 8)


def read(victim, attack=ATTACK):
    return judge(attack, victim, victim.run.parts, 0)[0]["value"]


@pytest.mark.parametrize(
    "changes",
    [MERGED, {"client_optimizer": Adam()}, {"client_optimizer": SGD(lr=0.1)}],
    ids=["SplitFed, SGD", "relay, Adam", "relay, momentum"],
)
def test_what_weights_tell_is_the_gradient_of_the_batch(changes):
    victim = victim_of(net=replace(NET, at=1), **changes)
    turns = turns_of(victim)
    for turn, upload, texts in zip(turns, uploads(victim.messages), victim.truth.split(4), strict=True):
        assert (turn.upload.step, turn.upload.client) == (upload.step, upload.client)
        assert torch.equal(turn.upload["z"], upload["z"]), "the messages that are judged are those of the turns"
        head = victim.network.split.head
        names, weights = zip(*head.named_parameters(), strict=True)
        wanted = torch.autograd.grad(head(texts), weights, turn.dz)
        found = gradients_told(turn, names, "words.table.weight")
        assert found.keys() == set(names)
        for name, gradient in zip(names, wanted, strict=True):
            if gradient.abs().max() > 1e-7:
                assert cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0) > 0.999, name


def test_it_reads_texts_behind_noise_that_leaves_no_row_like_any_word():
    noisy = victim_of(**MERGED, guard=Noise(scale=5.0))
    assert read(noisy) > 0.7 and read(noisy, Dictionary()) < 0.3
    assert read(victim_of(**MERGED, net=replace(NET, pad="mask"), protocol=Vanilla())) > 0.7
    assert read(victim_of(rounds=Relay())) > 0.7, "an optimizer's state that is handed on tells as much"


def test_noise_on_gradients_is_in_its_way():
    assert read(victim_of(**MERGED, guard=DPSGD(clip=0.5, noise=0.5))) < 0.3


def test_it_says_where_no_gradient_of_a_batch_is_to_be_seen():
    victim = victim_of(**MERGED)
    plan, run = victim.run.plan, victim.run
    assert why_pointless(ATTACK, plan, run.task, run.parts, 8) is None
    for changes, said in (
        ({"clients": 1, "rounds": Relay(), "rule": text_plan().rule}, "no client's weights pass through"),
        ({"local_steps": 2}, "a turn has several batches"),
    ):
        assert said in why_pointless(ATTACK, replace(plan, **changes), run.task, run.parts, 8)


def test_it_says_what_it_cannot_look_through():
    with pytest.raises(NotTried, match=r"KAnonymous.* makes one of several"):
        read(victim_of(**MERGED, guard=KAnonymous(k=2)))
    short = victim_of(**MERGED, guard=LightSplit(ratio=4))
    forms = ATTACK.against(short.run.plan.guard, (12, 16))
    assert [one.knows for one in forms] == ["oblivious", "matched"]
    with pytest.raises(NotTried, match="behind which a cut has another shape"):
        read(short, forms[0])
    assert read(short, forms[1]) > 0.5
    with pytest.raises(NotTried, match="does not train or travel"):
        read(victim_of(**MERGED, frozen_parts=("head",)))
    with pytest.raises(ValueError, match="knows is one of oblivious, matched"):
        GradientMatching(knows="lift")
