"""KAnonymous: every row that leaves stands for k samples or more, and the gradient is that of the means."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TASK, samples, split_and_whole, tiny_parts, tiny_plan

from cutlayer.bench.run import textbook_mdav
from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind
from cutlayer.core.split import each
from cutlayer.data.base import Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, Chain, KAnonymous, LightSplit, NoGuard, NoPeek
from cutlayer.guards.base import Bound, Release, standing
from cutlayer.guards.clip import Clip
from cutlayer.guards.kanonymous import GROUPINGS
from cutlayer.guards.noise import Gaussian
from cutlayer.guards.parts.grouping import consecutive, mdav, mdav_within_classes, squared_distances
from cutlayer.training.enough import refuse_too_few
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn, predict
from cutlayer.wire import frames

CUT = (4, 5, 5)
EVERY = [KAnonymous(k=3, grouping=grouping) for grouping in GROUPINGS] + [KAnonymous(k=3, sketch=16)]
every_way = pytest.mark.parametrize("guard", EVERY, ids=repr)


def some(count, seed=0, shape=CUT, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=draw, dtype=dtype).relu()


def of(count, seed=0):
    """A batch to go with `count` rows: only its labels and its seed matter here."""
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.zeros(count, 1), torch.randint(3, (count,), generator=draw), seed=seed)


def guarded(guard, z, batch=None, private=2):
    return guard.build(tuple(z.shape[1:]), public=1, private=private)(z, batch or of(len(z)))


def as_sets(groups):
    return sorted(sorted(int(i) for i in group) for group in groups)


def groups_of(rows):
    return as_sets(torch.nonzero(rows == row).flatten() for row in rows.unique())


def check_parting(groups, count, k):
    assert sorted(i for group in groups for i in group) == list(range(count)), "each sample in exactly one group"
    assert all(k <= len(group) <= 2 * k - 1 for group in groups)


# ------------------------------------------------------------------ who shares a row
@settings(deadline=None, max_examples=150)
@given(
    points=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=60),
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=60),
    k=st.integers(2, 8),
)
def test_groups_have_k_to_2k_less_1_samples_however_many_are_alike(points, labels, k):
    count = len(points)
    if count < k:
        return
    z = torch.tensor(points, dtype=torch.float64)
    distances, y = squared_distances(z), np.array(labels[:count])
    for groups in (mdav(distances, k), mdav_within_classes(distances, y, k), consecutive(torch.arange(count), k)):
        check_parting(groups, count, k)
    for guard in (KAnonymous(k=k, grouping=grouping) for grouping in GROUPINGS):
        rows = guarded(guard, z, Batch(z, torch.from_numpy(y))).rows
        check_parting(groups_of(rows), count, k)


@pytest.mark.parametrize(
    ("count", "k"), [(5, 5), (9, 5), (10, 5), (14, 5), (15, 5), (16, 5), (64, 5), (100, 7), (41, 2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_mdav_is_the_textbooks(count, k, seed):
    z = some(count, seed, (40,))
    assert as_sets(mdav(squared_distances(z), k)) == as_sets(textbook_mdav(z, k))


def test_mdav_of_points_whose_groups_can_be_seen():
    """Two far pairs at the ends of a line and two in the middle."""
    line = torch.tensor([[0.0], [1.0], [10.0], [11.5], [30.0], [32.0]])
    assert as_sets(mdav(squared_distances(line), 2)) == [[0, 1], [2, 3], [4, 5]]


def test_distances_are_those_between_rows_far_from_the_origin_too():
    z = some(30, shape=(50,)) + 1e6
    exact = (z[:, None] - z[None]).square().sum(-1)
    torch.testing.assert_close(torch.from_numpy(squared_distances(z)), exact, rtol=0, atol=1e-6)
    assert (squared_distances(z.repeat(2, 1)) >= 0).all()


@every_way
def test_rows_that_are_no_numbers_do_not_break_the_groups(guard):
    z = some(20)
    z[3, 0, 0, 0], z[7, 1] = float("nan"), float("inf")
    check_parting(groups_of(guarded(guard, z).rows), 20, 3)


@pytest.mark.parametrize("grouping", ["mdav", "sorted"])
def test_the_order_of_the_batch_does_not_matter(grouping):
    z, order = some(50), torch.randperm(50, generator=torch.Generator().manual_seed(1))
    guard = KAnonymous(k=4, grouping=grouping)
    one, other = guarded(guard, z), guarded(guard, z[order])
    back = as_sets([order[i].item() for i in group] for group in groups_of(other.rows))
    assert back == groups_of(one.rows)
    rows = [sorted(map(tuple, seen.flatten(1).tolist())) for seen in (one.seen, other.seen)]
    torch.testing.assert_close(*map(torch.tensor, rows))


def test_random_groups_do_not_look_at_the_data():
    guard = KAnonymous(k=4, grouping="random")
    one, other = (guarded(guard, some(30, seed), of(30)) for seed in (1, 2))
    assert torch.equal(one.rows, other.rows) and not torch.equal(one.seen, other.seen)
    assert not torch.equal(one.rows, guarded(guard, some(30, 1), of(30, seed=1)).rows), "another step, other groups"
    assert not torch.equal(one.rows, guarded(guard, some(30, 1), of(30), private=3).rows), "the client's own secret"


def test_random_groups_are_uniform():
    """Two samples share a row equally often whoever they are: (3 - 1) / (12 - 1) of the time."""
    guard, z = KAnonymous(k=3, grouping="random").build((2,), 1, 2), torch.zeros(12, 2)
    together = torch.zeros(12, 12)
    for seed in range(600):
        rows = guard(z, Batch(z, z[:, 0], seed=seed)).rows
        together += rows[:, None] == rows[None]
    off = together[~torch.eye(12, dtype=torch.bool)] / 600
    assert abs(off.mean() - 2 / 11) < 1e-6 and (off - 2 / 11).abs().max() < 5 * (2 / 11 * 9 / 11 / 600) ** 0.5


def test_sorted_groups_are_neighbours_on_a_public_line():
    z = some(20)
    rows = guarded(KAnonymous(k=5, grouping="sorted"), z).rows
    direction = KAnonymous(k=5, grouping="sorted").build(CUT, public=1, private=77).direction
    ranked = rows[(z.flatten(1) @ direction).argsort()]
    assert (ranked.reshape(4, 5) == ranked.reshape(4, 5)[:, :1]).all()


@pytest.mark.parametrize("seed", range(10))
def test_replacing_one_sample_swaps_at_most_one_member_of_a_sorted_group(seed):
    """Insensitive: what the sqrt(m) 2C/k of replace-one rests on."""
    guard, z = KAnonymous(k=4, grouping="sorted"), some(42, seed)
    moved = z.clone()
    moved[5] = 3 * some(1, 100 + seed)[0]
    one, other = (guarded(guard, rows, of(42)).rows for rows in (z, moved))
    for row in range(10):
        before, after = (set(torch.nonzero(rows == row).flatten().tolist()) for rows in (one, other))
        assert len(before - after) == len(after - before) <= 1


# ------------------------------------------------------------------ groups of one class
def test_class_groups_have_one_label_where_there_are_enough():
    z, y = some(30), torch.arange(30) % 3
    rows = guarded(KAnonymous(k=4, grouping="class"), z, Batch(z, y)).rows
    assert all(len({int(y[i]) for i in group}) == 1 for group in groups_of(rows))


@pytest.mark.parametrize(
    ("sizes", "mixed"),
    [
        ((12, 8, 2, 2), {2, 3}),  # two rare labels make a group of their own
        ((12, 7, 1, 1), {1, 2, 3}),  # too few even together: they join the smallest label that has enough
        ((3, 3, 3, 3), {0, 1, 2, 3}),  # no label has enough
        ((12, 8, 4, 4), set()),
    ],
)
def test_labels_that_are_rare_are_pooled(sizes, mixed):
    y = np.repeat(np.arange(4), sizes)
    groups = mdav_within_classes(squared_distances(some(len(y), shape=(40,))), y, 4)
    check_parting(groups, len(y), 4)
    assert {int(y[i]) for group in groups if len(set(y[group])) > 1 for i in group} <= mixed
    assert all(len(set(y[group])) == 1 for group in groups if not set(y[group].tolist()) <= mixed)


def test_without_labels_to_go_by_class_groups_are_mdavs():
    """In service there are no labels; those of a test set must not make its rows better."""
    z, guard = some(30), KAnonymous(k=4, grouping="class").build(CUT, 1, 2).eval()
    one, other = (guard(z, Batch(z, y)) for y in (torch.arange(30) % 3, torch.zeros(30).long()))
    assert torch.equal(one.rows, other.rows) and torch.equal(one.seen, other.seen)
    assert groups_of(one.rows) == as_sets(mdav(squared_distances(z.flatten(1)), 4))


def test_class_groups_need_one_label_a_sample():
    z = some(8)
    with pytest.raises(ValueError, match=r"one label a sample; these have the shape \(8, 5, 5\)"):
        guarded(KAnonymous(k=4, grouping="class"), z, Batch(z, torch.zeros(8, 5, 5)))


# ------------------------------------------------------------------ what leaves
@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_row_stands_for_k_samples_and_is_their_mean(guard, dtype):
    z = some(50, dtype=dtype)
    seen, penalty, rows, home = guarded(guard, z)
    restored = each(seen, rows)
    assert restored.shape == z.shape and seen.dtype == dtype and not penalty and home is None
    unique, times = restored.unique(dim=0, return_counts=True)
    assert len(unique) == len(seen) and times.min() >= guard.k and times.max() <= 2 * guard.k - 1
    for row in range(len(seen)):
        torch.testing.assert_close(seen[row], z[rows == row].mean(0))
    torch.testing.assert_close(restored.sum(0), z.sum(0))


@every_way
def test_it_is_the_same_in_evaluation_and_counts_the_groups_in_training(guard):
    z, module = some(23), guard.build(CUT, 1, 2)
    if guard.grouping != "class":
        trained, served = module.train()(z, of(23)), module.eval()(z, of(23))
        assert torch.equal(trained.seen, served.seen) and torch.equal(trained.rows, served.rows)
    seen, _, rows, _ = module.train()(z, of(23))
    lost = (z - each(seen, rows)).square().sum() / (z - z.mean(0)).square().sum()
    assert module.notes == {"groups": float(len(seen)), "unexplained": pytest.approx(lost.item())}


def test_neighbours_lose_less_than_strangers_and_a_sketch_little():
    z = some(200, shape=(6,)) @ torch.randn(6, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    lost = {}
    for guard in (KAnonymous(), KAnonymous(sketch=64), KAnonymous(grouping="random")):
        module = guard.build((400,), 1, 2)
        module(z, of(200))
        lost[repr(guard)] = module.notes["unexplained"]
    exact, sketched, strangers = lost.values()
    assert exact < 0.3 < 0.7 < strangers and exact < sketched < exact + 0.15
    # A random group of 5 keeps a fifth of the variance: 1 - (m - 1) / (n - 1).
    assert strangers == pytest.approx(1 - 39 / 199, abs=0.04)


def test_a_sketch_wider_than_the_cut_is_none():
    z = some(20)
    one, other = guarded(KAnonymous(k=3, sketch=128), z), guarded(KAnonymous(k=3), z)
    assert torch.equal(one.rows, other.rows)


def test_rows_leave_in_an_order_that_says_nothing():
    """MDAV starts with the outermost sample. If rows left as found, the first would be its group's."""
    z = some(30, shape=(8,))
    z[0] = 100.0
    places = {int(guarded(KAnonymous(k=3), z, of(30, seed)).rows[0]) for seed in range(40)}
    assert len(places) > 6
    first, again = (guarded(KAnonymous(k=3), z, of(30)).rows for _ in range(2))
    assert torch.equal(first, again), "a replayed step is the same step"


