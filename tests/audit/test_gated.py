"""A gate under audit: its codes side by side over a training, and clients that were frozen when they sent."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder, Linked
from cutlayer.attacks.linked import _beside
from cutlayer.audit.judge import judge
from cutlayer.audit.knowledge import after_training
from cutlayer.audit.matrix import audit
from cutlayer.audit.progress import Cells
from cutlayer.audit.scene import Scene, SceneContext
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.victim import uploads
from cutlayer.core.batch import Batch, Task
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, through
from cutlayer.core.seeds import generator, seeded
from cutlayer.data.base import Loaded
from cutlayer.guards import Gate, LightSplit, NoGuard, Noise, Quantize
from cutlayer.nets import ResNet18
from cutlayer.training import AllActive, SendOnce
from cutlayer.training.build import build_client, build_server
from cutlayer.training.step import learn
from cutlayer.wire.ledger import Ledger

GATE = Gate(numbers=6, bits=1, hidden=8, home=1.0)
SMALL = Compression(answers=Quantize(bits=4), gradients=Quantize(bits=4, rounding="stochastic"))
READ = {"steps": 5, "hidden": 8, "readers": ("ridge", "mlp")}


def scene_of(roles, epochs, heard):
    """A training under audit of which every pass is recorded; `heard` are the frozen clients' messages."""
    plan = tiny_plan(guard=GATE, roles=roles, epochs=epochs, batch_size=8)
    shared = SceneContext(tiny_parts(), TASK, 12, "cpu", Cells(lambda event: None, {"training": 1}), records=True)
    scene = Scene(plan, shared, epochs=epochs)
    assert scene.run.progress.epoch == epochs
    heard += [one for one in scene.history if one.kind is Kind.FORWARD and "z" in one.tensors]
    return scene


@pytest.fixture(scope="module")
def once():
    heard = []
    return scene_of(SendOnce(home=1, split=1, views=2), 6, heard), heard


def test_only_epochs_in_which_something_leaves_are_recorded(once):
    scene, heard = once
    assert len(scene.passes) == 3 and len(heard) == 3 * 6  # one epoch of the split, two views


def by_sample(scene, heard, epoch):
    """What each of the client's samples was sent as."""
    return torch.cat([one["z"] for one in heard])[torch.cat(scene.run.clients[0].order(epoch)).argsort()]


def test_what_is_recorded_of_a_frozen_client_is_what_it_sent(once):
    scene, heard = once
    sent = by_sample(scene, heard[-6:], 3)
    shuffled = torch.randperm(48, generator=generator(scene.plan.seed))  # as a victim's samples are
    for recorded, same in zip(scene.passes, (False, True, True), strict=True):
        seen = torch.cat([one["z"] for one in recorded.told.messages])[recorded.rows]
        assert seen.equal(sent[shuffled]) == same


def test_its_white_box_does_not_mind_the_company(once):
    scene, heard = once
    own, victim = scene.run.samples[0], scene.victim
    sent = by_sample(scene, heard[-6:], 3)
    assert victim.box(own.images(), own.y).equal(sent)
    assert victim.box(own.images()[:4], own.y[:4]).equal(sent[:4])
    assert victim.seen.equal(victim.box(victim.truth, victim.y))


def test_all_codes_of_a_training_are_read_next_to_each_other(once):
    scene = once[0]
    for link in ("order", "neighbours"):
        row, pictures = judge(Linked(link=link, epochs=3, beside=True, **READ), scene.victim, scene.shared.data, 0)
        assert row["epochs"] == 3 and 1 <= row["together"] <= 4 and pictures.shape == scene.victim.truth.shape
    assert Linked(link="order", beside=True).ceiling(GATE)


@pytest.mark.parametrize("link", ["order", "neighbours"])
def test_codes_of_several_epochs_meet_the_readers_of_codes(once, link):
    attack = Linked(link=link, epochs=3, beside=True, steps=3, hidden=8, readers=("mlp", "levels", "prior", "search"))
    row, _ = judge(attack, once[0].victim, once[0].shared.data, 0)
    assert set(row["readers"]) == {"mlp", "levels", "prior", "search"}
    assert attack.base().readers == ("mlp",) and not attack.base().beside


