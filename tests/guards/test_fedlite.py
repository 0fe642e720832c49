"""FedLite: words are those of k-means, what travels is counted, and the correction is the gradient it claims."""

import pytest
import torch
from scipy.cluster.vq import kmeans2
from toys import TASK, batches, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.guards import Chain, FedLite, KAnonymous
from cutlayer.guards.fedlite import k_means, nearest
from cutlayer.training.build import build_client, build_server
from cutlayer.training.step import learn
from cutlayer.wire import frames

Z = torch.randn(24, 4, 5, 6, generator=generator(3))


def sent(guard, z=Z, seed=0, train=True):
    module = guard.build(tuple(z.shape[1:]), 0, 7).train(train)
    return module(z, Batch(z, torch.zeros(len(z)), seed=seed)), module


def test_every_part_is_the_nearest_word_of_its_group():
    guarded, module = sent(FedLite(parts=12, groups=3, centroids=5))
    books = module.packed.books
    assert books.shape == (3, 5, 10)
    for row, seen in zip(Z.reshape(24, 12, 10), guarded.seen.reshape(24, 12, 10), strict=True):
        for place in range(12):
            away = (books[place // 4] - row[place]).square().sum(1)
            torch.testing.assert_close((seen[place] - row[place]).square().sum(), away.min())


def test_words_are_those_of_another_k_means_from_the_same_start():
    points = torch.randn(200, 3, generator=generator(1))
    starts, _ = k_means(points, 6, 0, generator(2))
    words, found = k_means(points, 6, 10, generator(2))
    theirs, _ = kmeans2(points.double().numpy(), starts.double().numpy(), iter=10, minit="matrix")
    torch.testing.assert_close(words.double(), torch.from_numpy(theirs), rtol=1e-4, atol=1e-5)
    assert torch.equal(found, torch.cdist(points, words).argmin(1))


def test_clear_clusters_are_found_and_more_rounds_are_no_worse():
    centres = 20 * torch.eye(4).repeat(1, 2)
    points = centres.repeat(30, 1) + 0.01 * torch.randn(120, 8, generator=generator(4))
    words, found = k_means(points, 4, 5, generator(5))
    assert float((words[found] - points).square().mean()) < 1e-3
    errors = []
    for rounds in (0, 1, 3, 8):
        words, found = k_means(Z.reshape(-1, 10), 8, rounds, generator(6))
        errors.append(float((words[found] - Z.reshape(-1, 10)).square().sum()))
    assert errors == sorted(errors, reverse=True)


def test_points_that_are_few_or_all_the_same_are_no_trouble():
    points = torch.randn(3, 4, generator=generator(7))
    words, found = k_means(points, 16, 3, generator(0))
    assert words.shape == (3, 4)
    torch.testing.assert_close(words[found], points)
    words, found = k_means(torch.ones(40, 4), 5, 3, generator(0))
    assert torch.equal(words[found], torch.ones(40, 4))
    assert torch.equal(nearest(torch.tensor([[0.9], [0.1]]), torch.tensor([[0.0], [1.0]])), torch.tensor([1, 0]))


@pytest.mark.parametrize("parts", [7, 13, 40, 120])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_travels_is_what_was_computed_with(parts, dtype):
    """Lengths that parts do not divide included; books, indices and header are all counted."""
    z = Z.to(dtype)
    guarded, module = sent(FedLite(parts=parts, groups=2, centroids=6), z)
    wide = -(-120 // parts)
    used = -(-120 // wide)
    assert module.packed.size() == 24 + 4 * 2 * 6 * wide + -(-24 * used * 3 // 8)
    message = Message(Kind.FORWARD, 0, 0, {"z": guarded.seen}, {"z": module.packed})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message)
    assert torch.equal(frames.decode(frame)["z"], guarded.seen) and guarded.seen.dtype == dtype


def test_the_correction_is_the_gradient_it_claims():
    """dz = (what the server says) + weight (z - z̃), the latter in the mean over samples."""
    z = Z.clone().requires_grad_()
    guarded, _ = sent(FedLite(parts=12, centroids=4, weight=0.3), z)
    says = torch.randn(Z.shape, generator=generator(8))
    ((guarded.seen * says).sum() + guarded.penalty["fedlite"]).backward()
    torch.testing.assert_close(z.grad, says + 0.3 * (Z - guarded.seen.detach()) / len(Z))
    # The same from the loss by autograd, written down once more.
    again = Z.clone().requires_grad_()
    tilde = guarded.seen.detach()
    sum(0.15 * torch.linalg.vector_norm(a - b) ** 2 for a, b in zip(again, tilde, strict=True)).div(24).backward()
    torch.testing.assert_close(z.grad - says, again.grad)


def test_without_a_weight_gradients_pass_straight_through_and_inference_has_no_penalty():
    z = Z.clone().requires_grad_()
    guarded, _ = sent(FedLite(parts=12, centroids=4, weight=0), z)
    says = torch.randn(Z.shape, generator=generator(8))
    (guarded.seen * says).sum().backward()
    assert guarded.penalty == {} and torch.equal(z.grad, says)
    assert sent(FedLite(parts=12, centroids=4), train=False)[0].penalty == {}


def test_what_leaves_for_a_sample_depends_on_the_others():
    guard = FedLite(parts=12, centroids=4)
    other = torch.cat([Z[:1], -Z[1:]])
    assert not torch.equal(sent(guard)[0].seen[0], sent(guard, other)[0].seen[0]) and guard.mixes_samples
    with pytest.raises(ValueError, match="both mix the samples"):
        Chain(guard, KAnonymous(k=2))


def test_a_step_learns_with_the_penalty_in_its_history():
    plan = tiny_plan(guard=FedLite(parts=10, centroids=4, weight=0.5))
    server = build_server(plan.public(), TASK)
    told = learn(build_client(plan, TASK, 0, server.handle), batches(1)[0])
    assert told["fedlite"] > 0 and 0 < told["unexplained"] < 1


@pytest.mark.parametrize(("made", "words"), [
    (lambda: FedLite(parts=0), "parts is a whole number"),
    (lambda: FedLite(centroids=0), "centroids is a whole number"),
    (lambda: FedLite(centroids=1 << 17), "centroids are 65536 at most"),
    (lambda: FedLite(parts=4, groups=5), "groups share out the 4 parts"),
    (lambda: FedLite(weight=-1), "weight is a number from 0"),
    (lambda: FedLite(parts=200).build((4, 5, 5), 0, 0), "has 100 numbers"),
])  # fmt: skip
def test_settings_that_make_no_sense(made, words):
    with pytest.raises(ValueError, match=words):
        made()