def test_nothing_of_it_is_in_the_state_that_a_relay_hands_on():
    assert all(not guard.build(CUT, 1, 2).state_dict() for guard in EVERY)


# ------------------------------------------------------------------ the gradient
@every_way
def test_the_gradient_is_that_of_the_means(guard):
    z = some(20).requires_grad_()
    weight = some(20, 5)  # per sample, as labels are
    module = guard.build(CUT, 1, 2)

    def loss(z):
        seen, _, rows, _ = module(z, of(20))
        return (each(seen, rows).square() * weight).sum(), rows

    value, rows = loss(z)
    value.backward()
    members = torch.stack([rows == row for row in rows]).double()  # written out: Σ over the group, over its size
    share = members / members.sum(1, keepdim=True)
    means = share @ z.detach().flatten(1)
    by_hand = share.T @ (2 * means * weight.flatten(1))
    torch.testing.assert_close(z.grad.flatten(1), by_hand)
    # And against differences: small steps leave the groups as they are.
    with torch.no_grad():
        for at in [(0, 0, 0, 0), (7, 3, 4, 4), (19, 1, 2, 3)]:
            step = torch.zeros_like(z)
            step[at] = 1e-5
            slope = (loss(z + step)[0] - loss(z - step)[0]) / 2e-5
            assert slope.item() == pytest.approx(z.grad[at].item(), rel=1e-6, abs=1e-8)


