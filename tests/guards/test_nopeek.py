"""Distance correlation against its definition, and who gets which gradient."""

from itertools import permutations
from math import sqrt

import pytest
import torch
from toys import TASK, batches, split_and_whole, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.seeds import generator
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import NoPeek
from cutlayer.guards.parts.distance_correlation import distance_correlation
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import UShaped, Vanilla


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def distances(rows):
    return [[sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True))) for other in rows] for one in rows]


def slow_v(x, z):
    """Székely, Rizzo and Bakirov (2007), sums written out."""
    n = len(x)

    def centred(d):
        row = [sum(d[i]) / n for i in range(n)]
        return [[d[i][j] - row[i] - row[j] + sum(row) / n for j in range(n)] for i in range(n)]

    def cov(a, b):
        return sum(a[i][j] * b[i][j] for i in range(n) for j in range(n)) / n**2

    a, b = centred(distances(x)), centred(distances(z))
    return sqrt(cov(a, b) / sqrt(cov(a, a) * cov(b, b)))


def slow_u(x, z):
    """Székely and Rizzo (2013): U-centred, the diagonal left out."""
    n = len(x)

    def centred(d):
        row = [sum(d[i]) / (n - 2) for i in range(n)]
        whole = sum(map(sum, d)) / ((n - 1) * (n - 2))
        return [[0 if i == j else d[i][j] - row[i] - row[j] + whole for j in range(n)] for i in range(n)]

    def product(a, b):
        return sum(a[i][j] * b[i][j] for i in range(n) for j in range(n)) / (n * (n - 3))

    a, b = centred(distances(x)), centred(distances(z))
    return product(a, b) / sqrt(product(a, a) * product(b, b))


@pytest.mark.parametrize("count", [4, 9])
def test_both_estimates_are_their_definitions(count):
    x = normal(count, 5)
    z = normal(count, 3, seed=1) + x[:, :3].square()
    assert float(distance_correlation(x, z)) == pytest.approx(slow_v(x.tolist(), z.tolist()), abs=1e-9)
    assert float(distance_correlation(x, z, unbiased=True)) == pytest.approx(slow_u(x.tolist(), z.tolist()), abs=1e-9)


def test_independence_looks_strong_to_the_v_statistic_and_not_to_the_unbiased_one():
    """128 rows of 4096 normal numbers: dCor² 0.99 for nothing."""
    x, z = normal(128, 4096).float(), normal(128, 4096, seed=1).float()
    assert distance_correlation(x, z) ** 2 > 0.98
    assert abs(distance_correlation(x, z, unbiased=True)) < 0.05


def test_the_unbiased_estimate_is_0_on_average_over_all_pairings():
    x, z = normal(5, 3), normal(5, 2, seed=1)
    every = [float(distance_correlation(x, z[list(order)], unbiased=True)) for order in permutations(range(5))]
    assert sum(every) / len(every) == pytest.approx(0, abs=1e-9)
    assert max(every) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unbiased", [False, True])
def test_it_is_1_for_a_turned_shifted_and_scaled_copy(unbiased, dtype):
    x = normal(12, 6).to(dtype)
    turn = torch.linalg.qr(normal(6, 6, seed=1)).Q.to(dtype)
    assert float(distance_correlation(x, -7 * x @ turn + 3, unbiased=unbiased)) == pytest.approx(1, abs=1e-5)


def test_it_sees_what_correlation_does_not_and_squared_distances_do_not_either():
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
    z = x.square()
    assert distance_correlation(x, z, unbiased=True) > 0.15
    assert distance_correlation(x, z, squared=True) < 1e-5


def test_squared_distances_give_the_rv_coefficient():
    x, z = normal(10, 4), normal(10, 3, seed=1)
    a, b = x - x.mean(0), z - z.mean(0)
    rv = (a.T @ b).square().sum() / ((a.T @ a).square().sum() * (b.T @ b).square().sum()).sqrt()
    torch.testing.assert_close(distance_correlation(x, z, squared=True), rv.sqrt())


@pytest.mark.parametrize("squared", [False, True])
def test_its_gradient_is_right(squared):
    x, z = normal(6, 4), normal(6, 2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: distance_correlation(x, z, squared=squared), z)


