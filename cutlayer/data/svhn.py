"""SVHN: house numbers cut into digits, from the official .mat files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .base import About, CorruptData, Loaded, MissingData, Samples, Source, find

SHAPE = (3, 32, 32)
HOMES = ("svhn/{}_32x32.mat", "SVHN/{}_32x32.mat", "{}_32x32.mat")


@dataclass(frozen=True, repr=False)
class SVHN(Source):
    """House-number digits, 3x32x32, 73,257 + 26,032, 10 classes; train_32x32.mat and test_32x32.mat in svhn/."""

    about: ClassVar[About] = About(
        name="Street View House Numbers",
        licence="not for commercial use",
        origin="The files are those of the second format (cropped digits) at ufldl.stanford.edu/housenumbers.",
        shape=SHAPE,
        classes=10,
        sizes=((73_257, 26_032),),
        forms=tuple(tuple(place.format(name) for name in ("train", "test")) for place in HOMES),
        md5={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere
    mirrors: ClassVar[bool] = False  # a mirrored digit is none

    def read(self, folder: Path | None) -> Loaded:
        train, test = (find(folder, *self.about.places(at), origin=self.about.origin) for at in (0, 1))
        return Loaded(read_mat(train, 73_257), read_mat(test, 26_032), tuple("0123456789"))


def read_mat(path: Path, count: int) -> Samples:
    """`count` digits: X of 32 x 32 x 3 x count bytes, y of labels 1 to 10, where 10 stands for 0."""
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingData(".mat files are read by scipy, which is not here: pip install scipy") from error
    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    # scipy meets a damaged file with whatever error it runs into.
    except Exception as error:
        raise CorruptData(path, f"not a MATLAB 5 file with X and y ({error})") from error
    height, width = SHAPE[1:]
    if x.dtype != np.uint8 or x.shape != (height, width, SHAPE[0], count):
        raise CorruptData(path, f"X should be bytes of 32 x 32 x 3 x {count}, it is {x.dtype} of {x.shape}")
    if y.dtype.kind not in "iuf" or y.size != count or not np.isin(y, range(1, 11)).all():
        raise CorruptData(path, f"y should be {count} labels from 1 to 10, it is {y.dtype} of {y.shape}")
    labels = torch.from_numpy(y.reshape(-1).astype(np.int64)) % 10
    return Samples(torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), labels)
