import math
from dataclasses import replace

import pytest
import torch

from cutlayer.data.base import Loaded, Samples

CLASSES = tuple("0123456789")


def good(count=8):
    return Samples(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count) % 10)


def test_an_index_takes_whole_rows(toy):
    samples = toy(12)
    rows = torch.tensor([5, 0, 9])
    picked = samples[rows]
    assert len(picked) == 3
    assert picked.x[:, 0, 0, 0].tolist() == [5, 0, 9]
    assert picked.y.tolist() == [2, 0, 1]
    assert picked.s["odd"].tolist() == [1, 0, 1]
    assert picked.identity.tolist() == [1, 0, 2]
    assert len(samples[rows[:0]]) == 0


def test_bytes_become_floats_from_zero_to_one_and_stay_bytes_in_memory():
    samples = Samples(torch.tensor([[0, 255, 51]], dtype=torch.uint8), torch.tensor([0]))
    assert torch.equal(samples.images(), torch.tensor([[0.0, 1.0, 0.2]]))
    assert samples.images().dtype == torch.float32
    assert samples.x.dtype == torch.uint8
    assert samples.x.tolist() == [[0, 255, 51]]


def test_floats_stay_as_they_are_and_rows_can_be_picked():
    x = torch.tensor([[-3.0, 7.5], [1.0, 2.0]])
    samples = Samples(x, torch.tensor([0, 1]))
    assert torch.equal(samples.images(), x)
    assert torch.equal(samples.images(torch.tensor([1])), x[1:])


def broken(**changes):
    return replace(good(), **changes)


def labels(value):
    return torch.tensor([0, 1, 2, 3, 4, 5, 6, value])


def pixels(value):
    x = torch.zeros(8, 1, 2, 2)
    x[5, 0, 1, 1] = value
    return x


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (broken(y=labels(12)), "label 12 at train row 7 is out of range: the set has 10 classes 0..9"),
        (broken(y=labels(-1)), "label -1 at train row 7 is out of range"),
        (broken(y=labels(1.5)), "label 1.5 at train row 7 is not a whole number"),
        (broken(y=labels(math.nan)), "label nan at train row 7 is not a whole number"),
        (broken(y=labels(7.0)), "labels must be int64; got torch.float32: convert them with y.long"),
        (broken(y=labels(1)[:, None]), "labels must be one number a sample"),
        (broken(y=labels(1)[:7]), "train set has 8 images but 7 labels"),
        (broken(s={"race": torch.zeros(3)}), "8 images but 3 values of attribute 'race'"),
        (broken(s={"age": torch.tensor([0.0] * 7 + [math.nan])}), "attribute 'age' at train row 7 holds NaN"),
        (broken(identity=torch.zeros(9)), "8 images but 9 identities"),
        (broken(x=pixels(math.nan)), "x at train row 5 holds NaN or Inf"),
        (broken(x=pixels(math.inf)), "x at train row 5 holds NaN or Inf"),
        (broken(x=pixels(200.0)), r"floats must lie in \[0, 1\]; found 0 to 200: rescale"),
        (broken(x=pixels(0.5).double()), "uint8 or float32"),
        (broken(x=pixels(0.5)[:, None]), r"shape \(N, C, H, W\)"),
        (good(0), "the train set is empty"),
    ],
)
def test_a_bad_set_is_refused_with_the_row_and_the_reason(train, words):
    Loaded(good(), good(), CLASSES)
    with pytest.raises(ValueError, match=words):
        Loaded(train, good(), CLASSES)


def test_the_test_set_is_checked_as_well():
    with pytest.raises(ValueError, match="label 12 at test row 7"):
        Loaded(good(), broken(y=labels(12)), CLASSES)


def test_train_and_test_have_one_shape():
    wide = broken(x=torch.zeros(8, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="train rows are 1x2x2, test rows 3x2x2"):
        Loaded(good(), wide, CLASSES)


def test_features_may_have_any_scale():
    features = Samples(torch.tensor([[-40.0, 900.0]]), torch.tensor([0]))
    Loaded(features, features, ("only",))
