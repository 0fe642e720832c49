import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.data.base import CorruptData
from cutlayer.data.image_files import Listing, decode

RANDOM = np.random.default_rng(0)


def listing(*paths):
    return Listing(
        paths, torch.arange(len(paths)), {"odd": torch.arange(len(paths)) % 2}, torch.arange(len(paths)) + 7
    )


def random(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def saved(tmp_path, save_picture):
    return lambda name, pixels: save_picture(tmp_path / name, pixels)


@pytest.mark.parametrize("end", ["png", "bmp", "ppm"])
def test_pictures_read_back_with_what_belongs_to_them(saved, end):
    pixels = random(3, 5, 7, 3)
    train = listing(*(saved(f"{number}.{end}", image) for number, image in enumerate(pixels)))
    samples, test = decode(train, train[torch.tensor([2, 0])], None)
    assert torch.equal(samples.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert torch.equal(test.x, samples.x[[2, 0]])
    assert test.y.tolist() == [2, 0]
    assert test.s["odd"].tolist() == [0, 0]
    assert test.identity.tolist() == [9, 7]


def test_grey_pictures_stay_grey_unless_one_has_colours(saved):
    grey, colour = random(4, 6), random(4, 6, 3)
    a, b = listing(saved("a.png", grey)), listing(saved("b.png", colour))
    assert torch.equal(decode(a, a, None)[0].x, torch.from_numpy(grey)[None, None])
    for first, second in (decode(a, b, None), reversed(decode(b, a, None))):
        assert torch.equal(first.x, torch.from_numpy(grey).expand(1, 3, 4, 6))
        assert torch.equal(second.x[0], torch.from_numpy(colour).permute(2, 0, 1))


def test_transparency_and_palettes_become_colours(tmp_path):
    Image.fromarray(random(4, 4, 4), "RGBA").save(tmp_path / "a.png")
    Image.fromarray(random(4, 4, 3)).quantize(5).save(tmp_path / "b.png")
    a, b = decode(listing(tmp_path / "a.png"), listing(tmp_path / "b.png"), None)
    assert a.x.shape == b.x.shape == (1, 3, 4, 4)


def test_mixed_sizes_are_refused_with_the_sizes_and_the_fix(saved):
    shapes = [(8, 8), (8, 8), (6, 9), (5, 5), (4, 12)]
    paths = [saved(f"{number}.png", random(*shape)) for number, shape in enumerate(shapes)]
    with pytest.raises(ValueError, match=r"the 5 pictures have 4 sizes: 8x8 \(2\), .*, …; give size=4 .* or resize"):
        decode(listing(*paths[:4]), listing(*paths[4:]), None)
    with pytest.raises(ValueError, match=r"the 2 pictures have 2 sizes: 8x8 \(1\), 9x6 \(1\); give size=6"):
        decode(listing(paths[0]), listing(paths[2]), None)


def test_a_size_takes_the_central_square_and_stretches_nothing(saved):
    # Black sides, a white centre: of the wide and of the tall picture only the centre is left.
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    samples, tall = decode(listing(saved("a.png", wide)), listing(saved("b.png", wide.transpose(1, 0, 2))), 4)
    assert samples.x.shape == tall.x.shape == (1, 3, 4, 4)
    assert samples.x.min() == tall.x.min() == 255


def test_resizing_averages(saved):
    checks = np.indices((8, 8)).sum(0) % 2 * 200
    (samples, _), _ = (
        decode(listing(saved("a.png", checks.astype(np.uint8))), listing(saved("b.png", random(8, 8))), 2),
        0,
    )
    assert (samples.x.long() - 100).abs().max() <= 10


def test_a_picture_of_the_asked_size_is_untouched(saved):
    pixels = random(6, 6, 3)
    samples, _ = decode(listing(saved("a.png", pixels)), listing(saved("b.png", random(9, 7, 3))), 6)
    assert torch.equal(samples.x[0], torch.from_numpy(pixels).permute(2, 0, 1))


def test_damaged_pictures_are_refused_by_name(saved, tmp_path):
    good = saved("good.png", random(16, 16, 3))
    for end in ("png", "jpg", "webp", "bmp", "ppm"):
        bad = saved(f"bad.{end}", random(16, 16, 3))
        whole = bad.read_bytes()
        for content in (b"", b"hello", whole[:20], whole[: len(whole) // 2]):
            bad.write_bytes(content)
            with pytest.raises(CorruptData, match=rf"bad\.{end} is not usable: not a picture that can be read"):
                decode(listing(good), listing(bad), 16)


def test_formats_that_could_run_programs_are_not_opened(saved, tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n%%EOF\n")
    with pytest.raises(CorruptData, match="cannot identify image file"):
        decode(listing(tmp_path / "a.png"), listing(saved("b.png", random(4, 4))), None)


def test_more_than_eight_bits_are_refused(saved, tmp_path):
    Image.fromarray(RANDOM.integers(0, 65536, (4, 4), dtype=np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(CorruptData, match="its pixels are of the kind I;16, not 8 bits a colour"):
        decode(listing(tmp_path / "a.png"), listing(saved("b.png", random(4, 4))), None)
