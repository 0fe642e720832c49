"""Gate: so many bits a sample whatever it is given, gradients straight through, a budget that is kept."""

from math import ceil, prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from toys import TASK, batches, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.guards import WCC, Chain, Gate, Quantize
from cutlayer.guards.gate import HEADER, LEAST_ROWS
from cutlayer.training import Frozen, SendOnce
from cutlayer.training.build import build_client, build_server
from cutlayer.training.step import learn
from cutlayer.wire import frames

CUT = (4, 5, 5)
FORMS = [
    Gate(numbers=5, bits=1),
    Gate(numbers=7, bits=3),
    Gate(numbers=3, bits=8),
    Gate(numbers=5, bits=2, budget=0),
    Gate(numbers=5, bits=2, rounding="stochastic"),
]
forms = pytest.mark.parametrize("guard", FORMS, ids=repr)


def built(guard, shape=CUT):
    return guard.build(shape, 1, 2, TASK)


def step(z, seed=1):
    return Batch(z, torch.arange(len(z)) % TASK.classes, seed=seed)


def hostile():
    """Activations that would carry more than a code: a number in each float, extremes, one row that stands out."""
    draw = generator(4)
    yield torch.randn(64, *CUT, generator=draw)
    yield torch.randn(64, *CUT, generator=draw) * 1e30
    yield torch.randn(64, *CUT, generator=draw) * 1e-30
    yield torch.arange(64 * prod(CUT)).reshape(64, *CUT).float()
    yield torch.full((64, *CUT), 3.0)
    spike = torch.zeros(64, *CUT)
    spike[0, 0, 0, 0] = 3e38
    yield spike


# ------------------------------------------------------------------ the law: at most B bits a sample
@forms
@pytest.mark.parametrize("training", [True, False])
def test_every_number_that_leaves_is_one_of_its_few_levels_whatever_comes(guard, training):
    levels = set()
    for z in hostile():
        seen = built(guard).train(training)(z, step(z)).seen
        assert seen.shape == (64, guard.numbers) and torch.isfinite(seen).all()
        levels |= set(seen.flatten().tolist())
    assert len(levels) <= 2**guard.bits
    assert all(guard.claims(CUT)[0].text.count(word) == 1 for word in (f"{guard.bits_of_a_sample} bits", "du"))


@forms
def test_a_message_is_as_many_bytes_as_its_bits_and_comes_back_whole(guard):
    for z in hostile():
        module = built(guard)
        seen = module(z, step(z)).seen.detach()
        assert module.packed.size() <= HEADER + ceil(guard.bits_of_a_sample * len(z) / 8)
        frame = frames.encode(Message(Kind.FORWARD, 0, 0, {"z": seen}, {"z": module.packed}))
        assert torch.equal(frames.decode(frame)["z"], seen)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_lost_numbers_show_and_tell_nothing_of_which(bad):
    z = torch.randn(6, *CUT, generator=generator(3))
    z[2, 1] = bad
    module = built(Gate(numbers=5)).eval()  # in training all rows of the batch are lost with it
    assert module(z, step(z)).seen.isnan().all() and module.packed is None


def test_entropy_coding_keeps_the_law_and_is_never_longer():
    pytest.importorskip("constriction")
    z = torch.randn(64, *CUT, generator=generator(3))
    plain, coded = built(Gate(numbers=5)), built(Gate(numbers=5, entropy=True))
    one, other = plain(z, step(z)).seen, coded(z, step(z)).seen
    assert torch.equal(one, other) and coded.packed.size() <= plain.packed.size()


# ------------------------------------------------------------------ how it rounds
def test_codes_are_the_nearest_levels_and_gradients_pass_inside_the_reach():
    guard = Gate(numbers=1, bits=2, budget=0)
    module = built(guard, (1,))
    module.encoder, module.standardise = torch.nn.Flatten(), torch.nn.Identity()
    z = torch.tensor([[-9.0], [-1.6], [-0.9], [-0.1], [0.0], [0.4], [1.1], [5.0]], requires_grad=True)
    seen = module(z, step(z)).seen
    assert seen.flatten().tolist() == [-1.5, -1.5, -0.5, -0.5, 0.5, 0.5, 1.5, 1.5]
    seen.sum().backward()
    assert z.grad.flatten().tolist() == [0, 1, 1, 1, 1, 1, 1, 0]


def test_stochastic_rounding_is_right_on_average_and_a_function_of_the_step():
    module = built(Gate(numbers=1, bits=2, budget=0, rounding="stochastic"), (1,))
    module.encoder, module.standardise = torch.nn.Flatten(), torch.nn.Identity()
    z = torch.full((4000, 1), 0.2)
    seen = module(z, step(z)).seen
    assert set(seen.flatten().tolist()) == {-0.5, 0.5} and abs(float(seen.mean()) - 0.2) < 0.05
    assert torch.equal(seen, module(z, step(z)).seen) and not torch.equal(seen, module(z, step(z, 2)).seen)


