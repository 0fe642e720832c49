"""Readers of records and series: what a linear head sends, they read."""

import pytest
import torch
from torch import nn

from cutlayer.metrics.row_readers import Pairs, Size, error_of, likeness, network_for, train_reader

SMALL = Size(steps=150, width=8, hidden=32)


def pairs(rows, head, count=200, seed=0):
    """Samples and what an untrained head makes of them."""
    torch.manual_seed(seed)
    truth = torch.randn(count, *rows)
    if len(rows) == 2:
        truth = nn.functional.avg_pool1d(truth, 5, 1, 2)
    with torch.no_grad():
        seen = head(truth)
    return Pairs(seen[40:], truth[40:], seen[:40], truth[:40])


def read(reader, some):
    return float(likeness(some.held_truth, reader(some.held_seen)).mean())


@pytest.mark.parametrize("name", ["ridge", "mlp"])
def test_records_are_read_from_a_linear_head(name):
    torch.manual_seed(1)
    some = pairs((6,), nn.Linear(6, 12))
    assert read(train_reader(name, SMALL, some), some) > 0.7


@pytest.mark.parametrize("name", ["ridge", "mlp", "conv"])
def test_series_are_read_from_a_convolution(name):
    torch.manual_seed(1)
    some = pairs((2, 16), nn.Conv1d(2, 6, 3, padding=1))
    assert read(train_reader(name, SMALL, some), some) > 0.8


def test_a_wide_message_is_read_by_its_components():
    torch.manual_seed(1)
    some = pairs((6,), nn.Linear(6, 400))
    step, _ = network_for("mlp", some.seen, (6,), SMALL)
    assert step(some.seen).shape[1] <= 64, "so many weights would learn the few records by heart"
    assert read(train_reader("mlp", SMALL, some), some) > 0.8


def test_a_convolution_reads_no_records_and_no_flat_messages():
    assert train_reader("conv", SMALL, pairs((6,), nn.Linear(6, 12))) is None
    flat = nn.Sequential(nn.Flatten(), nn.Linear(32, 12))
    assert train_reader("conv", SMALL, pairs((2, 16), flat)) is None


def test_columns_of_every_scale_are_learnt_alike():
    torch.manual_seed(1)
    truth, guess = torch.randn(2, 50, 3)
    truth[:, 2], scale = 7.0, torch.tensor([1000.0, 0.01, 1.0])
    error = error_of(truth)(guess, truth)
    assert error_of(truth * scale)(guess * scale, truth * scale) == pytest.approx(float(error), rel=1e-4)
    guess[:, 2] = 1e6  # a column that never changes counts for nothing
    assert error_of(truth)(guess, truth) == error


def test_what_nobody_sent_is_not_read():
    torch.manual_seed(1)
    some = pairs((6,), nn.Linear(6, 12))
    blind = some._replace(seen=torch.randn_like(some.seen), held_seen=torch.randn_like(some.held_seen))
    for name in ("ridge", "mlp"):
        assert read(train_reader(name, SMALL, blind), some) < 0.2
