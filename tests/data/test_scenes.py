"""Scenes with a class for every pixel: what is in them, and that nobody's digit is in both halves."""

import pytest
import torch

from cutlayer.data import Digits, Scenes
from cutlayer.data.base import Loaded, Samples, overlap
from cutlayer.data.scenes import INK


@pytest.fixture(scope="module")
def loaded():
    return Scenes(limit=60).load()


def test_every_pixel_has_a_class(loaded):
    assert loaded.train.x.shape == (60, 3, 64, 64) and loaded.train.x.dtype == torch.uint8
    assert loaded.train.y.shape == (60, 64, 64) and loaded.test.y.shape == (400, 64, 64)
    assert loaded.classes == ("background", *"0123456789")
    assert loaded.test.y.unique().tolist() == list(range(11))
    assert 0.8 < float((loaded.test.y == 0).double().mean()) < 0.95
    assert all(len(y.unique()) <= 5 for y in loaded.test.y)  # four digits at most, and the background


def test_they_are_the_same_every_time_and_fewer_are_the_first_ones(loaded):
    again = Scenes(limit=20).load()
    assert torch.equal(again.train.x, loaded.train.x[:20]) and torch.equal(again.train.y, loaded.train.y[:20])
    assert torch.equal(again.test.x, loaded.test.x) and overlap(loaded.train, loaded.test) == 0


def test_ink_is_brighter_than_what_is_around_it():
    one = Scenes(most=1, limit=40).load().train
    for x, y in zip(one.x, one.y, strict=True):
        assert len(y.unique()) == 2
        assert x[:, y > 0].double().mean() > x[:, y == 0].double().mean() + 30


def test_a_scene_shows_a_digit_of_its_own_half():
    """A digit of the original size is there pixel for pixel, where its ink is all of a colour."""
    import cutlayer.data.scenes as room

    digits = Digits().load()
    draw = torch.Generator().manual_seed(1)
    small, large, room.SMALLEST, room.LARGEST = room.SMALLEST, room.LARGEST, 28, 28
    try:
        _, y = room._scene(digits.test, 1, draw)
    finally:
        room.SMALLEST, room.LARGEST = small, large
    rows, columns = (y > 0).any(1).nonzero(), (y > 0).any(0).nonzero()
    value = int(y.max()) - 1
    found = y[rows[0, 0] : rows[-1, 0] + 1, columns[0, 0] : columns[-1, 0] + 1] > 0

    def there(half):
        ink = half.x[half.y == value, 0] >= INK
        return any(_cropped(one).shape == found.shape and torch.equal(_cropped(one), found) for one in ink)

    assert there(digits.test) and not there(digits.train)


def _cropped(ink):
    rows, columns = ink.any(1).nonzero(), ink.any(0).nonzero()
    return ink[rows[0, 0] : rows[-1, 0] + 1, columns[0, 0] : columns[-1, 0] + 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"most": 0}, "1 to 16"),
        ({"most": 17}, "1 to 16"),
        ({"limit": 2001}, "more than the 2000"),
        ({"limit": 0}, "1"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        Scenes(**settings)


# ------------------------------------------------------------------- labels of pixels in any set
def maps(count=4, side=8, y=None):
    x = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    return Samples(x, torch.zeros(count, side, side, dtype=torch.int64) if y is None else y)


def test_a_set_may_have_a_class_for_every_pixel():
    Loaded(maps(), maps(2), ("a", "b"))


def strange(value, dtype=torch.int64):
    y = torch.zeros(4, 8, 8, dtype=dtype)
    y[2, 3, 4] = value
    return y


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (maps(y=torch.zeros(4, 7, 8, dtype=torch.int64)), "images are 3x8x8, their labels 7x8"),
        (maps(y=torch.zeros(4, 8, dtype=torch.int64)), r"one number a sample; got the shape \(4, 8\)"),
        (maps(y=torch.zeros(3, 8, 8, dtype=torch.int64)), "4 images but 3 labels"),
        (maps(y=strange(2)), "label 2 at train row 2 is out of range"),
        (maps(y=strange(-1)), "label -1 at train row 2"),
        (maps(y=strange(0.5, torch.float32)), "label 0.5 at train row 2 is not a whole number"),
        (Samples(maps().x, torch.zeros(4, dtype=torch.int64)), "labels of one kind"),
    ],
)
def test_labels_that_do_not_fit(train, words):
    with pytest.raises(ValueError, match=words):
        Loaded(train, maps(2), ("a", "b"))
