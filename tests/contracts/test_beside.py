"""What crosses beside z: every protocol trains a masked encoder as the unsplit one, and only what was said leaves."""

from dataclasses import replace

import pytest
import torch
from masked import LENGTH, TEXTS, MaskedNet, batches, text_parts
from test_guard_shapes import MAPS_ONLY, PICTURES_ONLY
from test_protocols import PROTOCOLS
from test_split_equals_whole import learn_whole
from toys import ALL_GUARDS, Here, split_and_whole, states, tiny_plan

from cutlayer.core.features import Features, features
from cutlayer.core.message import Kind, Message
from cutlayer.core.split import UShapedNetwork
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Adversarial, KAnonymous
from cutlayer.nets import Whole
from cutlayer.training.plan.roles import SendOnce
from cutlayer.training.plan.schedule import Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, Vanilla
from cutlayer.training.step import learn, predict
from cutlayer.wire import frames
from cutlayer.wire.ledger import UP, Ledger


def plan_of(**changes):
    return tiny_plan(**{"net": MaskedNet(), **changes})


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_split_is_unsplit_with_a_mask(protocol):
    client, server, twin, twin_server = split_and_whole(plan_of(protocol=protocol), TEXTS)
    start = {name: t.clone() for name, t in states(client, server).items()}
    for batch in batches(3):
        learn(client, batch)
        learn_whole(twin, twin_server, batch)
    ours, theirs = states(client, server), states(twin, twin_server)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    moved = {name.split(".")[1] for name in ours if not torch.equal(ours[name], start[name])}
    assert {"head", "tail"} <= moved
    (batch,) = batches(1, seed=9)
    with torch.no_grad():
        unsplit = twin.split.eval()(batch, Here(twin_server.body.eval())).logits
    assert torch.equal(predict(client, [batch]), unsplit)


def test_a_fused_wave_has_every_clients_mask():
    ended = []
    for fused in (False, True):
        run = LocalRun(
            plan_of(rounds=Wave(fused=fused), clients=3, batch_size=6, epochs=1),
            text_parts(24),
            classes=TEXTS.classes,
        )
        run.train()
        ended.append(run.tensors())
    for name, tensor in ended[0].items():
        torch.testing.assert_close(ended[1][name], tensor, rtol=1e-4, atol=1e-6)


def test_a_bypass_keeps_features_of_every_token_and_no_token():
    plan = plan_of(protocol=Bypass(home=0.25))
    assert cut_shapes(plan, TEXTS).shared == (LENGTH, 6)
    client, server, *_ = split_and_whole(plan, TEXTS)
    (batch,) = batches(1)
    z = client.split.head(batch.x).z
    shared, home = client.split.share(z)
    assert torch.equal(torch.cat([shared, home], -1), z) and home.shape[-1] == 2
    filled = server.body.fill(shared)
    assert torch.equal(filled[..., :6], shared) and not filled[..., 6:].any()


def test_the_mask_leaves_as_it_is_and_nothing_else():
    client, *_ = split_and_whole(plan_of(), TEXTS)
    heard, send = [], client.remote._send
    client.remote._send = lambda message: (heard.append(message), send(message))[1]
    (batch,) = batches(1)
    learn(client, batch)
    predict(client, [batch])
    up, back, asked = heard
    for message in (up, asked):
        assert set(message.tensors) == {"z", "beside.mask"}
        assert torch.equal(message.beside["mask"], batch.x != 0)
    assert set(back.tensors) == {"du"}


def test_without_a_mask_no_length_leaves():
    client, *_ = split_and_whole(plan_of(net=MaskedNet(pad="fixed")), TEXTS)
    assert cut_shapes(plan_of(net=MaskedNet(pad="fixed")), TEXTS).beside == {}
    heard = []
    send, client.remote._send = client.remote._send, lambda message: (heard.append(message), send(message))[1]
    learn(client, batches(1)[0])
    assert set(heard[0].tensors) == {"z"}


def test_its_bytes_are_counted():
    bare = Message(Kind.FORWARD, 0, 0, {"z": torch.ones(4, 3)})
    mask = torch.ones(4, 8, dtype=torch.bool)
    whole, counted = replace(bare, tensors={**bare.tensors, "beside.mask": mask}), []
    for message in (bare, whole):
        ledger = Ledger()
        ledger.note(message, UP)
        counted.append(ledger.bytes[Kind.FORWARD.name, UP])
    assert counted == [len(frames.encode(message)) for message in (bare, whole)]
    assert counted[1] - counted[0] >= mask.numel()


@pytest.mark.parametrize("guard", ALL_GUARDS, ids=repr)
def test_every_guard_reads_a_masked_sequence_or_refuses_in_one_sentence(guard):
    plan = plan_of(guard=guard)
    if any(isinstance(one, (*MAPS_ONLY, *PICTURES_ONLY)) or one.mixes_samples for one in guard.stages()):
        with pytest.raises(ValueError, match=r"needs|codes pictures|beside it"):
            cut_shapes(plan, TEXTS)
        return
    if any(isinstance(one, Adversarial) and one.attribute is None for one in guard.stages()):
        with pytest.raises(ValueError, match="numbers of words are names, not amounts"):
            split_and_whole(plan, TEXTS)
        return
    client, server, twin, twin_server = split_and_whole(plan, TEXTS)
    for batch in batches(1, size=max(6, 2 * guard.least_batch)):
        learn(client, batch)
        learn_whole(twin, twin_server, batch)
    ours, theirs = states(client, server), states(twin, twin_server)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)


def test_samples_that_share_rows_are_refused_also_without_a_plan():
    head, guard = MaskedNet().head((LENGTH,)), KAnonymous(k=2).build((LENGTH, 8), 0, 1, TEXTS)
    with pytest.raises(ValueError, match="mask beside it fits none"):
        UShapedNetwork(head, guard=guard).send(batches(1)[0])


@pytest.mark.parametrize(("rows", "grad", "words"), [(3, False, "it has 3 rows"), (6, True, "detach it")])
def test_what_goes_beside_has_a_row_for_each_sample_and_no_gradient(rows, grad, words):
    with pytest.raises(ValueError, match=words):
        features(Features(torch.ones(6, 2), {"mask": torch.ones(rows, 2, requires_grad=grad)}))


def test_a_network_cut_at_its_input_cannot_send_a_mask():
    with pytest.raises(ValueError, match="the tail at home lacks it"):
        Whole(net=MaskedNet()).head((LENGTH,))
    assert Whole(net=MaskedNet(pad="fixed")).head((LENGTH,)) is not None


def test_sent_once_a_mask_is_kept_with_its_rows():
    """In the U shape the client's tail would lack it in the epochs in which nothing is sent."""
    once = {"roles": SendOnce(split=1), "epochs": 4, "batch_size": 6, "clients": 2}
    with pytest.raises(ValueError, match="later epochs the client's tail would lack the mask"):
        cut_shapes(plan_of(**once), TEXTS)
    run, resumed = (
        LocalRun(plan_of(**once, protocol=Vanilla()), text_parts(24), classes=TEXTS.classes) for _ in range(2)
    )
    rounds = iter(range(100))
    run.train(stop=lambda: run.progress.epoch == 2 and next(rounds) == 1)
    tensors, facts = run.snapshot()
    assert any(name.endswith("beside.mask") for name in tensors)
    resumed.restore({name: t.clone() for name, t in tensors.items()}, facts)
    run.train()
    resumed.train()
    ours, theirs = run.tensors(), resumed.tensors()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