def test_each_bit_is_used():
    """Standardised numbers fall on both sides of every border: a code that is always the same would be cheap."""
    z = torch.randn(256, *CUT, generator=generator(3))
    seen = built(Gate(numbers=6, bits=1))(z, step(z)).seen
    assert ((seen > 0).float().mean(0) - 0.5).abs().max() < 0.25


# ------------------------------------------------------------------ what it costs
@pytest.mark.parametrize("shape", [(64, 8, 8), (4, 5, 5), (20, 12, 12), (6, 40), (40, 6), (48,)])
@pytest.mark.parametrize("budget", [0, 20_000, 500_000, 4_200_000])
def test_the_encoder_keeps_its_budget_and_counts_itself_right(shape, budget):
    guard = Gate(numbers=4, budget=budget)
    module = built(guard, shape).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        module.encoder(torch.zeros(1, *shape))
    macs = counted.get_total_flops() // 2
    assert macs == guard.multiply_accumulates(shape)
    assert macs <= max(budget, 4 * prod(shape))  # no encoder is less than one linear layer


def test_head_and_gate_stay_within_twice_the_head_of_resnet18():
    head = 64 * 3 * 49 * 16 * 16 + 2 * 64 * 64 * 9 * 8 * 8  # 7x7 at half the side, one block at a quarter
    assert Gate().multiply_accumulates((64, 8, 8)) <= head


def test_the_server_builds_its_lift_from_what_it_may_know():
    guard = Chain(Gate(numbers=5, budget=0, rounding="stochastic", home=0.3), WCC(weight=0.01))
    assert repr(guard.public_part()) == "Gate(numbers=5, bits=2, home=1.0)"
    assert guard.public_part().lift(CUT, 1)(torch.randn(3, 5)).shape == (3, *CUT)


# ------------------------------------------------------------------ it learns
def test_a_network_behind_eight_bits_learns():
    guard = Gate(numbers=8, bits=1, hidden=32)
    plan = tiny_plan(guard=guard)
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    for one in batches(60, 24):
        found = learn(client, one)
    assert found["task"] < 0.5  # by chance: 1.1


def test_at_home_a_classifier_of_the_code_has_its_share_of_the_loss():
    z = torch.randn(8, *CUT, generator=generator(3))
    module, silent = built(Gate(numbers=5, home=0.5)), built(Gate(numbers=5))
    penalty = module(z, step(z)).penalty
    assert set(penalty) == {"Gate at home"} and float(penalty["Gate at home"].detach()) > 0
    assert not silent(z, step(z)).penalty and not module.eval()(z, step(z)).penalty
    penalty["Gate at home"].backward()
    assert any(float(weight.grad.abs().sum()) > 0 for weight in module.encoder.parameters())


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bits": 0}, "bits, of each number, are 1 to 8; got 0"),
        ({"bits": 9}, "are 1 to 8"),
        ({"numbers": 0}, "numbers is a whole number from 1 up"),
        ({"numbers": 2.0}, "numbers is a whole number"),
        ({"budget": -1}, "budget is a whole number from 0 up"),
        ({"rounding": "up"}, "nearest, stochastic"),
        ({"home": -1.0}, "home is the weight"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Gate(**wrong)


def test_a_gate_wider_than_the_cut_is_refused():
    with pytest.raises(ValueError, match=r"more numbers than the 100 of the cut \(4, 5, 5\)"):
        Gate(numbers=101).out_shape(CUT)


@pytest.mark.parametrize("guard", [Gate(numbers=5), Chain(Gate(numbers=5), WCC(weight=0.1))], ids=repr)
def test_a_batch_too_small_for_its_statistics_is_refused(guard):
    with pytest.raises(ValueError, match=f"needs {LEAST_ROWS} samples at a time"):
        tiny_plan(guard=guard, batch_size=LEAST_ROWS - 1)
    with pytest.raises(ValueError, match="in each micro-batch"):
        tiny_plan(guard=guard, batch_size=2 * LEAST_ROWS, micro_batches=4)
    assert tiny_plan(guard=guard, batch_size=16).least_batch == LEAST_ROWS  # a shorter last batch joins another


@pytest.mark.parametrize("roles", [Frozen(inherit=0), Frozen()], ids=repr)
def test_a_frozen_gate_that_was_never_trained_is_refused(roles):
    shared = bool(roles.inherit)  # frozen clients with heads of their own get nothing from the others, either
    guard = Chain(Gate(numbers=5), WCC(weight=0.1))
    with pytest.raises(ValueError, match="was never trained: take inherit=1 and one head for all"):
        tiny_plan(guard=guard, clients=4, roles=roles, shared_client_network=not shared)
    for fine in (Frozen(), Frozen(inherit=0, discard=True), SendOnce(home=0, split=1)):
        assert tiny_plan(guard=guard, clients=4, roles=fine, epochs=2)


def test_it_packs_so_no_other_compressor_follows():
    with pytest.raises(ValueError, match="packed"):
        Chain(Gate(), Quantize(bits=2))
