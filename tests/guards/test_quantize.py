"""Quantize: grids, rounding, straight-through gradients, and the other three messages of a step."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from toys import TASK, TinyNet, batches, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.core.spec import spec
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Chain, LightSplit, NoGuard, Quantize, RandTopK, TopK
from cutlayer.nets.simple_cnn import SimpleCNN
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn
from cutlayer.wire import frames
from cutlayer.wire.codecs import BY_TAG

Z = torch.randn(6, 3, 4, 4, generator=generator(3))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 12])
def test_rows_stand_on_their_grids_and_no_value_moves_by_more_than_half_a_step(bits):
    seen, packed = Quantize(bits=bits).compress(Z)
    rows, before = seen.flatten(1), Z.flatten(1)
    step = (before.amax(1) - before.amin(1)) / (2**bits - 1)
    assert ((rows - before).abs() <= step[:, None] * 0.5001).all()
    assert all(len(row.unique()) <= 2**bits for row in rows)
    assert torch.equal(packed.ways[0].value().reshape(Z.shape), seen)
    assert packed.size() == 10 + 6 * 8 + -(-6 * 48 * bits // 8)


def test_the_signal_to_noise_ratio_is_that_of_uniform_rounding():
    z = torch.rand(64, 4096, generator=generator(0))
    for bits in (4, 8):
        error = Quantize(bits=bits).compress(z)[0] - z
        expected = 12 * (2**bits - 1) ** 2 * z.var()  # a uniform error of one step has variance step²/12
        assert float(z.var() / error.var()) == pytest.approx(float(expected), rel=0.05)


def test_stochastic_rounding_is_right_on_average_and_nearest_is_not():
    z = torch.rand(1, 64, generator=generator(1)).repeat(4000, 1)
    found = {
        rounding: Quantize(bits=2, rounding=rounding).compress(z, generator(2))[0].mean(0)
        for rounding in ("nearest", "stochastic")
    }
    assert (found["stochastic"] - z[0]).abs().max() < 0.02 < (found["nearest"] - z[0]).abs().max()


def test_constant_rows_single_numbers_and_numbers_that_are_none_go_as_they_are():
    flat = torch.full((3, 5), 2.5)
    assert torch.equal(Quantize(bits=1).compress(flat)[0], flat)
    for odd in (torch.tensor(1.5), torch.ones(4, 1), torch.tensor([[1.0, float("nan")]])):
        seen, packed = Quantize(bits=2).compress(odd)
        assert seen is odd and packed is None


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1, 2, 8, 9, 12, 16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_two_bytes_are_rounded_as_float32_is_and_come_back_bit_for_bit(dtype, bits, rounding):
    """Neither type holds 4,095 steps, float16 no 2^16, and a share of what stochastic rounding draws is 1 in them."""
    quantize = Quantize(bits=bits, rounding=rounding, entropy=bits <= 8)
    # From 1000 on, of both signs, half zeros, all alike; too small for a step in float16; few values.
    given = [1000 + Z, Z, Z.relu(), torch.full_like(Z, 0.3), 1e-5 * Z, TopK(share=0.1).compress(Z)[0]]
    for z in (one.to(dtype) for one in given):
        seen, packed = quantize.compress(z, generator(4))
        assert torch.equal(seen, quantize.compress(z.float(), generator(4))[0].to(dtype))
        assert not seen[z == 0].any()
        for way in packed.ways:
            data = way.encode()
            assert len(data) == way.size()
            back = BY_TAG[way.tag].decode(memoryview(data), dtype, z.shape)
            assert torch.equal(back.view(torch.int16), seen.view(torch.int16))


ENDS = [(dtype, share) for dtype in (torch.float32, torch.float16, torch.bfloat16) for share in (0.0, 0.3)]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1, 2, 4, 7, 8, 16])
@pytest.mark.parametrize(("dtype", "below"), ENDS, ids=str)
def test_rows_that_end_where_their_type_does_hold_no_infinity(dtype, below, bits, rounding):
    """The last level lies up to a step beyond, where there is a level at 0 or a step was rounded up."""
    for seed in range(40):
        z = (torch.rand(3, 20, dtype=torch.float64, generator=generator(seed)) * (1 + below) - below).clamp(max=1)
        z[:, :2] = torch.tensor([1.0, 0.0])
        z = (z * (0.7 * torch.finfo(dtype).max)).to(dtype)
        z[:, 0] /= 0.7
        assert torch.isfinite(z).all()
        assert torch.isfinite(Quantize(bits=bits, rounding=rounding).compress(z, generator(seed))[0]).all()


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_a_row_with_a_number_that_is_none_goes_as_it_is(bits):
    odd = [float("nan"), float("inf"), -float("inf")]
    for row in product([*odd, 0.0, 1.0, -2.0], repeat=3):
        given = torch.tensor([row, (0.0, 1.0, 2.0)])
        seen, packed = Quantize(bits=bits).compress(given)
        assert (packed is None and seen is given) == (not torch.isfinite(given).all())


def test_no_rows_are_no_error():
    for guard in (Quantize(bits=4), Quantize(bits=4, rounding="stochastic"), TopK(), RandTopK()):
        none = torch.empty(0, 3, 4)
        seen, packed = guard.compress(none, generator(0))
        assert seen.shape == none.shape
        frame = frames.encode(Message(Kind.FORWARD, 0, 0, {"z": seen}, {"z": packed} if packed else {}))
        assert frames.decode(bytes(frame))["z"].shape == none.shape


SPARSE = [Z, Z.abs(), -Z.abs(), 1e-40 * Z, 1e30 * Z]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1, 2, 3, 8, 16])
def test_zeros_stay_zeros_and_the_others_stay_within_the_grid(bits, rounding):
    for z in (TopK(share=0.1).compress(z)[0] for z in SPARSE):
        seen, packed = Quantize(bits=bits, rounding=rounding).compress(z, generator(4))
        assert not seen[z == 0].any() and not torch.signbit(seen[z == 0]).any()
        assert torch.equal(BY_TAG[packed.tag].decode(memoryview(packed.encode()), z.dtype, z.shape), seen)
        if bits > 1:  # levels beside 0 have to share two sides, so steps may be half as wide again
            step = (z.flatten(1).amax(1) - z.flatten(1).amin(1)) / (2**bits - 1)
            assert ((seen - z).abs().flatten(1) <= step[:, None] * 1.51 + 1e-38).all()


def test_rows_without_zeros_and_rows_from_zero_up_have_the_grid_they_always_had():
    for z in (Z, Z.relu()):
        rows = z.flatten(1)
        begin, step = rows.amin(1, True), (rows.amax(1, True) - rows.amin(1, True)) / 15
        expected = ((rows - begin) / step).round() * step + begin
        assert torch.equal(Quantize(bits=4).compress(z)[0].flatten(1), expected)


def test_gradients_pass_straight_through():
    module = Quantize(bits=2).build((3, 4, 4), 0, 0)
    z = Z.clone().requires_grad_()
    seen = module(z, Batch(Z, torch.zeros(6), seed=4)).seen
    weight = torch.randn(seen.shape, generator=generator(5))
    (seen * weight).sum().backward()
    assert torch.equal(z.grad, weight) and not torch.equal(seen, z)


def test_the_same_step_rounds_alike_and_another_does_not():
    module = Quantize(bits=2, rounding="stochastic").build((3, 4, 4), 0, 7)
    one, again, other = (module(Z, Batch(Z, torch.zeros(6), seed=seed)).seen for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


PROTOCOLS = [UShaped(), Vanilla(), Bypass()]
SMALL = {"compression": Compression(Quantize(bits=8), Quantize(bits=8, rounding="stochastic"))}


class ThroughBytes:
    """Every message encoded and decoded on its way, and the bytes counted."""

    def __init__(self):
        self.bytes = Counter()

    def __call__(self, handle):
        def answer(message):
            up = frames.encode(message)
            down = frames.encode(handle(frames.decode(up)))
            self.bytes[message.kind.name, "up"] += len(up)
            self.bytes[message.kind.name, "down"] += len(down)
            return frames.decode(down)

        return answer


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_four_messages_shrink_and_bytes_on_the_way_change_nothing(protocol):
    plan = tiny_plan(
        protocol=protocol, guard=Chain(LightSplit(ratio=2), Quantize(bits=4)), epochs=2, batch_size=8, **SMALL
    )
    runs = []
    for wrap in (lambda handle: handle, counting := ThroughBytes()):
        runs.append(LocalRun(plan, tiny_parts(), classes=TASK.classes, wrap=wrap))
        runs[-1].train()
    ours, theirs = (run.tensors() for run in runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    counted = {key: count for key, count in runs[0].ledger.bytes.items() if key[0] != "TURN"}
    assert counted == counting.bytes
    plain = LocalRun(replace(plan, guard=NoGuard(), compression=Compression()), tiny_parts(), classes=3)
    plain.train()
    for way in ("up", "down"):
        assert runs[0].ledger.per_sample(way) < plain.ledger.per_sample(way)


def test_what_comes_down_and_back_is_rounded_and_nothing_else():
    told = {}

    def listen(plan):
        server = build_server(plan.public(), TASK)
        heard = []

        def send(message):
            answer = server.handle(message)
            heard.append((message, answer))
            return answer

        learn(build_client(plan, TASK, 0, send), batches(1)[0])
        return heard

    for name, changes in {"plain": {}, "small": SMALL}.items():
        told[name] = listen(tiny_plan(net=TinyNet(norm="group"), **changes))
    (z, u), (du, dz) = told["small"]
    assert torch.equal(z["z"], told["plain"][0][0]["z"])
    exact = told["plain"][0][1]["u"]
    assert not torch.equal(u["u"], exact) and (u["u"] - exact).abs().max() <= (exact.amax() - exact.amin()) / 255
    for tensor in (u["u"], du["du"], dz["dz"]):
        assert all(len(row.unique()) <= 256 for row in tensor.flatten(1))


def test_ratios_at_a_cut_of_4096():
    """LightSplit(8), then four bits: more than 60 times fewer bytes in message 1; all four messages together 18."""
    z = torch.randn(64, 4096, generator=generator(0))
    guard = Chain(LightSplit(ratio=8), Quantize(bits=4))
    module = guard.build((4096,), 1, 2)
    seen = module(z, Batch(z, torch.zeros(64), seed=0)).seen
    assert module.packed.size() * 60 < z.numel() * 4
    eight = Quantize(bits=8).compress(seen)[1].size()
    down = Quantize(bits=8).compress(z[:, :512])[1].size()
    whole = 2 * z.numel() * 4 + 2 * 64 * 512 * 4  # z, dz of 4096; u, du of 512
    assert (module.packed.size() + eight + 2 * down) * 18 < whole


def test_settings_that_make_no_sense():
    for bits in (0, 17, 2.5):
        with pytest.raises(ValueError, match="bits is a whole number"):
            Quantize(bits=bits)
    with pytest.raises(ValueError, match="rounding is one of"):
        Quantize(rounding="up")
    with pytest.raises(ValueError, match="answers cannot be LightSplit"):
        Compression(answers=LightSplit(ratio=2))
    plan = Plan(net=SimpleCNN(), compression=Compression(Quantize(bits=8), TopK(share=0.1)))
    assert spec(repr(plan), "plans") == plan
