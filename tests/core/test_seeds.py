"""Randomness by name: every bit of a seed counts, and nothing leaks out of a seeded block."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from cutlayer.core.seeds import _Blank, _seed, derive, generator, seeded


@pytest.mark.parametrize("other", [7 + 2**32, 7 + 2**62, 8])
def test_every_bit_of_a_seed_counts(other):
    one, two = (torch.rand(100, generator=generator(seed)) for seed in (7, other))
    assert not torch.equal(one, two)
    with seeded(7):
        inside = torch.rand(100)
    assert torch.equal(inside, one), "a block and a generator of the same seed draw the same"


def test_an_accelerator_gets_the_whole_seed():
    came = []
    _seed(SimpleNamespace(device=torch.device("cuda"), manual_seed=came.append), 7 + 2**40)
    assert came == [7 + 2**40]


def test_the_same_seed_draws_the_same_and_the_caller_does_not_notice():
    before = torch.get_rng_state()
    assert torch.equal(torch.randn(9, generator=generator(5)), torch.randn(9, generator=generator(5)))
    with seeded(5):
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def test_a_device_draws_by_the_seed_too_and_goes_on_where_it_was(monkeypatch):
    theirs, host = torch.Generator().manual_seed(3), torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(), theirs))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    before = theirs.get_state()
    with seeded(5, torch.device("cuda", 1)):
        assert torch.equal(torch.rand(9, generator=theirs), torch.rand(9, generator=generator(5)))
        assert torch.equal(torch.rand(9), torch.rand(9, generator=generator(5)))
    assert torch.equal(theirs.get_state(), before) and torch.equal(torch.get_rng_state(), host)


def test_nothing_is_seeded_while_a_step_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    host = torch.get_rng_state()
    with seeded(5, "cuda:1"):
        assert torch.equal(torch.get_rng_state(), host)


def test_draws_are_even_and_normal():
    draw = generator(derive(1, "a name"))
    even, normal = torch.rand(200_000, generator=draw), torch.randn(200_000, generator=draw)
    assert abs(even.mean() - 0.5) < 0.003 and abs(even.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01
    assert len(torch.randperm(1000, generator=draw).unique()) == 1000


def test_a_torch_with_another_state_is_refused(monkeypatch):
    monkeypatch.setattr("cutlayer.core.seeds._WORDS", slice(32, 32 + 8 * 624))
    with pytest.raises(RuntimeError, match="another form"):
        _Blank()


def test_threads_that_seed_at_once_do_not_mix_their_seeds():
    wanted = {seed: torch.rand(5, generator=generator(seed)).tolist() for seed in range(64)}

    def drawn(seed):
        return [torch.rand(5, generator=generator(seed)).tolist() for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for seed, found in zip(wanted, pool.map(drawn, wanted), strict=True):
            assert all(one == wanted[seed] for one in found)
