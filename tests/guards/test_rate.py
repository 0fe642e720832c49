"""RateBottleneck: whole numbers, what they cost, and bytes that are what was promised."""

import sys
from math import log2, prod

import pytest
import torch
from scipy.stats import norm
from toys import TASK, TinyNet, batches, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, Chain, Gaussian, NoGuard, RateBottleneck, TopK
from cutlayer.guards.parts.latents import _Between, _bits
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn
from cutlayer.wire import frames
from cutlayer.wire.codecs.latents import LIMIT, SMALLEST, STEP, TABLES, UNIT, Latents

CUT = (4, 9, 7)
Z = torch.randn(6, *CUT, generator=generator(3)).relu() * 3
STEP_ = Batch(Z, torch.zeros(6).long(), seed=1)
FORMS = [
    RateBottleneck(channels=3, width=8),
    RateBottleneck(channels=5, stride=3, hyper=0, width=8),
    RateBottleneck(channels=4, stride=1, hyper=4, coarse=3, width=8),
]
forms = pytest.mark.parametrize("guard", FORMS, ids=repr)


def built(guard, task=TASK):
    return guard.build(CUT, 1, 2, task)


@forms
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_whole_numbers_leave_and_come_out_of_their_bytes(guard, mode):
    module = getattr(built(guard), mode)()
    seen = module(Z, STEP_).seen.detach()
    assert tuple(seen.shape[1:]) == guard.out_shape(CUT)
    assert torch.equal(seen, seen.round()) and len(seen.unique()) > 2 and seen.abs().max() <= LIMIT
    data = module.packed.encode()
    assert len(data) == module.packed.size() < 4 * seen.numel()
    back = Latents().decode(memoryview(bytes(data)), seen.dtype, tuple(seen.shape))
    # Bit for bit: a -0.0 here would be a 0.0 there.
    assert torch.equal(back.view(torch.int32), seen.contiguous().view(torch.int32))
    message = Message(Kind.FORWARD, 0, 0, {"z": seen}, {"z": module.packed})
    assert len(frames.encode(message)) == frames.size(message)


@forms
def test_training_and_inference_send_the_same(guard):
    module = built(guard)
    training = module.train()(Z, STEP_).seen
    with torch.no_grad():
        assert torch.equal(module.eval()(Z, STEP_).seen, training)


def test_bits_are_those_of_a_rounded_normal_distribution():
    numbers = torch.tensor([0.0, 0.3, -1.0, 4.0, -25.0], dtype=torch.float64)
    tables = torch.tensor([0.0, 21.5, 40.0, 63.0, 50.0], dtype=torch.float64)
    spreads = [SMALLEST * 2.718281828459045 ** (STEP * float(t)) for t in tables]
    expected = [
        -log2(norm.cdf(float(y) + 0.5, scale=s) - norm.cdf(float(y) - 0.5, scale=s))
        for y, s in zip(numbers, spreads, strict=True)
    ]
    torch.testing.assert_close(_bits(numbers, tables), torch.tensor(expected, dtype=torch.float64))


def test_bits_stay_numbers_with_gradients_however_far_out():
    """(y/σ)²/2 nats, about: a plain difference of distribution functions would be log 0 from seven spreads on."""
    for dtype, far in ((torch.float32, 100.0), (torch.float64, 1000.0)):
        y = torch.tensor([far], dtype=dtype, requires_grad=True)
        t = torch.tensor([0.0], dtype=dtype, requires_grad=True)
        bits = _bits(y, t)
        bits.sum().backward()
        nats = ((far - 0.5) / SMALLEST) ** 2 / 2
        assert float(bits.detach()) == pytest.approx(nats / 0.6931, rel=0.01)
        assert y.grad > 0 and t.grad < 0 and torch.isfinite(y.grad) and torch.isfinite(t.grad)


def test_spreads_that_left_the_tables_can_come_back_but_go_no_further():
    t = torch.tensor([-3.0, -3.0, 20.0, 70.0, 70.0], requires_grad=True)
    inside = _Between.apply(t)
    assert inside.tolist() == [0, 0, 20, TABLES - 1, TABLES - 1]
    (inside * torch.tensor([1.0, -1.0, 5.0, 1.0, -1.0])).sum().backward()
    assert t.grad.tolist() == [0, -1, 5, 1, 0]  # descent adds -grad