# ------------------------------------------------------------------ through the cut
def overhear(client):
    heard, send = [], client.remote._send
    client.remote._send = lambda message: (heard.append(message), send(message))[1]
    return heard


def feed(count, seed=0):
    pool = samples(count, seed)
    return Batch(pool.x, pool.y, seed=seed)


@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
@pytest.mark.parametrize("guard", [KAnonymous(k=3), Chain(LightSplit(ratio=4), KAnonymous(k=3))], ids=repr)
def test_the_frames_hold_one_row_a_group(protocol, guard):
    client, *_ = split_and_whole(tiny_plan(guard=guard, protocol=protocol))
    heard, batch = overhear(client), feed(20)
    learn(client, batch)
    first = frames.decode(bytes(frames.encode(heard[0])))
    sent = first["z"]
    assert len(sent.unique(dim=0)) == len(sent) <= 20 // 3
    if protocol == Vanilla():
        # The server has the labels and must know which row each belongs to: it learns the sizes of the groups too.
        assert first.kind is Kind.LOSS and set(first.tensors) == {"z", "y", "rows"}
        assert torch.equal(first["y"], batch.y) and first["rows"].shape == batch.y.shape
        assert first["rows"].bincount(minlength=len(sent)).min() >= 3
    else:
        # What comes back is repeated at home; the sizes of the groups never leave.
        assert first.kind is Kind.FORWARD and set(first.tensors) == {"z"}
        assert [len(message["du"]) for message in heard if message.kind is Kind.BACKWARD] == [len(sent)]
        client.split.train()
        restored = client.split.send(feed(20))
        assert restored.unique(dim=0, return_counts=True)[1].min() >= 3


