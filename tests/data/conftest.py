"""Small sets made on the spot, and the optional folder of data sets beside the repository."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

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