@forms
def test_the_rate_that_is_learnt_is_near_the_bytes_that_are_counted(guard):
    z = torch.randn(64, *CUT, generator=generator(4)).relu() * 3
    module = built(guard)
    with torch.no_grad():  # spreads that fit: a share below 2^-20 is rounded up, so what fits badly is coded better
        module.encoder.weight_moved.fill_(-0.45)  # of 4 tables a hyper-latent, 0.4 are left
    guarded = module(z, Batch(z, torch.zeros(64), seed=2))
    coded = 8 * (module.packed.size() - 16) / 64
    assert module.notes["bits a sample"] == pytest.approx(coded, rel=0.05)
    features = prod(CUT)
    assert float(guarded.penalty["rate"].detach()) == pytest.approx(module.notes["bits a sample"] / features)


def test_the_rate_is_per_feature_or_per_pixel_and_weighed():
    found = {}
    for per, weight in (("feature", 1.0), ("feature", 3.0), ("pixel", 1.0)):
        guard = RateBottleneck(channels=3, width=8, per=per, weight=weight)
        found[per, weight] = float(built(guard)(Z, STEP_).penalty["rate"].detach())
    assert found["feature", 3.0] == pytest.approx(3 * found["feature", 1.0])
    pixels, features = 12 * 12, prod(CUT)
    assert found["pixel", 1.0] * pixels == pytest.approx(found["feature", 1.0] * features)
    with pytest.raises(ValueError, match="must know the inputs"):
        RateBottleneck(per="pixel").build(CUT, 1, 2)


def test_hyper_latents_tell_spreads_as_the_codec_reads_them():
    """The whole-number map of the bytes is the network's map, up to rounding: within one table, 9 % of a spread."""
    guard = FORMS[2]
    encoder = built(guard).encoder
    with torch.no_grad():
        encoder.weight_moved.copy_(torch.randn(encoder.weight.shape, generator=generator(1)) / 4)
        encoder.base_moved.copy_(torch.randn(encoder.base.shape, generator=generator(2)) / 8)
    hyper = torch.randint(-3, 4, (2, 4, 3, 3), generator=generator(5))
    ours = encoder.spreads().tables(hyper.numpy().astype("i8"), 9, 7)
    soft = encoder.base[:, None, None] + torch.einsum("cg,nghw->nchw", encoder.weight, hyper.float())
    soft = soft.repeat_interleave(3, 2).repeat_interleave(3, 3)[..., :9, :7].clamp(0, TABLES - 1)
    # Half a table for the base, half for the sum, and four weights of at most 1/16 off times at most 3.
    assert (torch.from_numpy(ours.astype("f4")) - soft).abs().max() <= 1 + 4 * 3 / (2 * UNIT)


def test_gradients_pass_straight_through_the_rounding():
    module = built(RateBottleneck(channels=3, width=8, weight=0.0))
    z = Z.clone().requires_grad_()
    guarded = module(z, STEP_)
    weights = torch.randn(guarded.seen.shape, generator=generator(6))
    (guarded.seen * weights).sum().backward()
    other = Z.clone().requires_grad_()
    (module.encoder.analysis(other) * weights).sum().backward()
    assert torch.equal(z.grad, other.grad)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_first_batch_sets_the_size_of_the_numbers_and_no_later_one(size):
    """Of whatever size z is: numbers that all round to 0 would stay there."""
    module = built(FORMS[0])
    with torch.no_grad():
        module(Z * size, STEP_)
        assert not module.encoder.started, "prediction teaches nothing"
    soft = module.encoder.analysis
    module(Z * size, STEP_)
    assert float(soft(Z * size).std().detach()) == pytest.approx(1.0, rel=1e-3)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    module(Z * size * 7, STEP_)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_a_first_batch_of_nothing_sets_nothing():
    module = built(FORMS[0])
    with torch.no_grad():
        for parameter in module.encoder.analysis.parameters():
            parameter.zero_()
    module(Z, STEP_)
    assert not module.encoder.started


def test_noise_comes_from_the_step_and_the_secret_alone():
    def rate(private, seed):
        module = FORMS[0].build(CUT, 1, 2, TASK)
        module.private = private
        return float(module(Z, Batch(Z, STEP_.y, seed=seed)).penalty["rate"].detach())

    assert rate(2, 1) == rate(2, 1) != rate(2, 5)
    assert rate(2, 1) != rate(3, 1)


