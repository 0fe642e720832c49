"""Clients that keep unequally many layers of one network: whoever has more skips as many of the server's."""

import pytest
import torch
from fleet import refuse_other_end, same
from masked import TEXTS, text_parts
from toys import Here, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.features import features
from cutlayer.core.spec import spec
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit
from cutlayer.nets import TextDecoder, TextEncoder
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.schedule import Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Federated, Vanilla
from cutlayer.training.step import learn

SIZES = {"layers": 3, "width": 8, "heads": 2, "vocabulary": TEXTS.vocabulary}
X = torch.randint(1, TEXTS.vocabulary, (4, 7), generator=torch.Generator().manual_seed(0))


def plan(**changes):
    fields = {"net": TextEncoder(at=(1, 2), **SIZES), "clients": 3, "epochs": 1, "shared_client_network": False}
    return tiny_plan(**{**fields, "batch_size": 6, **changes})


@pytest.mark.parametrize("net", [TextEncoder, TextDecoder])
def test_a_deeper_client_and_the_rest_of_the_body_are_the_same_network(net):
    unequal, equal = net(at=(1, 2), **SIZES), net(at=1, **SIZES)
    assert spec(repr(unequal), "nets") == unequal
    shallow, deep, body = unequal.head_of(0, (7,)), unequal.head_of(1, (7,)), unequal.body((7,))
    own = dict(shallow.state_dict())
    first = "0." if net is TextDecoder else "blocks.0."
    more = {name: t for name, t in body.state_dict().items() if name.startswith(first)}
    deep.load_state_dict(own | {f"blocks.1.{name.removeprefix(first)}": t for name, t in more.items()})
    whole = equal.body((7,))
    whole.load_state_dict(body.state_dict())
    bare = equal.head((7,))
    bare.load_state_dict(own)
    for head, skips in ((shallow, 0), (deep, 1)):
        z, beside = features(head(X))
        assert beside["skips"].tolist() == [skips] * 4
        assert torch.equal(body(z, **beside), whole(bare(X)))
    both = [features(head(X)) for head in (shallow, deep)]
    together = body(torch.cat([one.z for one in both]), skips=torch.cat([one.beside["skips"] for one in both]))
    torch.testing.assert_close(together, whole(bare(X)).repeat(2, 1, 1))  # a fused wave of both


@pytest.mark.parametrize("changes", [{}, {"protocol": Vanilla(), "guard": LightSplit(ratio=2)}], ids=["U", "vanilla"])
def test_split_is_unsplit_for_clients_of_either_depth(changes):
    one = plan(**changes).with_secrets()
    for number in (0, 1):
        server, twin_server = (build_server(one.public(), TEXTS) for _ in range(2))
        client, twin = (build_client(one, TEXTS, number, server.handle) for _ in range(2))
        assert len(client.split.head.blocks) == 1 + number
        batch = Batch(X, torch.tensor([0, 1, 2, 0]), {}, seed=3)
        learn(client, batch)
        twin.split.train()
        twin_server.body.train()
        twin.split.loss(batch, Here(twin_server.body)).backward()
        twin.optimizer.step()
        twin_server.optimizer.step()
        same(client.split.state_dict(), twin.split.state_dict())
        same(server.body.state_dict(), twin_server.body.state_dict())


@pytest.mark.parametrize("rounds", [plan().rounds, Wave(fused=True)], ids=["turns", "fused"])
def test_they_learn_together_and_a_resumed_run_is_the_same(rounds):
    one = plan(rounds=rounds, epochs=2)
    run = LocalRun(one, text_parts(36), classes=TEXTS.classes)
    refuse_other_end(run, lambda: LocalRun(one, text_parts(36), classes=TEXTS.classes))
    assert [len(network.split.head.blocks) for network in run.networks] == [1, 2, 1]


def test_one_shape_crosses_and_beside_it_what_is_skipped():
    cut = cut_shapes(plan(), TEXTS)
    assert cut.z == (7, 8) and cut.beside["skips"].shape == () and cut.beside["skips"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shared_client_network": True}, "networks of unequal depth cannot be handed on or merged"),
        (
            {"protocol": Federated(), "shared_client_network": True},
            "every client has all layers",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        plan(**changes)


@pytest.mark.parametrize("at", [(), (1, 3), (0.5,), (-1, 1)])
def test_depths_that_are_none(at):
    with pytest.raises(ValueError, match="at is how many of the 3 layers the client keeps"):
        TextEncoder(at=at, **SIZES)
