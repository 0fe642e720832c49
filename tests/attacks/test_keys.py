"""Whose key is in an attacker's copy of a guard: what each word stands for, and what it is worth."""

from dataclasses import replace

import pytest
import torch
from toys import TASK

from cutlayer.attacks import FORA, FSHA, Knowledge, KnownGuard
from cutlayer.attacks.parts.keys import KEYS, copies_of, with_cosine
from cutlayer.attacks.parts.view import MIXED, View
from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import derive
from cutlayer.guards import SEAL, Chain, Clip, Noise

PUBLIC, PRIVATE, OWN = 5, 11, 7
GUARD, SHAPE = SEAL(energy=0.7, gram="row"), (3, 8, 8)


def sent(module, z):
    return module(z, Batch(z, torch.zeros(len(z), dtype=torch.long), seed=3)).seen


@pytest.fixture(scope="module")
def z():
    torch.manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.randn(600, 3, 3, 3) + 0.5, size=(8, 8), mode="bilinear")
    return (smooth + 0.05 * torch.randn(600, 3, 8, 8)).relu()


@pytest.fixture(scope="module")
def theirs(z):
    return sent(GUARD.build(SHAPE, PUBLIC, PRIVATE, TASK), z)


def known(true_key=PRIVATE):
    return KnownGuard(GUARD, SHAPE, PUBLIC, TASK, true_key)


def apart(own, theirs):
    return float((own - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("keys", KEYS)
def test_what_each_key_is_worth(keys, z, theirs):
    """Who has the client's activations and its key sees its messages; who has another key does not."""
    view = View("matched", keys, Knowledge(guard=known(), observed=[upload(theirs)]), OWN)
    assert len(view.copies) == (MIXED if keys == "mixture" else 1)
    own = sent(view.copies[0], z)
    assert (apart(own, theirs) < 0.2) == (keys in ("true", "recovered"))
    assert (view.remarks() != {}) == (keys == "recovered")
    if keys == "cosine":
        assert torch.equal(own, sent(replace(GUARD, wave="cosine").build(SHAPE, PUBLIC, 0, TASK), z))


def upload(rows):
    return Message(Kind.FORWARD, 0, 0, {"z": rows})


def test_a_key_that_the_messages_hide_is_a_mixture(theirs):
    noisy = theirs + torch.randn_like(theirs)
    seeds = [derive(OWN, number) for number in range(3)]
    found = copies_of(known(), "recovered", seeds, noisy, 0)
    assert found.empty is None and len(found.modules) == 3


def test_a_view_keeps_no_clients_key(theirs):
    view = View("matched", "own", Knowledge(guard=known(), observed=[upload(theirs)]), OWN)
    assert view.known.true_key is None
    with pytest.raises(ValueError, match="the true key is the judge's to give, and this attacker was not given it"):
        View("matched", "true", Knowledge(guard=known(None)), OWN)


def test_the_cosine_stands_for_the_secret_alone():
    chain = Chain(Clip(norm=1.0), SEAL(energy=0.5), Noise(scale=0.1))
    assert with_cosine(chain) == Chain(Clip(norm=1.0), SEAL(energy=0.5, wave="cosine"), Noise(scale=0.1))
    assert with_cosine(SEAL(wave="triangle")) == SEAL(wave="triangle"), "what is public stays"


def test_who_is_told_the_key_says_so():
    told, *others = (FORA(knows="matched", keys=keys).in_words()[-1] for keys in ("true", "own", "recovered"))
    assert told == "the client's own key, which no server has" and told not in others
    assert FORA(knows="oblivious", keys="true").in_words()[-1] != told


def test_keys_belong_to_copies():
    forms = [(form.knows, form.keys) for form in FORA(keys="cosine").against(SEAL(), SHAPE)]
    assert forms == [("matched", "cosine")], "a plain attack with a key has only the forms with a copy"
    assert FORA(knows="oblivious", keys="cosine").against(SEAL(), SHAPE) == [FORA(knows="oblivious")]
    assert FORA(keys="true").against(SEAL(wave="triangle"), SHAPE)[0].keys == "own", "there is none to know"


def test_fsha_listens_until_it_has_the_key(z, theirs):
    """It is there before the first message, so it answers honestly until one client has said enough."""
    attack = FSHA(knows="matched", keys="recovered", steps=8, width=4, hidden=8, warm=2, batch=4)
    told = Knowledge(task=TASK, aux=torch.rand(20, *TASK.shape), guard=known(None))
    attacker = attack.attacker(told, 0)
    honest = torch.zeros(300, *SHAPE)
    answers = []
    for step, rows in enumerate([theirs[:300], theirs[300:], theirs[:300]]):
        other = replace(upload(z[:300]), client=1, step=step)  # has another key, and is not listened to
        for message in (replace(upload(rows), step=step), other):
            attacker(message, lambda message: message.reply(u=message["z"]))
            back = Message(Kind.BACKWARD, message.client, step, {"du": rows})
            answers.append(attacker(back, lambda message: message.reply(dz=honest))["dz"])
    listening, attacking = answers[:3], answers[3:]
    assert all(torch.equal(dz, honest) for dz in listening)
    assert not any(torch.equal(dz, honest) for dz in attacking)
    assert attacker.remarks()["key_empty"] > 0.02
    assert apart(sent(attacker.view.copies[0], z), theirs) < 0.2
