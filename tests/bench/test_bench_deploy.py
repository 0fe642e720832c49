"""Benchmarks of a deployment: the ideal schedule they compare with, what they count, and that each of them runs."""

import random
from types import SimpleNamespace

import pytest
import torch
from toys import TASK, TinyNet

from cutlayer.bench import deploy as bench_deploy
from cutlayer.bench import link as bench_link
from cutlayer.bench import run as bench
from cutlayer.bench.deploy import ENTRIES, FEWEST, Piece, Staged, ideal, ideal_ahead
from cutlayer.bench.parties import Away, Here, scratch
from cutlayer.core.message import Kind
from cutlayer.training.batches import as_batch
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.link import Link
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.step import learn
from cutlayer.wire.frames import size

TICKS = Link(rate=8.0)  # a byte a second


def piece(**given):
    return Piece(**{**dict.fromkeys(Piece._fields, 0), **given})


# ------------------------------------------------------------------------------ the ideal schedule
def test_one_piece_takes_the_sum_of_its_stages_and_two_round_trips():
    link = Link(rate=8000.0, rtt=0.5)
    one = Piece(head=1, z=1000, forward=2, u=2000, tail=3, du=3000, backward=4, dz=4000, rest=5)
    assert ideal([one], link) == pytest.approx(1 + 2 + 3 + 4 + 5 + (1 + 2 + 3 + 4) + 2 * 0.5)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_where_only_the_link_takes_time_both_directions_overlap(count):
    """All z, then all du, fill the way up; then the last answer is left. In one piece: 4 x `total`."""
    total = 8 * 60
    pieces = [piece(**dict.fromkeys(("z", "u", "du", "dz"), total // count))] * count
    assert ideal(pieces, TICKS) == pytest.approx(2 * total + total // count)


def test_a_slow_server_is_never_idle_once_it_has_begun():
    pieces = [piece(head=1, forward=10, backward=20)] * 3
    assert ideal(pieces, Link()) == pytest.approx(1 + 3 * (10 + 20))


def by_the_clock(pieces, delay):
    """The same schedule, second by second: four resources with a queue each."""
    ways = ["client", "up", "server", "down", "client", "up", "server", "down", "client"]
    queues = {way: [] for way in ways}
    busy = dict.fromkeys(ways)  # what each is at, and how long it still takes
    coming = [(0, number, 0) for number in range(len(pieces))]
    now = last = 0
    while coming or any(queues.values()) or any(busy.values()):
        moved = True
        while moved:  # a stage of no length ends at once
            moved = False
            for one in sorted(entry for entry in coming if entry[0] <= now):
                coming.remove(one)
                queues[ways[one[2]]].append(one)
                moved = True
            for way, queue in queues.items():
                if busy[way] and busy[way][0] == 0:
                    _, number, stage = busy[way]
                    busy[way], moved = None, True
                    arrives = now + (delay if way in ("up", "down") else 0)
                    last = max(last, arrives)
                    if stage + 1 < len(ways):
                        coming.append((arrives, number, stage + 1))
                if busy[way] is None and queue:
                    queue.sort()
                    _, number, stage = queue.pop(0)
                    busy[way], moved = [pieces[number][stage], number, stage], True
        for way in queues:
            if busy[way]:
                busy[way][0] -= 1
        now += 1
    return last


@pytest.mark.parametrize("seed", range(20))
def test_the_schedule_is_that_of_a_clock(seed):
    draw = random.Random(seed)
    pieces = [Piece(*(draw.randrange(1, 9) for _ in Piece._fields)) for _ in range(draw.randrange(1, 6))]
    delay = draw.randrange(0, 7)
    assert ideal(pieces, Link(rate=8.0, rtt=2.0 * delay)) == by_the_clock(pieces, delay)


# -------------------------------------------------------------------------- steps that begin before others end
def test_one_step_has_nothing_to_be_ahead_of():
    one = Piece(head=1, z=3, forward=2, u=5, tail=3, du=1, backward=4, dz=4, rest=5)
    assert ideal_ahead(one, Link(rate=8.0, rtt=3.0), 1) == ideal([one], Link(rate=8.0, rtt=3.0))


def test_each_step_more_waits_for_one_round_trip():
    assert [ideal_ahead(piece(), Link(rtt=1.0), steps) for steps in (1, 2, 10)] == [2.0, 3.0, 11.0]


def test_the_next_batch_goes_up_while_the_gradient_comes_down():
    """The second z leaves behind du (12) and is up (18) before dz is down (23): all that it waits for is its u."""
    one = piece(head=1, z=6, u=2, tail=1, du=2, backward=3, dz=8)
    assert ideal_ahead(one, TICKS, 1) == 1 + 6 + 2 + 1 + 2 + 3 + 8
    assert ideal_ahead(one, TICKS, 2) == (1 + 6 + 2 + 1 + 2 + 3 + 8) + 2 + 1 + 2 + 3 + 8


def test_whoever_computes_all_the_time_gains_nothing():
    one = piece(head=4, tail=3, rest=2)
    assert ideal_ahead(one, Link(), 5) == 5 * ideal([one], Link())


def test_stages_are_those_of_the_step_and_sizes_those_of_its_frames():
    plan = Plan(
        net=TinyNet(), batch_size=8, micro_batches=4, epochs=1, local_steps=0, val_share=0.0, private_seed=1,
        client_optimizer=SGD(), server_optimizer=SGD(),
    )  # fmt: skip
    staged = Staged(plan, TASK, 3)
    seen = []
    handle = staged._handle
    staged._handle = lambda message: seen.append((message, handle(message))) or seen[-1][1]
    took = sum(staged.step() for _ in range(2))
    (first, second) = staged.found
    for found, asked in ((first, seen[:8]), (second, seen[8:])):
        for number, one in enumerate(found):
            (forward, u), (backward, dz) = asked[number], asked[4 + number]
            assert (forward.kind, backward.kind) == (Kind.FORWARD, Kind.BACKWARD)
            assert (one.z, one.u, one.du, one.dz) == tuple(map(size, (forward, u, backward, dz)))
    computed = sum(one.head + one.forward + one.tail + one.backward + one.rest for one in [*first, *second])
    assert computed == pytest.approx(took, abs=1e-6)  # no time is lost between stages, and none is counted twice


# --------------------------------------------------------------------------------- the benchmarks
@pytest.mark.campaign
def test_a_run_between_processes_is_stepped_and_ends_with_the_same_weights():
    plan = bench_deploy.plan_of(TinyNet(), batch_size=8)
    with scratch() as folder:
        away, here = Away(plan, TASK, 4, folder), Here(plan, TASK, 4)
        for done in range(1, 4):
            assert away.site.party.network.steps == done  # nobody goes on unasked
            away.step()
        away.end()
        for _ in range(4):
            here.step()
        bench_deploy._refuse_other_weights(away, here)
        assert away.site.party.network.steps == 4
        next(here.run.networks[0].split.parameters()).data.add_(1)
        with pytest.raises(RuntimeError, match="weights of the two runs differ"):
            bench_deploy._refuse_other_weights(away, here)


def test_what_crosses_is_what_was_asked_for():
    """z and dz of 1 MiB, u and du of an eighth, whatever the codecs think of them."""
    plan, task = bench_deploy._straight()
    server = build_server(plan.public(), task)
    sizes = []

    def count(message):
        answer = server.handle(message)
        sizes.extend([size(message), size(answer)])
        return answer

    client = build_client(plan, task, 0, count)
    parts = bench_deploy.synthetic(plan, task, 1)
    learn(client, as_batch(parts.private, torch.arange(plan.batch_size)))
    wanted = [1 << 20, 1 << 17, 1 << 17, 1 << 20]
    assert len(sizes) == 4
    assert all(count <= found <= count + 64 for count, found in zip(wanted, sizes, strict=True))


@pytest.mark.parametrize("tls", [False, True])
def test_step(tls):
    found = bench_deploy._grpc_step(1, tls=tls)
    assert found.goal == ">= 0.667" and found.ratio > 0


def test_train():
    found = bench_deploy._grpc_train(TinyNet(), TASK, 1, goal=0.5)
    assert found.value > 0 and found.ratio > 0


def test_overhead_is_within_its_goal():
    """Bytes are counted, not timed: this one holds anywhere."""
    found = bench_deploy._wire_overhead(4)
    assert 0 < found.value <= 0.3
    assert 1 < found.ratio < 1.01


def test_frames_are_counted_on_their_way():
    away, sent = Away.__new__(Away), []
    away.frames, away.site = 0, SimpleNamespace(channel=SimpleNamespace(send=sent.append, receive=lambda: b"abc"))
    away._count_frames()
    away.site.channel.send(b"12345")
    assert (sent, away.site.channel.receive(), away.frames) == ([b"12345"], b"abc", 8)


def test_idle(monkeypatch):
    assert 0 <= bench_deploy._idle(0.1).value < 1
    looked = []
    monkeypatch.setattr(bench_deploy, "_idle", looked.append)
    bench_deploy.idle(quick=True)
    bench_deploy.idle(quick=False)
    assert looked[0] < 1 < looked[1]


def test_pipeline():
    found = bench_deploy._pipeline(1, Link(rate=200e6, rtt=0.002))
    assert found.ratio > 0 and found.value > 0


def test_pipeline_ahead():
    found = bench_deploy._pipeline_ahead(1, Link(rate=200e6, rtt=0.002))
    assert found.ratio > 0 and found.value > 0 and "waits for each gradient" in found.unit


def test_they_are_listed_and_left_out_where_grpc_is_missing(monkeypatch):
    assert ENTRIES.items() <= bench.ENTRIES.items()
    monkeypatch.setattr(bench_deploy, "installed", lambda: False)
    assert bench.run(list(ENTRIES), quick=True) == []


def test_rounds_leave_the_first_ones_out():
    times = iter([100.0] * FEWEST + [1.0, 2.0, 9.0])
    assert bench_deploy.rounds_of([lambda: next(times)], 3) == [2.0]


@pytest.mark.campaign
def test_the_benchmarks_of_a_slow_link_run_and_agree_on_what_crosses():
    """Few steps: figures of this size say nothing, but every party ends and every ratio is one."""
    worth = bench_link._worth(1, Link(rate=200e6, rtt=0.002))
    assert worth is None or (worth.ratio > 0 and "times fewer bytes" in worth.unit)
    model = bench_link._model(1, Link(rate=200e6, rtt=0.002))
    assert model is None or all(name in model.unit for name in ("raw floats", "labels travel", "compressed"))
    cost = bench.codec_cost(quick=True)
    assert cost.value > 0 and "quantising" in cost.unit


def test_what_is_squeezed_takes_four_bits_in_all_four_messages():
    plan = bench_link.squeezed(bench_deploy.plan_of(TinyNet()))
    assert repr(plan.guard) == "Chain(LightSplit(ratio=8), Quantize(bits=4))"
    assert plan.compression.answers.bits == plan.compression.gradients.bits == 4