@pytest.mark.usefixtures("double")
def test_vanilla_and_u_shaped_learn_the_same_from_the_same_weights():
    """The labels' rows are the only difference: the loss is the same mean over samples."""
    losses = []
    for protocol in (Vanilla(), UShaped()):
        client, server, *_ = split_and_whole(tiny_plan(guard=KAnonymous(k=3), protocol=protocol))
        tail = server.body.tail if protocol == Vanilla() else client.split.tail
        for number, parameter in enumerate(tail.parameters()):
            torch.nn.init.constant_(parameter, 0.1 * (number + 1))
            parameter.data += torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
        batch = feed(20)
        losses.append(learn(client, Batch(batch.x.double(), batch.y, seed=batch.seed))["task"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_members_of_a_group_get_one_answer_unless_something_stays_home():
    """U-shaped accuracy is at most the share of the commonest label in a group; a bypass can do better."""
    for protocol, answers in ((UShaped(), 6), (Bypass(), 20)):
        client, *_ = split_and_whole(tiny_plan(guard=KAnonymous(k=3), protocol=protocol))
        logits = predict(client, [feed(20)])
        assert len(logits.unique(dim=0)) == answers


def run_of(guard, private=40, batch_size=12, **changes):
    plan = tiny_plan(guard=guard, batch_size=batch_size, epochs=1, **changes)
    return LocalRun(plan, tiny_parts(private), classes=3)


@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
def test_a_last_batch_that_is_too_small_joins_the_one_before(protocol):
    run = run_of(KAnonymous(k=5), private=12 + 12 + 3, protocol=protocol)
    heard = overhear(run.networks[0])
    assert run.train() and run.progress.step == run.timetable.steps == 2
    rows = [len(message["z"]) for message in heard if message.kind in (Kind.FORWARD, Kind.LOSS)]
    assert rows == [2, 3], "12 samples, then 15"
    assert run.progress.history[0]["groups"] == 2.5 and 0 < run.progress.history[0]["unexplained"] < 1


def test_a_last_batch_that_would_leave_as_one_row_joins_too():
    """BatchNorm on the server cannot train on a single row."""
    run = run_of(Chain(LightSplit(ratio=4, hidden=8), KAnonymous(k=5)), private=12 + 12 + 7)
    assert run.train() and run.progress.step == run.timetable.steps == 2


def test_inference_is_in_batches_of_the_size_of_training():
    run = run_of(KAnonymous(k=5))
    heard = overhear(run.networks[0])
    run.evaluate(samples(27, 9))
    assert [len(message["z"]) for message in heard] == [2, 3]
    assert all(message.kind is Kind.PREDICT for message in heard)


def test_it_saves_bytes_both_ways():
    guarded, plain = run_of(KAnonymous(k=4), private=48), run_of(NoGuard(), private=48)
    for run in (guarded, plain):
        run.train()
    for way in ("up", "down"):
        assert guarded.ledger.per_sample(way) < 0.4 * plain.ledger.per_sample(way)


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 1}, "a whole number from 2 up; got 1"),
        ({"k": 2.5}, "got 2.5"),
        ({"k": "5"}, "got '5'"),
        ({"grouping": "kmeans"}, "one of mdav, random, sorted, class; got 'kmeans'"),
        ({"sketch": -1}, "a width such as 128, 0 for exact distances; got -1"),
        ({"sketch": 0.5}, "got 0.5"),
        ({"sketch": 128, "grouping": "random"}, "measures no distances, so leave sketch out"),
        ({"sketch": 128, "grouping": "sorted"}, "leave sketch out"),
    ],
)
def test_impossible_settings(settings, words):
    with pytest.raises(ValueError) as error:
        KAnonymous(**settings)
    assert words in str(error.value)


