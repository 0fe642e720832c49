"""BF16: rounded to the nearest bfloat16, straight through, and half the bytes of every message it is used for."""

from collections import Counter

import pytest
import torch
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.compressor import Compression
from cutlayer.core.seeds import generator
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import BF16
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

Z = torch.randn(6, 3, 4, 4, generator=generator(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_rounds_to_the_nearest_and_to_even_between_two(dtype):
    z = (torch.randn(500, generator=generator(0)) * 1000).to(dtype)
    seen = BF16().compress(z)[0]
    assert seen.dtype == dtype and ((seen - z).abs() <= z.abs() * 2**-8).all() and not torch.equal(seen, z)
    between = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], dtype=dtype)
    assert BF16().compress(between)[0].tolist() == [1.0, 1 + 4 * 2**-8, -1.0]
    odd = torch.tensor([float("inf"), -float("inf"), -0.0, 1e-40], dtype=dtype)
    assert BF16().compress(odd)[0][:2].tolist() == odd[:2].tolist()
    assert BF16().compress(torch.tensor([float("nan")], dtype=dtype))[0].isnan().all()


def test_gradients_pass_straight_through():
    z = Z.clone().requires_grad_()
    seen = BF16().build((3, 4, 4), 0, 0)(z, Batch(Z, torch.zeros(6), seed=4)).seen
    weight = torch.randn(seen.shape, generator=generator(5))
    (seen * weight).sum().backward()
    assert torch.equal(z.grad, weight) and torch.equal(seen, Z.bfloat16().float())


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_every_message_takes_half_the_bytes(protocol):
    """Zeros behind a ReLU are left out already, so z gains less than the others."""

    def bytes_of(**changes):
        heard = Counter()

        def listen(message, handle):
            answer = handle(message)
            for one in (message, answer):
                for name, tensor in one.tensors.items():
                    if name in ("z", "u", "du", "dz"):
                        exact = torch.equal(tensor, tensor.bfloat16().to(tensor.dtype))
                        heard[name, exact] += 1
            return answer

        plan = tiny_plan(net=TinyNet(norm="group"), protocol=protocol, epochs=1, batch_size=8, **changes)
        run = LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=[listen])
        run.train()
        return run.ledger.per_sample("up") + run.ledger.per_sample("down"), heard

    (small, heard), (plain, _) = bytes_of(guard=BF16(), compression=Compression(BF16(), BF16())), bytes_of()
    assert small < 0.75 * plain
    assert {exact for _, exact in heard} == {True}
