"""Images moved and mirrored: each is a window of itself with a black rim, drawn by the seed alone."""

import pytest
import torch
from torch.nn.functional import pad

from cutlayer.core.seeds import generator
from cutlayer.core.spec import spec
from cutlayer.data import CIFAR10, GTSRB, MNIST, SVHN, Digits
from cutlayer.data.augment import PADDING, augmented

X = torch.rand(40, 3, 9, 7, generator=generator(0)) + 0.1


def windows(image):
    """Every crop of one image, as slices: the slow way."""
    rim = pad(image, [PADDING] * 4)
    moves = range(2 * PADDING + 1)
    return [rim[:, down : down + 9, right : right + 7] for down in moves for right in moves]


def test_a_crop_is_a_window_and_a_flip_its_mirror_image():
    crops, flips, both = (augmented(X, how, seed=3) for how in ("crop", "flip", "crop+flip"))
    mirrored = [not torch.equal(flip, image) for flip, image in zip(flips, X, strict=True)]
    assert 8 < sum(mirrored) < 32
    for place, image in enumerate(X):
        assert any(torch.equal(crops[place], window) for window in windows(image))
        assert torch.equal(flips[place], image.flip(2) if mirrored[place] else image)
        assert torch.equal(both[place], crops[place].flip(2) if mirrored[place] else crops[place])
    assert len({int((image == 0).sum()) for image in crops}) > 5, "they are moved by different amounts"


def test_the_seed_decides_alone_and_nothing_is_written_over():
    before, first = X.clone(), augmented(X, "crop+flip", seed=1)
    torch.manual_seed(9)
    assert torch.equal(first, augmented(X, "crop+flip", seed=1)) and torch.equal(X, before)
    assert not torch.equal(first, augmented(X, "crop+flip", seed=2))
    assert augmented(X, "", seed=1) is X


def test_sources_of_photographs_can_be_told():
    assert spec("CIFAR10(augment='crop+flip')", "data") == CIFAR10(augment="crop+flip")
    assert SVHN(augment="crop").augment == "crop" and Digits().augment == ""
    given = {"ImageFolder": "'mine', ", "Faces": "'mine', 'list.csv', 'Smiling', "}
    for name in ("Fashion", "FashionMNIST", "UTKFace", "CelebA", "ImageFolder", "Faces"):
        assert spec(f"{name}({given.get(name, '')}augment='flip')", "data").augment == "flip"
    with pytest.raises(ValueError, match="augment is one of '', 'crop', 'flip', 'crop\\+flip'; got 'mixup'"):
        CIFAR10(augment="mixup")


@pytest.mark.parametrize("source", [GTSRB, MNIST, Digits, SVHN])
def test_what_has_a_left_and_a_right_is_moved_only(source):
    assert repr(source(augment="crop")) == f"{source.__name__}(augment='crop')"
    for how in ("flip", "crop+flip"):
        with pytest.raises(
            ValueError, match=f"{source.__name__}: a mirror image is not of the same class, .*='crop'"
        ):
            source(augment=how)