@every_way
@pytest.mark.parametrize("training", [True, False])
def test_fewer_than_k_samples_are_refused(guard, training):
    with pytest.raises(
        ValueError, match="sends 3 samples as one, and there are 2: collect at least 3 before sending"
    ):
        guard.build(CUT, 1, 2).train(training)(some(2), of(2))


def test_a_batch_below_k_is_refused_before_training():
    with pytest.raises(
        ValueError, match=r"KAnonymous\(k=9\) needs 9 samples at a time, .* take --batch-size 9 or more"
    ):
        cut_shapes(tiny_plan(guard=KAnonymous(k=9), batch_size=8), TASK)
    with pytest.raises(ValueError, match="take --batch-size 9 or more"):
        run_of(Chain(LightSplit(ratio=4), KAnonymous(k=9)), batch_size=8)


def test_a_client_below_k_is_refused_before_training():
    with pytest.raises(ValueError, match=r"client \d has 4 samples, KAnonymous\(k=5\) needs 5 .* or a smaller k"):
        run_of(KAnonymous(k=5), private=16, clients=4)
    assert run_of(KAnonymous(k=4), private=16, clients=4).train()


def test_a_guard_without_a_k_is_not_told_of_one():
    for guard in (NoPeek(alpha=0.1), Chain(NoPeek(alpha=0.1), LightSplit(ratio=4))):
        with pytest.raises(ValueError, match=r"needs 4 at a time: fewer clients, more data, or another guard$"):
            run_of(guard, private=12, clients=4)
    with pytest.raises(ValueError, match=r"more data, or a smaller k$"):
        run_of(Chain(KAnonymous(k=5), LightSplit(ratio=4)), private=16, clients=4)


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        ("the validation data", r": another --val-share \(0: none\), more data, or a smaller k$"),
        ("its validation data", r": another --val-share \(0: none\), more data, or a smaller k$"),
        ("the test data", ": more data to test on, or a smaller k$"),
    ],
)
def test_held_out_data_below_k_are_told_what_gets_more_of_them(whose, words):
    with pytest.raises(ValueError, match=f"{whose} has 3 samples, .*{words}"):
        refuse_too_few(tiny_plan(guard=KAnonymous(k=5)), {"client 0": 9, whose: 3})


