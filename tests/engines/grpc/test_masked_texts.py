"""Texts with a mask beside z, between machines: the run of one process, and no message without its mask."""

from dataclasses import replace

import pytest
import torch
from masked import TEXTS, MaskedNet, batches, text_parts
from rehearsal import refuse_other_counts, refuse_other_weights, rehearse, undisturbed
from toys import tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.guards import LightSplit
from cutlayer.nets import TextEncoder
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Bypass, Vanilla
from cutlayer.training.step import learn


def plan(**changes):
    return tiny_plan(**{"net": MaskedNet(), "epochs": 2, "batch_size": 6, "clients": 3, **changes})


PLANS = {
    "U-shaped, guarded": plan(guard=LightSplit(ratio=4)),
    "a fused wave": plan(rounds=Wave(fused=True)),
    "SplitFed": plan(rounds=SplitFed(version=2), epochs=1),
    "SplitFed, vanilla": plan(rounds=SplitFed(), protocol=Vanilla()),
    "unequal depths": plan(
        net=TextEncoder(layers=3, width=8, at=(1, 2), vocabulary=TEXTS.vocabulary), shared_client_network=False
    ),
    "bypass, in pieces": plan(protocol=Bypass(), micro_batches=2),
}
ALWAYS = ("a fused wave", "SplitFed")
marked = [pytest.param(one, id=n, marks=() if n in ALWAYS else pytest.mark.campaign) for n, one in PLANS.items()]


@pytest.mark.parametrize("plan", marked)
def test_over_sockets_as_in_one_process(plan, tmp_path):
    local = undisturbed(plan, text_parts())
    run = rehearse(plan, tmp_path, parts=text_parts())
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert run.results["server"]["refused"] == {}


def changed(message, **tensors):
    kept = {name: t for name, t in {**message.tensors, **tensors}.items() if t is not None}
    return replace(message, tensors=kept)


@pytest.mark.parametrize(
    ("why", "spoilt"),
    [
        ("shape", lambda mask: None),
        ("shape", lambda mask: mask[:, 1:]),
        ("shape", lambda mask: mask[1:]),
        ("dtype", lambda mask: mask.float()),
    ],
)
def test_a_message_without_its_mask_is_refused(why, spoilt):
    one, heard = plan(), []
    server = build_server(one.public(), TEXTS)
    client = build_client(one, TEXTS, 0, lambda message: (heard.append(message), server.handle(message))[1])
    learn(client, batches(1)[0])
    validator = MessageValidator(one.public(), TEXTS)
    validator.open(Message(Kind.WEIGHTS, 0, 0, {"turn": torch.tensor([0, 0, 1, 0])}))
    validator.check(heard[0], 0)
    with pytest.raises(Refused) as refused:
        validator.check(changed(heard[0], **{"beside.mask": spoilt(heard[0]["beside.mask"])}), 0)
    assert refused.value.name == why