def test_a_search_through_all_heads_looks_for_what_is_read():
    """Frozen heads make the same codes again: of the truth itself nothing would be missed."""
    victim = scene_of(SendOnce(home=1, split=0, views=2), 4, []).victim
    attack = Linked(link="order", epochs=2, beside=True, **READ)
    knowledge = after_training(victim, tiny_parts()).only(attack.needs)
    with seeded(0):
        attacker = attack.attacker(knowledge, 0)
    read = attacker._together(torch.cat([one["z"] for one in uploads(victim.messages)]))[0]
    assert attacker._encode_beside(victim.truth, victim.y).equal(read)
    attacker._boxes = [lambda x, y, number=number: torch.full((len(x), 1), number) for number in range(3)]
    assert attacker._encode_beside(victim.truth, victim.y)[0].tolist() == [0, 1, 2]
    attacker.order, attacker.links = None, [None]  # linked by what they look like: the newest first, as far as useful
    assert attacker._encode_beside(victim.truth, victim.y)[0].tolist() == [2, 1]


def test_a_mean_of_codes_has_no_levels():
    with pytest.raises(ValueError, match="levels read codes, and their mean is none: take beside=True"):
        Linked(readers=("ridge", "levels"))


def test_beside_each_other_rows_stay_those_of_their_sample():
    rows = torch.randn(7, 2, generator=generator(0))
    order = torch.randperm(7, generator=generator(1))
    found = _beside([(rows, torch.arange(7)), (rows[order], order.argsort())], 5)
    assert found.equal(torch.cat([rows[:5], rows[:5]], 1))


@pytest.mark.parametrize(
    ("guard", "beside"),
    [(GATE, [True, True]), (Noise(scale=1.0), [False, False]), (LightSplit(ratio=4), []), (NoGuard(), [False])],
    ids=repr,
)
def test_who_is_read_that_way(guard, beside):
    met = Linked().against(guard, (4, 5, 5))
    assert [one.beside for one in met] == beside and {one.base() for one in met} <= {Linked()}


def test_all_four_messages_of_a_resnet_fit_into_a_fiftieth():
    """And those that the gate makes, z and dz, into a two-hundredth: at the size of batch of a training."""
    task, found = Task((3, 32, 32), 10), []
    draw = generator(0)
    batch = Batch(torch.rand(48, 3, 32, 32, generator=draw), torch.randint(10, (48,), generator=draw), seed=1)
    for changes in ({}, {"guard": Gate(), "compression": SMALL}):
        plan, ledger = replace(tiny_plan(net=ResNet18(depth=2), batch_size=48), **changes), Ledger()
        server = build_server(plan.public(), task)
        learn(build_client(plan, task, 0, through([ledger], server.handle)), batch)
        found.append(ledger.bytes)
    whole, small = found
    gated = [("FORWARD", "up"), ("BACKWARD", "down")]
    assert sum(small.values()) < sum(whole.values()) / 50
    assert sum(small[key] for key in gated) < sum(whole[key] for key in gated) / 200


def test_a_plan_that_sends_once_is_audited_beside_the_plain_split():
    plan = tiny_plan(guard=GATE, roles=SendOnce(home=1, split=0), epochs=3, batch_size=8)
    loaded = Loaded(samples(120, 1), samples(30, 2), ("a", "b", "c"))
    spec = AuditSpec(plan, [GATE], [Decoder(**READ)], images=12, alone=False)
    rows = {row["guard"]: row for row in audit(spec, loaded).rows}
    assert set(rows) == {"none", repr(GATE)}
    assert not rows[repr(GATE)]["draws_anew"], "of one message of a sample there is nothing to link"
    assert plan.with_guard(NoGuard()).roles == AllActive() and plan.with_guard(GATE) == plan