def test_what_cannot_be_chained():
    with pytest.raises(ValueError, match="both mix the samples of a batch"):
        Chain(KAnonymous(k=2), LightSplit(ratio=4), KAnonymous(k=3))
    with pytest.raises(ValueError, match=r"put WCC\(weight=0.1\) before it"):
        Chain(KAnonymous(k=2), WCC(weight=0.1))
    assert Chain(WCC(weight=0.1), LightSplit(ratio=4), KAnonymous(k=7)).least_batch == 7


def test_evaluation_data_below_k_says_what_to_do():
    run = run_of(KAnonymous(k=5))
    with pytest.raises(ValueError, match="collect at least 5 before sending, or lower k"):
        run.evaluate(Parts(*[samples(4)] * 4).test)


# ------------------------------------------------------------------ what may be claimed
def test_the_claim_names_k():
    assert KAnonymous(k=7).claim(CUT) == (
        "7-anonymous within a batch: every row that leaves stands for at least 7 samples of the same client"
    )
    assert "KAnonymous: 5-anonymous" in Chain(LightSplit(ratio=4), KAnonymous()).claim(CUT)


@pytest.mark.parametrize("p", [1, 2])
def test_random_groups_move_by_2c_over_k(p):
    guard = KAnonymous(k=5, grouping="random")
    assert guard.bound(Bound(norm=3.0, moves=6.0, p=p)) == Bound(norm=3.0, moves=2 * 3.0 / 5, p=p)
    clipped = Chain(Clip(norm=3.0, p=p), guard).bound(Bound())
    assert clipped.moves == pytest.approx(2 * 3.0 / 5) and clipped.norm == 3.0 and clipped.p == p
    # Rows that one sample moves together may all be in one group, but are no further apart in their mean.
    assert guard.bound(Bound(moves=6.0, p=p, apart=False)).moves == 6.0


@pytest.mark.parametrize("p", [1, 2])
def test_no_replaced_sample_moves_random_groups_further(p):
    """The bound against rows of length C that try, opposite ones included; the opposite one reaches it."""
    guard, C, k, farthest = KAnonymous(k=5, grouping="random"), 3.0, 5, 0.0
    bound = guard.bound(Bound(norm=C, moves=2 * C, p=p))
    for count in (5, 25, 27):
        z = torch.nn.functional.normalize(some(count, shape=(7,)) - 0.5, p=p) * C
        for seed in range(5):
            neighbour = z.clone()
            neighbour[seed] = -z[seed]
            one, other = (guarded(guard, rows, of(count, seed)).seen for rows in (z, neighbour))
            assert one.norm(p=p, dim=1).max() <= bound.norm + 1e-9
            farthest = max(farthest, (one - other).norm(p=p).item())
    assert farthest == pytest.approx(2 * C / k) and farthest <= bound.moves + 1e-9


