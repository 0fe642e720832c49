"""Small sets made on the spot, and the optional folder of data sets beside the repository."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.data.base import Loaded, Samples

torch.set_num_threads(1)


@pytest.fixture
def toy() -> Callable[[int], Samples]:
    """`toy(n)`: n different 1x2x4 images, three uneven classes; the first 4 bytes of a row are its number."""

    def make(count: int) -> Samples:
        number = torch.arange(count)
        x = torch.stack([number // 256**place % 256 for place in range(4)] + [number * 0] * 4, 1)
        y = torch.tensor([0, 0, 0, 1, 1, 2])[number % 6]
        return Samples(x.to(torch.uint8).reshape(count, 1, 2, 4), y, {"odd": number % 2}, number // 4)

    return make


@pytest.fixture
def loaded(toy: Callable[[int], Samples]) -> Loaded:
    return Loaded(toy(600), toy(60), ("a", "b", "c"))


@pytest.fixture
def data_folder() -> Path:
    """An optional folder of data sets: $CUTLAYER_DATA, or ../shared/data beside the repository."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("CUTLAYER_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no folder of data sets: neither CUTLAYER_DATA nor {beside}")
    return folder


Save = Callable[..., Path]


@pytest.fixture
def save_picture() -> Save:
    """`save_picture(path, array)`: a picture of H,W or H,W,3 bytes; the folders on the way are made."""

    def save(path: Path, pixels: np.ndarray) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(pixels)).save(path)
        return path

    return save


@pytest.fixture
def save_sheet() -> Save:
    """`save_sheet(path, images, columns, **facts)`: N,3,S,S bytes pasted one by one, and the JSON beside."""

    def save(path: Path, images: np.ndarray, columns: int, **facts: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        side = images.shape[-1]
        sheet = Image.new("RGB", (columns * side, -(-len(images) // columns) * side))
        for number, image in enumerate(images):
            tile = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
            sheet.paste(tile, (number % columns * side, number // columns * side))
        # Content decides, not the name: PNG under .jpg keeps every byte.
        sheet.save(path, "PNG")
        words = {"n": len(images), "tile": side, "cols": columns, **facts}
        path.with_suffix(".json").write_text(json.dumps({key: v for key, v in words.items() if v is not None}))
        return path

    return save
