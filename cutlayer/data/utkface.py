"""UTKFace: faces with age, gender and race, from contact sheets (adults) or from the original folder (all)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..core.seeds import derive
from .base import About, Loaded, Samples, Source, carve, distinct, find
from .broken import sound
from .files import home
from .image_files import SUFFIXES, Listing, Size, check_size, decode
from .sheets import read_sheet

SIDE, OLDEST = 64, 120
AGES = (30, 40, 50, 60)  # where the next age group begins
TARGETS = {
    "gender": ("male", "female"),
    "race": ("White", "Black", "Asian", "Indian", "Others"),
    "age_group": ("under 30", "30 to 39", "40 to 49", "50 to 59", "60 and over"),
}
ORIGINAL = "UTKFace/"
FACTS = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+\.")  # [age]_[gender]_[race]_[date and time].jpg
FILES = ("utkface64/train.jpg", "utkface64/train.json", "utkface64/test.jpg", "utkface64/test.json")


@dataclass(frozen=True, repr=False)
class UTKFace(Source):
    """Faces, 3x64x64, 3,200 + 800; target gender, race or age_group; in utkface64/ or UTKFace/; s: age, gender, race.

    The sheets of utkface64/ hold adults. The original folder, UTKFace/, holds some 23,700 faces of all ages, aligned
    and cut out, in files named [age]_[gender]_[race]_[date].jpg: a tenth of every class is set aside for testing,
    those whose names do not say all three are left out and counted. `size` may be another one; pictures of the
    sheets get smaller only, by a whole number of times.

    Ages are in years. The labels are estimates taken from file names. Nobody is named, so there are no identities.
    Some thirty pictures of the sheets are there twice, even with other labels: `distinct=True` leaves copies out of
    the training part, as an audit needs it.
    """

    about: ClassVar[About] = About(
        name="UTKFace",
        licence="research only, not commercial; real people: keep their faces out of public artefacts",
        origin="Or UTKFace/, the folder of aligned and cropped faces of susanqq.github.io/UTKFace.",
        shape=(3, SIDE, SIDE),
        classes=2,
        sizes=((3_200, 800), (21_335, 2_370)),
        forms=(FILES, (ORIGINAL,)),
    )

    target: str = "gender"
    distinct: bool = False
    size: Size = SIDE
    skip_broken: bool = False  # of the folder: leave out pictures that do not decode, and say how many
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        if self.target not in TARGETS:
            raise ValueError(f"target is what is learnt, one of {', '.join(TARGETS)}; got {self.target!r}")

    def read(self, folder: Path | None) -> Loaded:
        sheets = (home(folder) / FILES[0]).is_file() and self.size == SIDE
        if (home(folder) / ORIGINAL).is_dir() and not sheets:
            loaded = self._read_folder(home(folder) / ORIGINAL)
            return distinct(loaded) if self.distinct else loaded
        files = [find(folder, name, origin=self.about.origin) for name in FILES]
        if not isinstance(self.size, int) or SIDE % self.size:
            raise ValueError(
                f"{files[0]} holds pictures of {SIDE}x{SIDE}, of which every so many pixels are averaged: take a "
                f"size that divides {SIDE}; size={self.size} needs {ORIGINAL}"
            )
        loaded = Loaded(self._samples(*files[:2]), self._samples(*files[2:]), TARGETS[self.target])
        return distinct(loaded) if self.distinct else loaded

    def _samples(self, picture: Path, words: Path) -> Samples:
        x, meta = read_sheet(picture, words, SIDE)
        s = {
            "age": meta.column("age", OLDEST),
            "gender": meta.column("gender", len(TARGETS["gender"])),
            "race": meta.column("race", len(TARGETS["race"])),
        }
        return Samples(self._smaller(x), self._labels(s), s)

    def _smaller(self, x: Tensor) -> Tensor:
        assert isinstance(self.size, int)
        return x if self.size == SIDE else avg_pool2d(x.float(), SIDE // self.size).round().to(x.dtype)

    def _read_folder(self, root: Path) -> Loaded:
        paths = sorted(path for path in root.rglob("[!.]*") if path.suffix.lower() in SUFFIXES)
        found = [(path, told) for path in paths if (told := FACTS.match(path.name))]
        if len(found) < 2:
            raise ValueError(
                f"{len(found)} of the {len(paths)} pictures in {root} have names that say age, gender and race "
                "([age]_[gender]_[race]_[date].jpg): two are the least"
            )
        facts = torch.tensor([[int(number) for number in match.groups()] for _, match in found])
        s = dict(zip(("age", "gender", "race"), facts.unbind(1), strict=True))
        pool, more = sound(Listing([path for path, _ in found], self._labels(s), s), self.skip_broken)
        kept, held = carve(pool.y, derive(0, "utkface", "test"))
        train, left = pool[kept], len(paths) - len(found)
        notes = (f"{left} pictures of {root} were left out: their names do not say age, gender and race",)
        return Loaded(
            *decode(train[self.keep(train.y)], pool[held], self.size),
            TARGETS[self.target],
            notes=(notes if left else ()) + more,
        )

    def _labels(self, s: dict[str, Tensor]) -> Tensor:
        return s[self.target] if self.target in s else torch.bucketize(s["age"], torch.tensor(AGES), right=True)
