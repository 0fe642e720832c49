"""FedMuon: what Newton-Schulz does to singular values, and agreement with torch's own Muon."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from cutlayer.core.server import Server
from cutlayer.nets.own import Own
from cutlayer.nets.text_encoder import TextEncoder
from cutlayer.rules import FedAdam, FedAvgM, FedMuon, Update
from cutlayer.rules.fedmuon import orthogonalize
from cutlayer.training.bodies import RoundBodies
from cutlayer.training.coordinator import Coordinator
from cutlayer.training.plan.code import embeddings
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.protocols import Federated, UShaped


def matrix(rows, columns, lowest, seed=0, dtype=torch.float32):
    """Random singular vectors; singular values spread evenly from `lowest` to 1."""
    draw = torch.Generator().manual_seed(seed)
    short = min(rows, columns)
    u, _ = torch.linalg.qr(torch.randn(rows, short, generator=draw, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, short, generator=draw, dtype=torch.float64))
    return (u * torch.linspace(1, lowest, short, dtype=torch.float64) @ v.T).to(dtype)


def values(found):
    return torch.linalg.svdvals(found.double())


SHAPES = [(8, 8), (64, 64), (64, 27), (10, 84), (32, 288), (1, 7), (7, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_five_steps_leave_a_band_around_one(shape):
    found = values(orthogonalize(matrix(*shape, lowest=0.3)))
    assert found.min() > 0.6 and found.max() < 1.25


def test_five_steps_are_not_orthonormal():
    """Who needs ones must polish: a test for 1e-3 here would be wrong."""
    found = orthogonalize(matrix(64, 64, lowest=0.3)).double()
    assert (found @ found.T - torch.eye(64)).norm() > 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_polish_takes_them_to_one(shape):
    found = values(orthogonalize(matrix(*shape, lowest=0.3), polish=True))
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=2e-5)


def test_singular_values_go_through_the_polynomial_and_vectors_stay():
    given = matrix(12, 30, lowest=0.1, dtype=torch.float64)
    u, s, vt = torch.linalg.svd(given, full_matrices=False)
    s = s / (s.norm() + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(orthogonalize(given), u * s @ vt, rtol=0, atol=1e-10)


def test_polished_it_is_the_polar_factor():
    given = matrix(12, 30, lowest=0.2, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(given, full_matrices=False)
    torch.testing.assert_close(orthogonalize(given, polish=True), u @ vt, rtol=0, atol=1e-9)


def test_directions_a_thousand_times_weaker_stay_weak():
    found = values(orthogonalize(matrix(16, 16, lowest=1e-3)))
    assert found.min() < 0.5 and found.max() < 1.25


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_the_size_of_what_is_given_does_not_matter(factor):
    given = matrix(20, 30, lowest=0.2)
    torch.testing.assert_close(orthogonalize(given * factor), orthogonalize(given), rtol=0, atol=1e-3)


def test_transposed_in_is_transposed_out():
    given = matrix(9, 30, lowest=0.2)
    torch.testing.assert_close(orthogonalize(given.T), orthogonalize(given).T)


def test_zero_stays_zero():
    assert not orthogonalize(torch.zeros(4, 6)).any()
    assert not orthogonalize(torch.zeros(6, 4), polish=True).any()


def merged(rule, shapes, turns=4):
    """A few rounds of one client that moves at random; returns the state and the g of each round."""
    draw = torch.Generator().manual_seed(1)
    now = {f"net.{name}": torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    path = [(dict(now), {})]
    for _ in range(turns):
        g = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        now = rule(now, [Update({f"net.{name}": now[f"net.{name}"] - g[name] for name in shapes}, 8)])
        path.append((now, g))
    return path


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
@pytest.mark.parametrize(("scale", "theirs"), [("kj", "original"), ("rms", "match_rms_adamw")])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)], ids=str)
def test_it_agrees_with_torch_where_that_is_defined(scale, theirs, shape):
    """Matrices only, without Nesterov and weight decay; torch computes in bfloat16, hence the tolerance."""
    path = merged(FedMuon(lr=0.1, momentum=0.9, scale=scale), {"w": shape})
    parameter = nn.Parameter(path[0][0]["net.w"].clone())
    muon = torch.optim.Muon(
        [parameter], lr=0.1, momentum=0.9, nesterov=False, weight_decay=0.0, adjust_lr_fn=theirs
    )  # fmt: skip
    for (before, _), (now, g) in pairwise(path):
        parameter.data = before["net.w"].clone()
        parameter.grad = g["w"]
        muon.step()
        ours, other = now["net.w"] - before["net.w"], parameter.detach() - before["net.w"]
        assert (ours - other).norm() < 0.03 * ours.norm()


def test_kernels_are_flattened_to_out_by_the_rest():
    path = merged(FedMuon(lr=1.0, momentum=0.0, polish=True), {"k": (6, 2, 3, 3)}, turns=1)
    step = (path[0][0]["net.k"] - path[1][0]["net.k"]).reshape(6, 18)
    torch.testing.assert_close(values(step), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("kj", 2.0), ("rms", 0.2 * 512**0.5)])
def test_what_scales_a_kernel(scale, factor):
    """'kj': √(4/1) = 2 of its last two sides, as its author's code has it; 'rms': the flat 512 × 32 of it."""
    shapes = {"k": (512, 8, 4, 1)}
    plain = merged(FedMuon(lr=1.0), shapes, turns=1)
    scaled = merged(FedMuon(lr=1.0, scale=scale), shapes, turns=1)
    step = [path[0][0]["net.k"] - path[1][0]["net.k"] for path in (plain, scaled)]
    torch.testing.assert_close(step[1], factor * step[0], rtol=1e-3, atol=1e-4)


