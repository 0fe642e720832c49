"""LPIPS without torchvision: AlexNet features and the published v0.1 linear heads, from one small file.

Zhang, Isola, Efros, Shechtman, Wang: The Unreasonable Effectiveness of Deep Features as a Perceptual Metric,
CVPR 2018, eq. 1. Lower is more alike; 0 is the same picture.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS = "alexnet-lpips-v0.1-fp16.safetensors"
SMALLEST = 64  # AlexNet's strides leave nothing of an image below about 32 px
TAPS = (1, 4, 7, 9, 11)  # the ReLUs of torchvision's AlexNet, by their place in `features`
WIDTHS = (64, 192, 384, 256, 256)


class LPIPS(nn.Module):
    """Distances between two batches of images in [0, 1], (N, C, H, W) with one channel or three, to N values.

    A side below 64 px is stretched to 64 px, bilinearly and apart from the other side: a narrow image changes
    its aspect, in both pictures alike.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1, bias=False) for width in WIDTHS)
        # ImageNet's mean and standard deviation as the authors' ScalingLayer has them, for pixels in [-1, 1].
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape or a.ndim != 4 or a.shape[1] not in (1, 3):
            raise ValueError(
                "LPIPS compares two batches of one shape (N, C, H, W) with C = 1 or 3; "
                f"got {tuple(a.shape)} and {tuple(b.shape)}"
            )
        total = a.new_zeros(len(a), dtype=torch.float32)
        for head, of_a, of_b in zip(self.heads, self._taps(a), self._taps(b), strict=True):
            total = total + head((of_a - of_b).square()).mean(dim=(1, 2, 3))
        return total

    def _taps(self, images: Tensor) -> list[Tensor]:
        """Every tap's activations, each position scaled to unit length over its channels."""
        x = (_enlarge(images.float()) * 2 - 1 - self.shift) / self.scale  # grey becomes three channels here
        taps = []
        for place, layer in enumerate(self.features):
            x = layer(x)
            if place in TAPS:
                taps.append(x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1e-10))
        return taps


def foreground_lpips(
    lpips: Callable[[Tensor, Tensor], Tensor], truth: Tensor, recon: Tensor, boxes: Tensor
) -> Tensor:
    """LPIPS inside each image's box (see `metrics.foreground_box`); NaN where the box is empty."""
    distances = torch.full((len(truth),), torch.nan, device=truth.device)
    crops: dict[tuple[int, ...], list[tuple[int, Tensor, Tensor]]] = {}
    for index, (top, bottom, left, right) in enumerate(boxes.tolist()):
        if bottom > top:
            window = (slice(index, index + 1), slice(None), slice(top, bottom), slice(left, right))
            a, b = _enlarge(truth[window].float()), _enlarge(recon[window].float())
            crops.setdefault(tuple(a.shape[2:]), []).append((index, a, b))
    for same_size in crops.values():  # once enlarged, the crops of small images are all one size: one batch
        indices = [index for index, _, _ in same_size]
        of_truth, of_recon = torch.cat([a for _, a, _ in same_size]), torch.cat([b for _, _, b in same_size])
        distances[indices] = lpips(of_truth, of_recon).to(distances)
    return distances


def _enlarge(images: Tensor) -> Tensor:
    """Stretch each side below 64 px to 64 px."""
    size = [max(side, SMALLEST) for side in images.shape[2:]]
    if size == list(images.shape[2:]):
        return images
    return functional.interpolate(images, size=size, mode="bilinear", align_corners=False)


def find_weights(folder: Path | None = None) -> Path | None:
    """The weights file: `folder` itself if it is a file, $CUTLAYER_LPIPS, or lpips/ under a data folder.

    Data folders are tried in the order `folder`, $CUTLAYER_DATA, ./data.
    """
    if folder is not None and folder.is_file():
        return folder
    if named := os.environ.get("CUTLAYER_LPIPS"):
        # A person named this file: a typing error must not silently score with other weights.
        return Path(named) if Path(named).is_file() else None
    data = os.environ.get("CUTLAYER_DATA")
    folders = [folder, Path(data) if data else None, Path("data")]
    candidates = [place / "lpips" / WEIGHTS for place in folders if place is not None]
    return next((path for path in candidates if path.is_file()), None)


def why_no_lpips() -> str:
    """One sentence for a table whose LPIPS column is empty."""
    named = os.environ.get("CUTLAYER_LPIPS")
    if named and not Path(named).is_file():
        return f"LPIPS is left out: CUTLAYER_LPIPS names {named}, which is not a file."
    return (
        f"LPIPS is left out: its weights were not found; set CUTLAYER_LPIPS to the file {WEIGHTS}, "
        "or CUTLAYER_DATA to a folder with it under lpips/."
    )


def load_lpips(path: Path) -> LPIPS:
    """LPIPS with the weights in `path`, named as in torchvision (features) and the lpips package (heads)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); expected {WEIGHTS}") from error
    # Initial weights are drawn in vain; the caller's random state stays as it was.
    with torch.random.fork_rng(devices=[]):
        model = LPIPS()
    expected = {_name_in_file(name): weight.shape for name, weight in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise ValueError(
            f"{path} does not hold LPIPS weights for AlexNet (features.*, lin*.model.1.weight): "
            f"missing, foreign or of another shape: {', '.join(wrong[:4])}{', ...' if len(wrong) > 4 else ''}"
        )
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError(f"{path} holds weights that are not finite; expected {WEIGHTS}")
    model.load_state_dict({name: tensors[_name_in_file(name)].float() for name in model.state_dict()})
    return model.requires_grad_(False).eval()


def _name_in_file(name: str) -> str:
    """heads.3.weight -> lin3.model.1.weight: there each head sits behind a dropout, used only to train it."""
    kind, place, rest = name.split(".")
    return f"lin{place}.model.1.{rest}" if kind == "heads" else name