@pytest.mark.parametrize("z", [torch.ones(6, 3), torch.tensor([[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]])])
def test_rows_that_coincide_give_finite_gradients(z):
    z = z.clone().requires_grad_()
    distance_correlation(normal(6, 4), z).backward()
    assert torch.isfinite(z.grad).all()


def test_numbers_of_words_are_names_not_sizes():
    """Renaming words changes nothing, and it is what their one-hot codes give."""
    words = torch.randint(9, (8, 5), generator=generator(0))
    z = normal(8, 3)
    renamed = torch.randperm(9, generator=generator(1))[words] * 1000
    codes = torch.nn.functional.one_hot(words, 9).double()
    torch.testing.assert_close(distance_correlation(renamed, z), distance_correlation(words, z))
    torch.testing.assert_close(distance_correlation(words, z), distance_correlation(codes, z), atol=1e-6, rtol=0)


def test_bytes_are_sizes():
    image = torch.randint(256, (8, 1, 4, 4), generator=generator(0), dtype=torch.uint8)
    z = normal(8, 3)
    torch.testing.assert_close(distance_correlation(image, z), distance_correlation(image.double(), z))


def gradients(plan, batch):
    """(head's, tail's, server's) gradients of one step, by name."""
    client, server, *_ = split_and_whole(plan)
    server.bodies.optimizer = None
    client.split.train()
    client.split.loss(batch, client.remote).backward()
    parts = (client.split.head, client.split.tail, server.body)
    return client, [{name: p.grad for name, p in part.named_parameters()} for part in parts]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("protocol", [Vanilla(), UShaped()], ids=repr)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_head_gets_equation_8_and_nobody_else_is_scaled(alpha, protocol):
    batch = batches(1)[0]
    _, (task, tail, body) = gradients(tiny_plan(protocol=protocol), batch)
    client, (head, own_tail, own_body) = gradients(tiny_plan(protocol=protocol, guard=NoPeek(alpha=alpha)), batch)
    client.split.head.zero_grad()
    distance_correlation(batch.x, client.split.head(batch.x)).backward()
    for name, weight in client.split.head.named_parameters():
        torch.testing.assert_close(head[name], (1 - alpha) * task[name] + alpha * weight.grad)
    for ours, plain in ((own_tail, tail), (own_body, body)):
        assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_at_inference_it_does_nothing():
    z, batch = torch.randn(6, 4, 5, 5), batches(1)[0]
    module = NoPeek().build((4, 5, 5), 1, 2).eval()
    assert module(z, batch) == (z, {}, None, None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tiny_batch_gets_through_without_the_figure_that_needs_four(count):
    z = torch.randn(count, 4, requires_grad=True)
    module = NoPeek().build((4,), 1, 2).train()
    guarded = module(z, Batch(torch.rand(count, 3), torch.zeros(count).long()))
    (guarded.seen.sum() + guarded.penalty["NoPeek"]).backward()
    assert torch.isfinite(z.grad).all()
    assert module.notes == {}


def test_batches_below_four_are_not_made():
    with pytest.raises(ValueError, match="needs 4 samples"):
        cut_shapes(tiny_plan(guard=NoPeek(), batch_size=3), TASK)
    with pytest.raises(ValueError, match="at least 4 rows; got 3"):
        distance_correlation(torch.rand(3, 2), torch.rand(3, 2), unbiased=True)
    with pytest.raises(ValueError, match="as many of x as of z"):
        distance_correlation(torch.rand(3, 2), torch.rand(4, 2))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, "much", float("nan")])
def test_an_impossible_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match="NoPeek's alpha shares the loss"):
        NoPeek(alpha=alpha)


def test_the_history_shows_the_unbiased_figure_and_training_lowers_it():
    rows = {}
    for alpha in (0.0, 0.9):
        plan = tiny_plan(guard=NoPeek(alpha=alpha), epochs=20, batch_size=24, client_optimizer=Adam(lr=0.03))
        run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
        run.train()
        rows[alpha] = run.progress.history[-1]
    assert rows[0.0]["NoPeek"] == 0 < rows[0.9]["NoPeek"]
    assert rows[0.9]["dcor"] < rows[0.0]["dcor"] - 0.03, "one convolution can unlearn little, but some"