def test_vectors_and_what_is_excluded_get_plain_momentum():
    shapes = {"head.w": (5, 4), "tail.w": (3, 5), "bias": (5,), "scalar": ()}
    muon, plain = merged(FedMuon(lr=0.1, exclude=("tail.",)), shapes), merged(FedAvgM(lr=0.1), shapes)
    for name in shapes:
        agree = torch.allclose(muon[1][0][f"net.{name}"], plain[1][0][f"net.{name}"])
        assert agree == (name != "head.w"), name


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lr": -0.1}, "lr is a number above 0"),
        ({"momentum": 1.0}, r"momentum is a number in \[0, 1\)"),
        ({"scale": "big"}, "scale is one of none, kj, rms; got 'big'"),
        ({"steps": 0}, "steps is a whole number from 1 to 50, usually 5"),
        ({"steps": 2.5}, "steps is a whole number"),
        ({"exclude": "tail"}, "exclude is a list of names"),
    ],
)
def test_impossible_constants_are_refused(settings, why):
    with pytest.raises(ValueError, match=why):
        FedMuon(**settings)


# ------------------------------------------------------------------ embeddings
def words():
    """A table of words, a matrix and a classifier; which is which only their types say."""
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 5), nn.Linear(5, 2))


def fitted(protocol):
    """The rule by which the server of a plan merges."""
    plan = Plan(net=Own(words, "0", "2"), rule=FedMuon(), rounds=SplitFed(), clients=2, protocol=protocol)
    return Coordinator(plan, Server(nn.Identity(), bodies=RoundBodies(nn.Identity())), [1, 1]).rule


@pytest.mark.parametrize(("protocol", "name"), [(UShaped(), "head.0.weight"), (Federated(), "head.0.0.weight")])
def test_embeddings_are_known_by_their_type_and_step_along_plain_momentum(protocol, name):
    rule, now, g = fitted(protocol), torch.zeros(11, 6), matrix(11, 6, lowest=0.1, dtype=torch.float64)
    assert rule.exclude == (name,)
    torch.testing.assert_close(rule.step(name, now, g, {})["net." + name], (-0.05 * g).float())
    other = rule.step("body.1.weight", now, g, {})["net.body.1.weight"]
    assert torch.equal(other, FedMuon().step("body.1.weight", now, g, {})["net.body.1.weight"])
    assert (other + 0.05 * g).abs().max() > 0.01, "a matrix does not step along plain momentum"


def test_tables_in_the_body_are_named_as_the_server_names_them():
    net = Own(lambda: nn.Sequential(nn.Identity(), nn.Embedding(5, 3), nn.Linear(3, 2)), "0", "2")
    assert embeddings(net) == ("body.1.weight",) and embeddings(net, crosses=False) == ("head.1.1.weight",)


def test_words_and_places_of_a_text_network_are_tables_and_its_blocks_are_not():
    net = TextEncoder(layers=2, width=8, heads=2, at=1, vocabulary=9)
    assert embeddings(net) == ("head.words.table.weight", "head.positions.weight")
    parts = {"head": net.head((6,)), "body": net.body((6,))}
    there = {f"{part}.{name}" for part, module in parts.items() for name, _ in module.named_parameters()}
    assert set(embeddings(net)) < there and any("attention.query.weight" in name for name in there)


def test_with_adam_for_the_rest_vectors_step_as_with_fedadam_and_matrices_as_before():
    torch.manual_seed(0)
    start = {"net.w": torch.randn(4, 5), "net.b": torch.randn(4), "net.table.w": torch.randn(6, 3)}
    rules = {
        "ours": FedMuon(lr=0.1, rest="adam", rest_lr=0.02, exclude=("table",)),
        "muon": FedMuon(lr=0.1),
        "adam": FedAdam(lr=0.02),
    }
    found = {name: dict(start) for name in rules}
    for round_ in range(3):
        moves = {
            name: torch.randn(t.shape, generator=torch.Generator().manual_seed(round_)) for name, t in start.items()
        }
        for name, rule in rules.items():
            now = found[name]
            came = [Update({key: now[key] - move for key, move in moves.items()}, 7)]
            found[name] = rule(now, came)
    assert torch.equal(found["ours"]["net.w"], found["muon"]["net.w"])
    for name in ("net.b", "net.table.w"):
        torch.testing.assert_close(found["ours"][name], found["adam"][name])
        assert not torch.equal(found["ours"][name], found["muon"][name])


@pytest.mark.parametrize("settings", [{"rest": "sgd"}, {"rest_lr": 0}])
def test_a_rest_that_is_neither_is_refused(settings):
    with pytest.raises(ValueError, match=r"rest is one of momentum, adam|rest_lr"):
        FedMuon(**settings)
