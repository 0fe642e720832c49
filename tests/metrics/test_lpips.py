"""LPIPS against the published examples where the weights are at hand, and against a plain twin everywhere."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from cutlayer.metrics.images import foreground_box, scores
from cutlayer.metrics.lpips import LPIPS, WEIGHTS, find_weights, foreground_lpips, load_lpips, why_no_lpips

torch.set_num_threads(1)
BESIDE = Path(__file__).parents[3] / "shared" / "data"
DATA = Path(os.environ.get("CUTLAYER_DATA", BESIDE))
PUBLISHED = DATA / "lpips" / WEIGHTS
published = pytest.mark.skipif(
    not PUBLISHED.is_file(), reason=f"lpips/{WEIGHTS} is in no data folder (set CUTLAYER_DATA)"
)
LAYERS = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}


def random_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for tap, (place, (out, into, side)) in enumerate(LAYERS.items()):
        weight = torch.randn(out, into, side, side, generator=generator) * (2 / (into * side**2)) ** 0.5
        tensors[f"features.{place}.weight"] = weight.half()
        tensors[f"features.{place}.bias"] = (0.1 * torch.randn(out, generator=generator)).half()
        tensors[f"lin{tap}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=generator)
    return tensors


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file(random_tensors(), path)
    return path


@pytest.fixture(scope="module")
def lpips(weights_file: Path) -> LPIPS:
    return load_lpips(weights_file)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def twin(w: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
    """LPIPS written out layer by layer in float64: RGB, no enlarging."""
    w = {name: tensor.double() for name, tensor in w.items()}
    mean = torch.tensor([-0.030, -0.088, -0.188], dtype=torch.float64).view(3, 1, 1)
    spread = torch.tensor([0.458, 0.448, 0.450], dtype=torch.float64).view(3, 1, 1)

    def taps(x: Tensor) -> list[Tensor]:
        x = (2 * x.double() - 1 - mean) / spread
        one = functional.relu(functional.conv2d(x, w["features.0.weight"], w["features.0.bias"], 4, 2))
        x = functional.max_pool2d(one, 3, 2)
        two = functional.relu(functional.conv2d(x, w["features.3.weight"], w["features.3.bias"], 1, 2))
        x = functional.max_pool2d(two, 3, 2)
        three = functional.relu(functional.conv2d(x, w["features.6.weight"], w["features.6.bias"], 1, 1))
        four = functional.relu(functional.conv2d(three, w["features.8.weight"], w["features.8.bias"], 1, 1))
        five = functional.relu(functional.conv2d(four, w["features.10.weight"], w["features.10.bias"], 1, 1))
        return [tap / (tap.square().sum(1, keepdim=True).sqrt() + 1e-10) for tap in (one, two, three, four, five)]

    total = torch.zeros(len(a), dtype=torch.float64)
    for place, (p, q) in enumerate(zip(taps(a), taps(b), strict=True)):
        total += ((p - q) ** 2 * w[f"lin{place}.model.1.weight"]).sum(1).mean(dim=(1, 2))
    return total


# --- the published weights


def example(name: str) -> Tensor:
    with Image.open(DATA / "lpips" / "examples" / f"{name}.png") as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)[None] / 255


@published
def test_the_authors_examples_score_as_published() -> None:
    lpips, reference = load_lpips(PUBLISHED), example("ex_ref")
    # As the lpips 0.1.4 package scores them.
    assert lpips(reference, example("ex_p0")).item() == pytest.approx(0.7219, abs=1e-3)
    assert lpips(reference, example("ex_p1")).item() == pytest.approx(0.1376, abs=1e-3)
    assert lpips(reference, reference).item() == 0.0


@published
def test_more_noise_is_further_away() -> None:
    lpips, reference = load_lpips(PUBLISHED), example("ex_ref")
    noise = torch.randn(reference.shape, generator=torch.Generator().manual_seed(0))
    distances = [lpips(reference, reference + sigma * noise).item() for sigma in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)]
    assert distances == sorted(distances)
    assert distances[0] < 0.01
    assert distances[-1] > 0.5


# --- the network, with random weights


def test_the_network_is_alexnet_with_five_taps(lpips: LPIPS) -> None:
    a, b = images(3, 3, 70, 96), images(3, 3, 70, 96, seed=1)
    torch.testing.assert_close(lpips(a, b).double(), twin(random_tensors(), a, b), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (64, 64), (20, 80)])
def test_one_distance_per_image(lpips: LPIPS, n: int, channels: int, size: tuple[int, int]) -> None:
    a, b = images(n, channels, *size), images(n, channels, *size, seed=1)
    distances = lpips(a, b)
    assert distances.shape == (n,)
    assert (distances > 0).all()
    assert torch.equal(lpips(a, a), torch.zeros(n))
    torch.testing.assert_close(distances, lpips(b, a))
    for index in range(n):
        alone = lpips(a[index : index + 1], b[index : index + 1])
        torch.testing.assert_close(distances[index : index + 1], alone, atol=1e-5, rtol=1e-4)


def test_grey_is_rgb_with_equal_channels(lpips: LPIPS) -> None:
    a, b = images(2, 1, 64, 64), images(2, 1, 64, 64, seed=1)
    torch.testing.assert_close(lpips(a, b), lpips(a.repeat(1, 3, 1, 1), b.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(("size", "enlarged"), [((28, 28), (64, 64)), ((20, 80), (64, 80)), ((90, 63), (90, 64))])
def test_a_short_side_is_stretched_to_64(lpips: LPIPS, size: tuple[int, int], enlarged: tuple[int, int]) -> None:
    a, b = images(2, 3, *size), images(2, 3, *size, seed=1)
    larger = [functional.interpolate(x, size=enlarged, mode="bilinear", align_corners=False) for x in (a, b)]
    torch.testing.assert_close(lpips(a, b).double(), twin(random_tensors(), *larger), atol=1e-5, rtol=1e-4)


def test_large_images_are_not_resized(lpips: LPIPS) -> None:
    a, b = images(1, 3, 100, 130), images(1, 3, 100, 130, seed=1)
    torch.testing.assert_close(lpips(a, b).double(), twin(random_tensors(), a, b), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3, 64, 64), (2, 3, 64, 60)), ((2, 2, 64, 64), (2, 2, 64, 64)), ((64, 3, 64), (64, 3, 64))],
)
def test_other_shapes_are_refused(lpips: LPIPS, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"C = 1 or 3; got \("):
        lpips(images(*a), images(*b))


def test_a_metric_does_not_train_or_touch_the_random_state(weights_file: Path) -> None:
    before = torch.get_rng_state()
    lpips = load_lpips(weights_file)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(weight.requires_grad for weight in lpips.parameters())
    assert not lpips.training
    assert {weight.dtype for weight in lpips.parameters()} == {torch.float32}


# --- foreground


def test_foreground_distance_is_that_of_the_crop(lpips: LPIPS) -> None:
    truth = torch.zeros(4, 1, 90, 40)
    truth[0, 0, 5:20, 10:30] = 1
    truth[1, 0, 2:82, 3:6] = 0.5  # 80 px high: another size than the rest
    truth[3, 0, 40, 20] = 1
    recon = images(4, 1, 90, 40)
    boxes = foreground_box(truth)
    distances = foreground_lpips(lpips, truth, recon, boxes)
    assert distances.isnan().tolist() == [False, False, True, False]
    for index in (0, 1, 3):
        top, bottom, left, right = boxes[index].tolist()
        crop = (slice(index, index + 1), slice(None), slice(top, bottom), slice(left, right))
        assert distances[index].item() == pytest.approx(lpips(truth[crop], recon[crop]).item(), rel=1e-3)


def test_scores_carry_both_distances(lpips: LPIPS) -> None:
    truth = torch.zeros(3, 1, 28, 28)
    truth[:2, 0, 8:20, 8:20] = images(2, 12, 12) + 0.1
    truth.clamp_(0, 1)
    recon = images(3, 1, 28, 28, seed=1)
    found = scores(truth, recon, lpips)
    assert found["lpips"] == pytest.approx(lpips(truth, recon).mean().item(), rel=1e-4)
    inside = foreground_lpips(lpips, truth, recon, foreground_box(truth))
    assert found["fg_lpips"] == pytest.approx(inside[:2].mean().item(), rel=1e-4)


# --- the weights file


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x08\0\0\0\0\0\0\0{broken}"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_lpips(path)


def test_a_cut_off_file_is_refused(tmp_path: Path, weights_file: Path) -> None:
    path = tmp_path / "half.safetensors"
    path.write_bytes(weights_file.read_bytes()[: weights_file.stat().st_size // 2])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_lpips(path)


def change(tensors: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    if how == "missing":
        del tensors["features.3.bias"]
    elif how == "foreign":
        tensors["classifier.1.weight"] = torch.zeros(4, 4)
    elif how == "shape":
        tensors["features.3.bias"] = torch.zeros(191)
    return tensors


@pytest.mark.parametrize(
    ("how", "named"),
    [("missing", "features.3.bias"), ("foreign", "classifier.1.weight"), ("shape", "features.3.bias")],
)
def test_another_network_is_refused(tmp_path: Path, how: str, named: str) -> None:
    path = tmp_path / "other.safetensors"
    save_file(change(random_tensors(), how), path)
    with pytest.raises(ValueError, match=f"does not hold LPIPS weights for AlexNet.*: {named}$"):
        load_lpips(path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, weights_file: Path) -> None:
    tensors = load_file(weights_file)
    tensors["features.3.bias"][7] = torch.nan
    path = tmp_path / "nan.safetensors"
    save_file(tensors, path)
    with pytest.raises(ValueError, match="not finite"):
        load_lpips(path)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without data and an environment that names none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUTLAYER_LPIPS", raising=False)
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    return tmp_path


def place(folder: Path) -> Path:
    path = folder / "lpips" / WEIGHTS
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_weights_are_looked_for_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_weights() is None
    assert find_weights(nowhere / "absent") is None
    here = place(nowhere / "data")
    assert find_weights() == Path("data") / "lpips" / WEIGHTS
    assert find_weights().samefile(here)
    in_environment = place(nowhere / "environment")
    monkeypatch.setenv("CUTLAYER_DATA", str(nowhere / "environment"))
    assert find_weights() == in_environment
    given = place(nowhere / "given")
    assert find_weights(nowhere / "given") == given
    assert find_weights(nowhere / "absent") == in_environment
    named = nowhere / "named.safetensors"
    named.touch()
    monkeypatch.setenv("CUTLAYER_LPIPS", str(named))
    assert find_weights() == named
    assert find_weights(nowhere / "given") == named
    assert find_weights(given) == given  # an explicit file comes before everything


def test_a_named_file_that_is_missing_is_not_replaced(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(nowhere / "data")
    monkeypatch.setenv("CUTLAYER_LPIPS", "typo.safetensors")
    assert find_weights() is None
    assert "CUTLAYER_LPIPS names typo.safetensors, which is not a file" in why_no_lpips()


@pytest.mark.usefixtures("nowhere")
def test_the_table_says_how_to_get_lpips() -> None:
    sentence = why_no_lpips()
    assert "CUTLAYER_LPIPS" in sentence
    assert WEIGHTS in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
