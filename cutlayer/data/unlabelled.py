"""Pictures without classes: what an attacker may have collected, such as FFHQ."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..core.seeds import derive
from .base import About, Loaded, MissingData, Source
from .broken import Sound, sound
from .files import home, own_folder
from .holdout import UNLABELLED, stratified
from .image_files import SUFFIXES, Listing, Size, check_size, decode

FFHQ_FORMS = ("ffhq/thumbnails128x128/", "ffhq/images1024x1024/")


class Pictures(Source):
    """What pictures without classes have in common, wherever they lie."""

    size: Size | None
    skip_broken: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)

    @abstractmethod
    def root(self, folder: Path | None) -> Path:
        """The folder that they are in."""

    def read(self, folder: Path | None) -> Loaded:
        pool, notes = self._pool(root := self.root(folder), least=2)
        if len(pool.y) < 2:
            raise ValueError(f"one picture of {root} can be read: two are the least")
        held = stratified(pool.y, 1, derive(0, "pictures", "test"))
        train = pool[(torch.arange(len(pool.y)) != held).nonzero().flatten()]
        return Loaded(*decode(train[self.keep(train.y)], pool[held], self.size), UNLABELLED, notes=notes)

    def has_labels(self, folder: Path | None) -> bool:
        return False

    def unlabelled_rows(self, folder: Path | None, known: Loaded) -> Tensor:
        pool, left_out = self._pool(self.root(folder), least=1)
        if left_out:
            raise ValueError(f"every picture has its place: take out those that do not decode: {left_out[0]}")
        return decode(pool, pool[torch.arange(0)], self.size)[0].x

    def _pool(self, root: Path, least: int) -> Sound:
        paths = sorted(path for path in root.rglob("[!.]*") if path.suffix.lower() in SUFFIXES)
        if len(paths) < least:
            wanted = "two are the least" if least > 1 else "there is none to predict"
            raise ValueError(f"{root} holds {len(paths)} pictures ({', '.join(SUFFIXES)}): {wanted}")
        return sound(Listing(paths, torch.zeros(len(paths), dtype=torch.long)), self.skip_broken)


@dataclass(frozen=True, repr=False)
class Unlabelled(Pictures):
    """Pictures without classes, an attacker's (--aux-data) or to be predicted: all below path/, however deep.

    There is nothing to learn from them but what such pictures look like. With `size` each is cut and resized
    (bilinear); without it all must have one size. `limit` draws so many of them; the others are never opened, but
    with `skip_broken`, which decodes all once. One more stands for a test set.
    """

    about: ClassVar[About] = About(
        name="pictures without classes",
        licence="yours",
        origin="A folder of .jpg, .png, .webp, .bmp or .ppm.",
    )

    path: str
    size: Size | None = None
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None

    def root(self, folder: Path | None) -> Path:
        return own_folder(folder, self.path)


@dataclass(frozen=True, repr=False)
class FFHQ(Pictures):
    """Faces without classes, as an attacker's data (--aux-data), 3x64x64, 69,999 + 1; pictures in ffhq/.

    The folder is the official thumbnails128x128/, or images1024x1024/, whose pictures take far longer to read. One
    picture stands for a test set. Each is resized to `size` (bilinear).
    """

    about: ClassVar[About] = About(
        name="FFHQ",
        licence="CC BY-NC-SA 4.0; real people: keep their faces out of public artefacts",
        origin="The folders are those of github.com/NVlabs/ffhq-dataset.",
        shape=(3, 64, 64),
        classes=1,
        sizes=((69_999, 1),),
        forms=tuple((name,) for name in FFHQ_FORMS),
    )

    size: Size = 64
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None

    def root(self, folder: Path | None) -> Path:
        for name in FFHQ_FORMS:
            if (root := home(folder) / name).is_dir():
                return root
        raise MissingData(
            f"there is no {FFHQ_FORMS[0]} in {home(folder).absolute()}: put the folder there (or {FFHQ_FORMS[1]}), "
            f"or point at the one that holds it with --data-dir or the variable CUTLAYER_DATA. {self.about.origin}"
        )
