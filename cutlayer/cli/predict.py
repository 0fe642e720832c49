"""Predicted label maps as files."""

import io
from pathlib import Path

import numpy as np
import torch

from ..core.batch import NO_LABEL
from ..engines.predict import Predictions
from ..training import checkpoint


def write_masks(path: Path, found: Predictions) -> None:
    """The label maps: a folder of PNG pictures whose pixel values are the classes, or one .npz file."""
    small = found.found.to(torch.uint8 if len(found.classes) <= 256 else torch.int32).numpy()
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        unknown = np.iinfo(small.dtype).max  # 255, as in the masks that data sets come with
        labels = found.labels.masked_fill(found.labels == NO_LABEL, unknown).numpy().astype(small.dtype)
        np.savez_compressed(buffer, predicted=small, label=labels, classes=np.array(found.classes))
        checkpoint.write_bytes(path, buffer.getvalue())
        return
    if len(found.classes) > 256:
        raise ValueError(
            f"a PNG has 256 classes at most, and there are {len(found.classes)}: give --masks an .npz file"
        )
    from PIL import Image

    path.mkdir(parents=True, exist_ok=True)
    colours = [value for which in range(len(found.classes)) for value in _colour(which)]
    for number, picture in enumerate(small):
        image = Image.fromarray(picture, mode="P")
        image.putpalette(colours)
        image.save(path / f"{number:05}.png")


def refuse_masks(path: Path) -> None:
    """Say what is wrong with a place for label maps before anything is predicted."""
    if path.exists() and (path.suffix == ".npz" or not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists: give --masks a new folder for pictures, or a new .npz file")


def _colour(which: int) -> tuple[int, int, int]:
    """A colour for a class, the first ones far apart: bits of its number, spread over red, green and blue."""
    found = [0, 0, 0]
    for bit in range(8):
        found[bit % 3] |= (which >> bit & 1) << (7 - bit // 3)
    return found[0], found[1], found[2]