@pytest.mark.parametrize(
    ("grouping", "words"),
    [
        ("mdav", "depend on the data (replacing one of 256 samples changed 16 to 25 of 51 rows on average)"),
        ("sorted", "depend on the data (replacing one sample may move every row"),
        ("class", "follow the labels, which no noise hides"),
    ],
)
def test_other_groups_have_no_bound_and_say_why(grouping, words):
    bound = KAnonymous(grouping=grouping).bound(Bound(norm=3.0, moves=6.0))
    assert bound.moves is None and bound.norm == 3.0 and bound.release is None
    assert words in bound.why and "use grouping='random'" in bound.why


def test_without_clipping_random_groups_have_no_bound_either():
    bound = KAnonymous(grouping="random").bound(Bound())
    assert bound.moves is None and "put Clip(norm=...) before" in bound.why


def test_behind_noise_it_is_free_unless_it_looks_at_labels():
    released = Bound(release=Release("gaussian", 2.0), p=1)
    for grouping in ("mdav", "random", "sorted"):
        assert KAnonymous(grouping=grouping).bound(released) == released
    assert KAnonymous(grouping="class").bound(released).release is None


def test_noise_behind_random_groups_is_calibrated_to_them_and_refused_behind_others():
    """σ = μ-multiplier x 2C/k; the multiplier of (8, 1e-5) is 0.600 (Balle & Wang's formula)."""
    noise = Gaussian(epsilon=8, delta=1e-5)
    formal = Chain(Clip(norm=3.0), KAnonymous(k=5, grouping="random"), noise)
    assert "standard deviation 0.72" in formal.claim(CUT)
    assert formal.bound(Bound()).release.multiplier == pytest.approx(0.600, abs=1e-3)
    for grouping in ("mdav", "sorted", "class"):
        with pytest.raises(ValueError, match="cannot be calibrated: the groups of KAnonymous"):
            Chain(Clip(norm=3.0), KAnonymous(k=5, grouping=grouping), noise)
    # In front of it the noise is five times larger, and any groups but those of labels are post-processing.
    before = Chain(Clip(norm=3.0), noise, KAnonymous(k=5))
    assert standing(before, CUT)[1].part.scale == pytest.approx(3.6, abs=1e-2)
    assert "standard deviation" not in before.claim(CUT), "means of noised rows have less noise"
    assert before.bound(Bound()).release == formal.bound(Bound()).release
    assert Chain(Clip(norm=3.0), noise, KAnonymous(k=5, grouping="class")).bound(Bound()).release is None


def test_noise_behind_it_is_drawn_once_a_row():
    """Noise of its own for each member would average away by sqrt(k)."""
    guard, z = Chain(KAnonymous(k=4), Gaussian(scale=0.5)), some(41)
    seen, _, rows, _ = guard.build(CUT, 1, 2)(z, of(41))
    assert len(seen) == 10 and rows.shape == (41,) and rows.bincount().min() >= 4
    means = torch.stack([z[rows == row].mean(0) for row in range(10)])
    assert (seen - means).std().item() == pytest.approx(0.5, abs=0.05)


def test_mdav_changes_many_rows_where_one_sample_is_replaced():
    """What the refusal says of activations; on random numbers it is of the same kind. Random groups change one."""
    changed = {}
    for grouping in ("mdav", "random"):
        guard, counts = KAnonymous(k=5, grouping=grouping), []
        for seed in range(4):
            z = some(256, seed, (64,))
            neighbour = z.clone()
            neighbour[seed] = some(1, 50 + seed, (64,))[0]
            one, other = (
                {tuple(row) for row in guarded(guard, rows, of(256)).seen.tolist()} for rows in (z, neighbour)
            )
            counts.append(len(one - other))
        changed[grouping] = counts
    assert changed["random"] == [1] * 4 and min(changed["mdav"]) >= 1 and max(changed["mdav"]) > 10