def test_learning_lowers_the_rate_and_a_heavier_weight_lowers_it_more():
    sent = {}
    for weight in (0.0, 5.0):
        plan = tiny_plan(guard=RateBottleneck(channels=3, weight=weight, width=8), client_optimizer=Adam(lr=0.01))
        client = build_client(plan, TASK, 0, build_server(plan.public(), TASK).handle)
        for batch in batches(40):
            learn(client, batch)
        sent[weight] = client.split.guard.packed.size()
    assert sent[5.0] < sent[0.0] / 2


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_a_run_through_bytes_is_the_run_and_its_bytes_are_the_ledgers(protocol):
    plan = tiny_plan(protocol=protocol, guard=RateBottleneck(channels=2, width=4), epochs=2, batch_size=8)
    counted = []

    def through_bytes(handle):
        def answer(message):
            frame = frames.encode(message)
            counted.append(len(frame))
            return handle(frames.decode(frame))

        return answer

    runs = [LocalRun(plan, tiny_parts(), classes=TASK.classes, wrap=wrap) for wrap in (lambda h: h, through_bytes)]
    for run in runs:
        run.train()
    ours, theirs = (run.tensors() for run in runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sum(counted) == sum(n for (kind, way), n in runs[0].ledger.bytes.items() if way == "up" and kind != "TURN")
    plain = LocalRun(tiny_plan(protocol=protocol, guard=NoGuard(), epochs=2, batch_size=8), tiny_parts(), classes=3)
    plain.train()
    kind = Kind.LOSS if protocol == Vanilla() else Kind.FORWARD
    assert runs[0].ledger.bytes[kind.name, "up"] < plain.ledger.bytes[kind.name, "up"] / 2


def test_numbers_that_are_none_leave_as_they_are_and_stop_the_run():
    module = built(FORMS[0])
    z = Z.clone()
    z[0, 0, 0, 0] = float("nan")
    assert module(z, STEP_).seen.isnan().any() and module.packed is None


def test_numbers_beyond_the_tables_are_cut_off():
    module = built(FORMS[0]).eval()
    seen = module(Z * 1e4, STEP_).seen.detach()
    assert seen.abs().max() == LIMIT
    assert torch.equal(
        Latents().decode(memoryview(bytes(module.packed.encode())), seen.dtype, tuple(seen.shape)), seen
    )


def test_the_server_is_not_told_how_bits_are_weighed():
    guard = RateBottleneck(channels=3, weight=0.7, per="pixel", hyper=2, coarse=3, width=8)
    assert repr(guard.public_part()) == "RateBottleneck(channels=3, stride=2, weight=1.0, hyper=0, width=8)"


def test_only_in_the_last_place_do_its_bytes_fit():
    module = built(Chain(RateBottleneck(channels=3, width=8), Gaussian(scale=0.1)))
    module(Z, STEP_)
    assert module.packed is None
    last = built(Chain(RateBottleneck(channels=3, width=8), WCC(weight=0.1)))
    last(Z, STEP_)
    assert last.packed.tag == Latents.tag
    with pytest.raises(ValueError, match="the zeros are gone"):
        Chain(TopK(share=0.1), RateBottleneck())


def test_cuts_that_are_no_maps_and_a_missing_coder_are_refused_before_anything_is_built(monkeypatch):
    with pytest.raises(ValueError, match="channels x height x width"):
        RateBottleneck().out_shape((40,))
    with pytest.raises(ValueError, match="at most 65535 a side"):
        RateBottleneck().out_shape((1, 70_000, 2))
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(ValueError, match=r"pip install 'cutlayer\[entropy\]'"):
        cut_shapes(tiny_plan(net=TinyNet(), guard=RateBottleneck()), TASK)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"channels": 0}, "channels is a whole number from 1 to 65535; got 0"),
        ({"channels": 2.0}, "channels is a whole number"),
        ({"stride": 4}, "stride is a whole number from 1 to 3; got 4"),
        ({"coarse": 0}, "coarse is a whole number from 1 to 3; got 0"),
        ({"hyper": 17}, "hyper is a whole number from 0 to 16; got 17"),
        ({"channels": 2, "hyper": 3}, "hyper is at most its channels, 2; got 3"),
        ({"width": 0}, "width is a whole number from 1 to 4096"),
        ({"weight": -1.0}, "weight is a weight, a number from 0 up; got -1.0"),
        ({"weight": float("nan")}, "weight is a weight"),
        ({"per": "byte"}, "bits per feature or per pixel; got 'byte'"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        RateBottleneck(**settings)
