"""DCT: SciPy's transform in zig-zag order, SEAL with a cosine on the server, answers as sparse as the question."""

from math import prod

import numpy as np
import pytest
import scipy.fft
import torch
from test_seal import SHAPES, activations, walk
from toys import TASK, batches, split_and_whole, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.guards import DCT, SEAL, Chain, LightSplit
from cutlayer.guards.parts.periodic import sides
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.step import learn

shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.mark.parametrize(
    ("shape", "sent"), [((4, 5, 6), (4, 30)), ((6, 9), (54,)), ((13,), (13,)), ((2, 3, 5, 4), (2, 3, 20))]
)
def test_it_sends_a_row_of_coefficients_a_map(shape, sent):
    assert DCT().out_shape(shape) == sent


@pytest.mark.usefixtures("double")
@shapes
def test_what_leaves_are_scipys_coefficients_in_zigzag_order_then_zeros(shape):
    z = activations(shape)
    seen = DCT(energy=0.9).build(shape, 1, 2)(z, batches(1)[0]).seen
    height, width = sides(shape)
    order = list(walk(height, width))
    for X, sent in zip(z.reshape(-1, height, width).numpy(), seen.reshape(-1, height * width).numpy(), strict=True):
        Z = scipy.fft.dctn(X, type=2, norm="ortho")
        whole = np.array([Z[place] for place in order])
        count = int(np.searchsorted(np.cumsum(whole**2), 0.9 * (whole**2).sum())) + 1 if X.any() else 0
        np.testing.assert_allclose(sent[:count], whole[:count], atol=1e-12)
        assert not sent[count:].any()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("energy", [0.5, 0.7, 0.95, 1.0])
@shapes
def test_the_server_reads_what_seal_with_a_cosine_would_send(shape, energy):
    batch, outcomes = batches(1)[0], []
    g = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))
    for guard in (DCT(energy=energy), SEAL(energy=energy, wave="cosine")):
        z = activations(shape).requires_grad_()
        module = guard.build(shape, 1, 2)
        read = guard.lift(shape, 1)(module(z, batch).seen)
        read.backward(g)
        outcomes.append((read.detach(), z.grad, torch.tensor(module.notes["kept"])))
    for ours, seals in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, seals, atol=1e-12, rtol=0)


def test_the_answer_is_as_sparse_as_the_question():
    """Message 4 has zeros wherever message 1 has them."""
    client, *_ = split_and_whole(tiny_plan(guard=DCT()))
    crossed, send = [], client.remote._send

    def listen(message):
        answer = send(message)
        crossed.append((message, answer))
        return answer

    client.remote._send = listen
    for batch in batches(3):
        learn(client, batch)
    for (forward, _), (backward, answer) in zip(crossed[::2], crossed[1::2], strict=True):
        assert (forward.kind, backward.kind) == (Kind.FORWARD, Kind.BACKWARD)
        z, dz = forward["z"], answer["dz"]
        assert z.shape == dz.shape == (6, 4, 25)
        assert 0.2 < (z == 0).float().mean() < 1
        assert not dz[z == 0].any() and dz[z != 0].any()
        assert not any(torch.signbit(t[z == 0]).any() for t in (z, dz)), "-0.0 is no zero to a codec"


@shapes
def test_the_public_way_back_is_the_inverse(shape):
    guard, z = DCT(energy=1.0), activations(shape)
    seen = guard.build(shape, 1, 2)(z, batches(1)[0]).seen
    torch.testing.assert_close(guard.undo(shape, 1)(seen), z, atol=1e-5, rtol=0)
    assert not guard.lift(shape, 1).state_dict() and not guard.undo(shape, 1).state_dict(), "nothing to hand over"


def test_what_is_no_number_stays_so():
    z = activations((4, 5, 5))
    z[1, 2, 3, 3] = float("nan")
    seen = DCT().build((4, 5, 5), 1, 2)(z, batches(1)[0]).seen
    assert seen[1, 2].isnan().any() and seen[1, 3].isfinite().all()


def test_it_predicts_as_it_trains():
    module, z = DCT().build((4, 5, 5), 1, 2), activations((4, 5, 5))
    one, other = batches(2)
    assert torch.equal(module.train()(z, one).seen, module.eval()(z, other).seen)
    assert module(z[:0], other).seen.shape == (0, 4, 25)
    assert DCT().lift((4, 5, 5), 1)(torch.zeros(0, 4, 25)).shape == (0, 4, 5, 5)


def test_smooth_maps_cost_few_coefficients():
    """Energy compaction, the reason to send coefficients at all: 1/10 of them here, as cos says."""
    ramp = torch.linspace(1, 2, 16)
    z = (ramp[:, None] * ramp).expand(6, 3, 16, 16).contiguous()
    module = DCT(energy=0.99).build((3, 16, 16), 1, 2)
    seen = module(z, batches(1)[0]).seen
    assert module.notes["kept"] == (seen != 0).float().mean().item() < 0.1
    back = DCT().undo((3, 16, 16), 1)(seen)
    assert torch.nn.functional.cosine_similarity(back.flatten(1), z.flatten(1)).min() >= 0.99**0.5
    assert ">= 0.995" in DCT(energy=0.99).claim((3, 16, 16))


def test_a_projection_behind_it_would_undo_its_saving():
    with pytest.raises(
        ValueError, match=r"DCT\(energy=0.7\) drops coordinates, but LightSplit\(ratio=4\) fills them again"
    ):
        Chain(DCT(), LightSplit(ratio=4))
    assert Chain(LightSplit(ratio=2), DCT()).out_shape((4, 5, 5)) == (prod((4, 5, 5)) // 2,)


def test_all_clients_use_it_or_none():
    with pytest.raises(ValueError, match="the server undoes DCT"):
        cut_shapes(tiny_plan(guard=DCT(), clients=3, guarded_clients=1), TASK)
